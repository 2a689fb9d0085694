"""The family of scripts keeps its promises: short, five headings, a few lines from its parent."""

import ast
import re
import subprocess
import sys

import pytest

from bootcamp.paths import ROOT, SRC
from bootcamp.scripts import diff as compare
from bootcamp.scripts import strategies

SCRIPTS = list(strategies.SCRIPTS.values())
HEADINGS = ["1. Processes", "2. Model", "3. Data", "4. Optimizer", "5. Training loop"]
STARTS = {
    "python": "python",
    "torchrun": "torchrun --standalone --nproc-per-node 4",
    "horovodrun": "horovodrun --gloo -np 4 python",
}
# how many code lines a script may add to its parent or take from it, where it is not 15
MOST_LINES = {
    "gpu": 5,
    "dp_by_hand": 30,
    "ddp_options": 30,
    "ddp_sync_batchnorm": 25,
    "lightning": 35,
    "pp": 35,
    "3d": 40,
    "tp": 41,
    "striped": 20,
    "ep": 25,
    "zero1": 5,
    "fsdp_in_practice": 20,
    "zero": 35,
    "megatron": 45,
}


def test_every_script_of_the_folder_is_in_the_family():
    assert {s.path for s in SCRIPTS} == set(SRC.glob("_train_*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.name)
def test_script_is_short_linear_and_says_how_to_run_it(script):
    text = script.path.read_text()
    assert len(compare.list_code_lines(script.path)) <= 80
    assert re.findall(r"^# (\d\. .*)$", text, re.M) == HEADINGS
    first = ast.get_docstring(ast.parse(text)).splitlines()[0]
    first = first.replace("--nproc-per-node 8", "--nproc-per-node 4")  # three axes need eight
    assert first.startswith(f"{STARTS[script.launcher]} src/{script.path.name} ")
    defined = [
        node.name
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    assert defined == list(script.defines)
    assert "if strategy" not in text


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.parent], ids=lambda s: s.name)
def test_script_differs_from_its_parent_by_a_few_lines(script):
    parent = strategies.SCRIPTS[script.parent].path
    added, removed = compare.count_changed_lines(script.path, parent)
    assert 0 < added <= MOST_LINES.get(script.name, 15)
    assert removed <= MOST_LINES.get(script.name, 15)


def test_code_lines_leave_out_comments_and_docstrings(tmp_path):
    path = tmp_path / "script.py"
    path.write_text('"""Doc\nstring."""\n\n# comment\nx = 1  # why\ntext = """two\nlines"""\n')
    assert compare.list_code_lines(path) == ["x = 1", 'text = """two', 'lines"""']


def test_changed_lines_count_each_side(tmp_path):
    parent, child = tmp_path / "a.py", tmp_path / "b.py"
    parent.write_text("a = 1\nb = 2\nc = 3\n")
    child.write_text("a = 1\nb = 20\nc = 3\nd = 4\n")
    assert compare.count_changed_lines(child, parent) == (2, 1)


def test_diff_shows_signs_without_colour():
    diff = compare.script_diff("ddp")
    assert "+model = DistributedDataParallel(model)" in str(diff)
    assert "DistributedDataParallel" in diff._repr_html_()
    with pytest.raises(ValueError, match="baseline"):
        compare.script_diff("cpu")


# Wrapping, process groups and collectives stand in the scripts, never in the package
DISTRIBUTED = ("torch.distributed", "torch.nn.parallel", "horovod")
STRATEGY = re.compile(
    r"DataParallel|fully_shard|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
    r"|broadcast_(parameters|optimizer)|DistributedOptimizer|process_group|parallelize_module"
)
ALLOWED = {
    # the rendezvous of the ranks, and torchrun itself where a job asks for it
    "bootcamp/launcher/forkserver.py": {"torch.distributed.TCPStore", "torch.distributed.run.main"},
    # asks the group that the script has made
    "bootcamp/train/environment.py": {"torch.distributed", "all_gather_object"},
    # the group in which a reader's cells call collectives
    "bootcamp/train/live_rank.py": {
        "torch.distributed",
        "init_process_group",
        "destroy_process_group",
    },
    # gather what is sharded, for fingerprints and for checkpoints
    "bootcamp/train/sharded_tensors.py": {
        "torch.distributed.get_backend",
        "torch.distributed.tensor.distribute_tensor",
    },
    "bootcamp/train/sharded_checkpoint.py": {
        "torch.distributed.new_group",
        "torch.distributed.checkpoint",
        "torch.distributed.checkpoint.CheckpointException",
    },
    # lessons read what checkpoints and torch's flight recorder left, and show its rendezvous
    "bootcamp_lessons/checkpoints.py": {"torch.distributed.checkpoint"},
    "bootcamp_lessons/ddp_depth.py": {
        "torch.distributed.flight_recorder.fr_trace",
        "torch.distributed.flight_recorder.components.fr_logger.FlightRecorderLogger",
    },
    "bootcamp_lessons/labs/hosts_lab.py": {
        "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
    },
}


def list_hidden_strategies(text: str) -> set[str]:
    """List what a file's code takes from torch.distributed and the like, and what it calls."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            found |= {called, called.rpartition(".")[2]}
    plain = {each for each in found if "." not in each and STRATEGY.search(each)}
    return plain | {each for each in found if each.startswith(DISTRIBUTED)}


def test_package_hides_no_strategy():
    hidden = {
        str(path.relative_to(SRC)): list_hidden_strategies(path.read_text())
        for package in ("bootcamp", "bootcamp_lessons")
        for path in (SRC / package).rglob("*.py")
    }
    assert {path: names for path, names in hidden.items() if names} == ALLOWED


@pytest.mark.parametrize(
    "spelling",
    [
        "import torch.distributed as dist",
        "from torch import distributed",
        "from torch.nn.parallel import DistributedDataParallel as Wrapped",
        "def later():\n    import horovod.torch as hvd",
        "torch.distributed.barrier()",
        "given.all_reduce(loss)",
    ],
)
def test_hidden_strategy_is_seen_however_spelt(spelling):
    assert list_hidden_strategies(spelling)


def list_imported_modules(statement: str) -> set[str]:
    """List top-level modules outside the standard library that a statement loads."""
    code = (
        f"{statement}\nimport sys\n"
        "print(*{name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split())


NOTEBOOK_LIBRARIES = {"IPython", "ipykernel", "ipywidgets", "matplotlib", "nvitop", "jupyterlab"}


@pytest.mark.slow
def test_rank_side_needs_torch_and_numpy_only():
    modules = list_imported_modules(
        "import bootcamp.train.config, bootcamp.train.data, bootcamp.train.optimizers"
    )
    assert "torch" in modules
    assert not modules & NOTEBOOK_LIBRARIES


def test_launch_and_runs_need_the_standard_library_only():
    modules = list_imported_modules(
        "import bootcamp.launcher.launch, bootcamp.records.runs, bootcamp.experiments.equality"
    )
    assert not modules & (NOTEBOOK_LIBRARIES | {"torch", "numpy"})
