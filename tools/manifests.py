"""python tools/manifests.py [NAME...]

Hold the files of src/jobs/elsewhere against the tools that they are for: each tool, at a pinned
version, in an environment of its own outside this folder (gigabytes in all; the course needs none
of them). What was found goes to logs/reference/manifests.json, with versions and date, and lesson
09 shows it:

    run     the tool has started the course's script here, and its record is complete
    parsed  the tool's own parser or schema has taken the file; running it needs a cluster
"""

import datetime
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "src" / "jobs" / "elsewhere"
RECORD = ROOT / "logs" / "reference" / "manifests.json"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "bootcamp-manifests"
PINS = {  # file -> what pip installs to judge it
    "kubeflow.yaml": ["kubeflow-trainer-api==2.3.0", "pyyaml"],
    "skypilot.yaml": ["skypilot==0.14.1"],
    "submitit_slurm.py": ["submitit==1.5.4"],
    "ray_train.py": ["ray[train]==2.60.0"],
}
SHORT = ["--steps", "4", "--model", "mlp", "--device", "cpu"]
SECONDS = 300


def kubeflow(path: Path) -> dict:
    """Kubeflow's own models of a TrainJob take it, and know every key of it."""
    import yaml
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

    given = yaml.safe_load(path.read_text())
    job = TrainerV1alpha1TrainJob.from_dict(given)
    assert job.to_dict() == given, "keys that Kubeflow does not know are dropped in silence"
    trainer = job.spec.trainer
    return {"status": "parsed", "nodes": trainer.num_nodes, "processes": trainer.num_proc_per_node}


def skypilot(path: Path) -> dict:
    """sky.Task reads it, against SkyPilot's schema."""
    import sky

    task = sky.Task.from_yaml(str(path))
    words = task.run.split()
    return {
        "status": "parsed",
        "nodes": task.num_nodes,
        "processes": int(words[words.index("--nproc-per-node") + 1]),
    }


def submitit(path: Path) -> dict:
    """The sbatch file that submitit writes, and its local executor runs the script (one node)."""
    import cloudpickle

    job = _module(path)
    cloudpickle.register_pickle_by_value(job)
    folder = Path(tempfile.mkdtemp())
    asked = job.executor(folder / "slurm")._executor
    text = asked._make_submission_file_text("COMMAND", "0")
    ranks = job.NODES * job.PROCESSES
    here = job.executor(folder, "local", nodes=1, tasks_per_node=ranks)
    here.submit(job.rank, [*SHORT, "--run-dir", str(folder / "run")]).results()
    sbatch = [line for line in text.splitlines() if line.startswith(("#SBATCH", "srun"))]
    sbatch = [line for line in sbatch if str(folder) not in line]
    return {
        "status": _ran(folder / "run", ranks),
        "nodes": asked.parameters["nodes"],
        "processes": asked.parameters["ntasks_per_node"],
        "sbatch": sbatch,
    }


def ray(path: Path) -> dict:
    """Ray's own classes take the job, and a Ray of this machine alone runs it on as many workers.

    Where Ray does not start (it gives its parts half a minute each), the job is parsed, and why it
    did not run is said.
    """
    import ray as library
    from ray import cloudpickle

    job = _module(path)
    cloudpickle.register_pickle_by_value(job)
    folder = Path(tempfile.mkdtemp())
    ranks = job.NODES * job.PROCESSES
    trainer = job.trainer(folder, [*SHORT, "--run-dir", str(folder / "run")])
    found = {"status": "parsed", "nodes": job.NODES, "processes": job.PROCESSES}
    try:
        library.init(num_cpus=ranks, include_dashboard=False)
    except Exception as error:
        return {**found, "not_run": f"ray.init: {str(error).splitlines()[0]}"}
    try:
        trainer.fit()
    finally:
        library.shutdown()
    return {**found, "status": _ran(folder / "run", ranks)}


def _module(path: Path):
    sys.path.insert(0, str(path.parent))
    return __import__(path.stem)


def _ran(folder: Path, ranks: int) -> str:
    said = json.loads((folder / "summary.json").read_text())
    found = (said["status"], said["world_size"], said["steps"])
    assert found == ("ok", ranks, 4), f"expected ok, {ranks} ranks, 4 steps: {found}"
    return "run"


CHECKS = {"kubeflow.yaml": kubeflow, "skypilot.yaml": skypilot}
CHECKS |= {"submitit_slurm.py": submitit, "ray_train.py": ray}


def environment(name: str) -> Path:
    """The Python of an environment that has this file's tool; what the course has comes after."""
    folder = CACHE / Path(name).stem
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PINS[name]], check=True)
        site = next((folder / "lib").glob("python*")) / "site-packages"
        (site / "zz_course.pth").write_text(sysconfig.get_path("purelib") + "\n")
        (folder / "ready").touch()
    return python


def judged(name: str) -> dict:
    """What the check of one file finds, in its tool's environment and with an empty home."""
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "HOME": home, "PYTHONPATH": str(ROOT / "src")}
        env |= {"SKYPILOT_DISABLE_USAGE_COLLECTION": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        env |= {"RAY_AUTH_MODE": "disabled"}
        command = [environment(name), __file__, "check", name]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stdout[-1000:]}{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main(names: list[str]) -> None:
    found = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name in names or PINS:
        date = datetime.date.today().isoformat()
        text = hashlib.sha256((PLACE / name).read_bytes()).hexdigest()
        found[name] = {"tool": PINS[name][0], "date": date, "sha256": text, **judged(name)}
        print(f"{name}: {found[name]['status']} ({found[name]['tool']})")
        RECORD.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        print(json.dumps(CHECKS[sys.argv[2]](PLACE / sys.argv[2])))
    elif unknown := [name for name in sys.argv[1:] if name not in PINS]:
        sys.exit(f"There is no file {unknown[0]!r} to check: there are {', '.join(PINS)}.")
    else:
        main(sys.argv[1:])
