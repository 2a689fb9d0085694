"""Part `equality`: what is proved on CPU ranks everywhere else, proved on this GPU.

The launcher's own checks; _train_gpu.py against _train_cpu.py for every model; every script as one
rank over NCCL; several ranks on the one GPU over gloo. A difference is a NotTheSame error, with the
rows of the proof in its text.
"""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from functools import partial

from bootcamp.experiments import equality
from bootcamp.launcher import arguments, launch
from bootcamp.launcher.launch import Options
from bootcamp.paths import ROOT
from bootcamp.scripts import strategies
from bootcamp.scripts.variants import variant
from gpu_parts.session import Session

SETTINGS = {"steps": 4, "global_batch": 12}
MODELS = ("gpt", "moe", "mlp", "striped-lstm", "resnet50")
SGD, ADAMW = {"optimizer": "sgd"}, {"optimizer": "adamw"}
NOT_EQUAL = ("amp",)  # 16 bits: near float32, and not equal by intent
# float32 does not repeat the course's ResNet-50 from one order of sums to another
OF_MODEL = {"resnet50": {"dtype": "float64"}}
OF_SCRIPT = {
    "ddp_in_practice": {"clip": 1e9},  # the baseline clips nothing
    "fsdp_in_practice": {"clip": 1e9},
    "local_sgd": {"average_every": 1},
    "ddp_sync_batchnorm": {"model": "resnet50", "dtype": "float64"},
    "striped": {"model": "striped-lstm"},
    "ep": {"model": "moe"},
}
# ranks that share the GPU. torch's table of backends: gloo sends and receives CPU tensors alone,
# so a pipeline, which does, is not among them
SHARED = (
    ("ddp", 2),
    ("ddp", 3),
    ("ddp", 4),
    ("ddp_by_hand", 2),
    ("fsdp", 2),
    ("tp", 2),
    ("hsdp", 4),
)
SHARE = {"BOOTCAMP_SHARE_GPUS": "1"}
TF32 = {
    "device = torch.device(context.device)": (
        'device = torch.device(context.device)\ntorch.set_float32_matmul_precision("high")'
    )
}
FAULTS = (
    "rank_raises",
    "rank_is_killed",
    "rank_hangs",
    "two_launches_at_once",
    "kernel_is_killed",
    "supervisor_dies",
    "torchrun_rank_is_killed",
    "elastic_rank_is_killed",
)
TESTS = (
    "test_data_and_models test_step_clock test_record test_formulas test_device_locks test_traces"
)
REHEARSED_TEST = "tests/test_files.py"
NOTEBOOK_LIBRARIES = {"IPython", "ipykernel", "ipywidgets", "matplotlib", "nvitop", "jupyterlab"}


def run(session: Session) -> None:
    """All of it, the smallest claims first."""
    choose = session.device.choose
    for fault in choose(FAULTS, FAULTS[:1]):
        session.measure(f"launcher: {fault}", partial(_fault, fault), 60)
    for model in choose(MODELS, ("mlp",)):
        for optimizer in choose((SGD, ADAMW), (SGD,)):
            flags = {"model": model, **optimizer, **OF_MODEL.get(model, {})}
            _measure(session, "gpu against cpu", "gpu", 1, flags)
    flags = {"model": choose("gpt", "mlp"), **SGD}
    _measure(session, "with TF32", "gpu", 1, flags, changes=TF32)
    for script in choose(_scripts(), ["ddp"]):
        own = OF_SCRIPT.get(script, {})
        _measure(session, "one rank", script, 1, {**SGD, **choose({}, {"model": "mlp"}), **own})
    for script, ranks in choose(SHARED, ()):
        _measure(session, "ranks on one GPU", script, ranks, SGD, env=SHARE)
    session.measure("tests", partial(_tests, session), 120)
    session.measure("libraries", _libraries)
    launch.shut_down()


def _scripts() -> list[str]:
    """Those of the family that can train on a GPU here, but Horovod, untested there."""
    return [
        name
        for name, script in strategies.SCRIPTS.items()
        if not script.cpu_only
        and name != "horovod"
        and not (script.framework and arguments.missing(script.framework))
    ]


def _measure(session: Session, table: str, script: str, ranks: int, flags, changes=None, env=None):
    """A row of a table: one run beside the baseline, or its error under its own name."""
    rows = session.content["found"].setdefault(table, [])
    told = ", ".join([script, f"{ranks} rank(s)", *map(str, flags.values())])
    loose = bool(changes) or script in NOT_EQUAL
    ask = partial(_compared, session, script, ranks, flags, changes, env, loose)
    if row := session.measure(f"{table}: {told}", ask, 30):
        rows.append(row)
        del session.content["found"][f"{table}: {told}"]
        session.write()


def _compared(session, script, ranks, flags, changes, env, loose: bool) -> dict:
    """The proof's figures. loose: whether it need not hold. Raises NotTheSame."""
    known = strategies.describe(script)
    path = variant(script, f"{script}_tf32", changes) if changes else script
    device = "auto" if known.own_device else session.device.kind
    settings = {**SETTINGS, **session.device.choose({}, {"steps": 2}), **flags}
    options = Options(env=env)
    run = launch.launch(path, ranks, device=device, quiet=True, options=options, **settings)
    shared = {name: value for name, value in settings.items() if name in equality.SAME_SETTINGS}
    baseline = equality.baseline(**shared)
    proof = equality.compare(run, baseline)
    if proof.failed and not loose:
        equality.same_training(run, baseline)
    found = {row["compared"]: row["measured"] for row in proof.rows}
    return {
        "script": script,
        "ranks": ranks,
        **flags,
        "device": run.config["device"],
        "backend": run.config["backend"],
        "same": not proof.failed,
        "loss apart": next((v for k, v in found.items() if k.startswith("largest diff")), None),
        "parameters apart": next((v for k, v in found.items() if k.startswith("final par")), None),
    }


def _fault(name: str) -> dict:
    """One of the launcher's faults, as tests/faults.py provokes and checks it without pytest."""
    place = str(ROOT / "tests")
    if place not in sys.path:
        sys.path.append(place)
    return {"seconds": importlib.import_module("faults").FAULTS[name]()}


def _tests(session: Session) -> dict:
    """Tests of the rank side and the launcher, where pytest is installed."""
    if importlib.util.find_spec("pytest") is None:
        return {"not run": "pytest is not installed here; the checks above need none"}
    files = [f"tests/{name}.py" for name in TESTS.split()]
    files = session.device.choose(files, [REHEARSED_TEST])
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files]
    bare = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins load notebook libraries
    done = subprocess.run(command, cwd=ROOT, env=bare, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return {"files": files, "said": re.sub(r" in .*", "", done.stdout.strip().splitlines()[-1])}


def _libraries() -> dict:
    """Which notebook libraries this process has loaded by now. Raises AssertionError for any."""
    loaded = sorted(NOTEBOOK_LIBRARIES & set(sys.modules))
    if loaded:
        raise AssertionError(f"the rank side or the launcher has loaded {', '.join(loaded)}")
    return {"notebook libraries loaded": loaded, "modules loaded": len(sys.modules)}
