"""The job files on a cluster: the same training, queued again without a loss, broken as said."""

import re
from types import SimpleNamespace

import pytest
from processes import until
from trained import PROOF

from bootcamp.classroom.tasks import NotTried, Wrong
from bootcamp.experiments import equality
from bootcamp.hosts import slurm
from bootcamp.paths import LOGS
from bootcamp.records import runs
from bootcamp.scripts import jobs
from bootcamp_lessons.exercises.jobs import TASKS

pytestmark = pytest.mark.usefixtures("needs_slurm")
SGD = {**PROOF, "optimizer": "sgd"}
QUICK = {"steps": 3, "global_batch": 12, "model": "mlp", "timeout": 3}
TASK = {task.name: task for task in TASKS}
AT_ONCE = [task.broken for task in TASKS if not task.stopped]

SMALL_SITE = ("--partition=main", "--gpus-per-node=2", "--cpus-per-task=2")
BY_HAND = "salloc --nodes=2 --gres=gpu:2 srun --ntasks-per-node=1 src/jobs/torchrun_script.sh"
NEED_ALL_RANKS = ("job_space", "job_twice")


def arguments(flags: dict) -> tuple[str, ...]:
    return tuple(f"--{name.replace('_', '-')}={value}" for name, value in flags.items())


@pytest.fixture(scope="module")
def cluster():
    with slurm.Cluster(hosts=2, gpus=2, cpus=64) as made:
        yield made


@pytest.fixture(scope="module")
def broken_jobs(cluster, tmp_path_factory) -> dict:
    """All at once: most of their time they wait for ranks that never come."""
    folder, handed_in = tmp_path_factory.mktemp("jobs"), {}
    for broken in AT_ONCE:
        path = folder / f"{broken.name}.sbatch"
        path.write_text(broken.text)
        fewer = [] if broken.name in NEED_ALL_RANKS else ["--ntasks-per-node=1"]
        handed_in[broken.name] = cluster.sbatch(path, *fewer, arguments=arguments(QUICK))
    return handed_in


@pytest.mark.usefixtures("broken_jobs")  # which wait meanwhile
@pytest.mark.parametrize(
    ("name", "optimizer", "options"),
    [("ddp_srun", "sgd", ()), ("ddp_torchrun", "adamw", ()), ("ddp_gpus", "sgd", SMALL_SITE)],
)
def test_ranks_on_two_hosts_train_as_the_baseline(name, optimizer, options, cluster):
    flags = arguments({**PROOF, "optimizer": optimizer})
    job = cluster.sbatch(jobs.find(name), *options, arguments=flags)
    assert job.wait(120) == "COMPLETED", job.output
    assert job.summary.startswith("COMPLETED, 4 ranks on 2 hosts")
    assert equality.same_training(job.record, equality.baseline(**PROOF, optimizer=optimizer))


def test_script_with_torchrun_that_srun_starts_trains_as_the_baseline(cluster):
    said = cluster.run(f"{BY_HAND} {' '.join(arguments(SGD))}", on="host1").stdout
    number = re.search(r"Granted job allocation (\d+)", said)[1]
    run = runs.load(LOGS / f"torchrun_script-{number}.0")
    assert (run.config["processes"], run.config["hosts"]) == (4, 2)
    assert equality.same_training(run, equality.baseline(**SGD))


@pytest.mark.parametrize("name", ["ddp_gpus", "ddp_container"])
def test_slurm_reads_the_job_file_for_gpus_and_refuses_what_the_site_lacks(name, cluster):
    for options, says in ((SMALL_SITE[:1], "is not available"), (SMALL_SITE, "nodes host[0-1] in")):
        asked = ["sbatch", "--test-only", *options, str(jobs.find(name))]
        assert says in cluster.run(asked, raises=False).stdout


@pytest.mark.solves("job_agents", "job_trap")
def test_job_told_of_its_end_is_queued_again_and_goes_on_where_it_was(cluster, tmp_path):
    task, broken = TASK["job_agents"], []
    working = task.submit(cluster, task.solution_path())
    for each in (task, TASK["job_trap"]):
        given = tmp_path / f"{each.name}.sbatch"
        given.write_text(each.starting_point())
        broken.append((each, each.submit(cluster, given)))
    assert "told to end on the way, queued again, with the losses" in task.judge(working)
    told = re.findall(r"rank \d: told to end, (\d+) steps done", working.output)
    assert [rank["first_step"] for rank in working.record.ranks] == [int(steps) for steps in told]
    for each, job in broken:
        with pytest.raises(Wrong) as wrong:
            each.judge(job)
        assert wrong.value.meaning == each.broken.means, wrong.value.seen


def test_job_that_makes_room_is_queued_again_at_once(cluster, tmp_path):
    path, marker = tmp_path / "job.sbatch", tmp_path / "begun"  # which the second start finds
    how = "--partition=spare --requeue --open-mode=append --nodes=2 --exclusive"
    once = f"[ -e {marker} ] && exit; touch {marker}; sleep 600"
    path.write_text(f"#!/bin/bash\n#SBATCH {how}\n{once}\n")
    job = cluster.sbatch(path)
    until(marker.exists)
    cluster.run("srun --partition=urgent --nodes=2 true")
    assert (job.wait(60), job.restarts) == ("COMPLETED", 1)


@pytest.mark.solves(*(broken.name for broken in AT_ONCE))
@pytest.mark.parametrize("broken", AT_ONCE, ids=lambda broken: broken.name)
def test_job_file_that_is_broken_fails_as_its_exercise_says(broken, broken_jobs):
    job = broken_jobs[broken.name]
    job.wait(120)
    assert re.search(broken.seen, job.summary, re.S), job.summary


def test_checker_tells_a_broken_job_file_from_a_repaired_one(cluster, tmp_path):
    task, given = TASK["job_space"], tmp_path / "given.sbatch"
    given.write_text(task.starting_point())
    with pytest.raises(Wrong, match="COMPLETED, 4 ranks on 2 hosts, seen COMPLETED, 2 ranks on 1"):
        task.judge(task.submit(cluster, given))
    repaired = task.judge(task.submit(cluster, task.solution_path()))
    assert "with the losses of the baseline" in repaired
    given.write_text("srun hostname")  # the fault is no longer in there
    job = SimpleNamespace(script=given, summary="FAILED, no record\nx.py: no\nsrun: error: y")
    assert task.explain(job, "").meaning == "Your file fails in another way: x.py: no"
    assert isinstance(task.explain(job, "", is_late=True), NotTried)


def test_bad_host_is_found_and_left_out(cluster):
    good = cluster.sbatch(jobs.find("check_nodes"))
    assert good.wait(60) == "COMPLETED", good.output
    assert good.output.splitlines()[-1] == "no host stands out"
    cluster.run("mount -t tmpfs -o size=1m tmpfs /mnt", on="host1", as_root=True)
    bad = cluster.sbatch(jobs.find("check_nodes"), arguments=("--disk=/mnt", "--least-free-gb=0.1"))
    assert bad.wait(60) == "FAILED"
    assert "host1 stands out: 0.0 GB free in /mnt\n--exclude=host1\n" in bad.output
    left_out = cluster.run("srun --nodes=1 --exclude=host1 hostname").stdout
    cluster.run("scontrol update nodename=host1 state=drain reason=disk")
    assert [left_out, cluster.run("srun --nodes=1 hostname").stdout] == ["host0\n", "host0\n"]
    cluster.run("scontrol update nodename=host1 state=resume")
