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
NEVER_HIDDEN = re.compile(
    r"distributed|DataParallel|fully_shard|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
    r"|broadcast_(parameters|optimizer)|DistributedOptimizer|process_group|parallelize_module|horovod"
)
HIDDEN_BY_NAME = {
    # the fork server gives rank 0 the store of the rendezvous, as torchrun's agent does
    # and is torchrun's agent itself where a job asks for it
    "forkserver.py": {
        *("torch.distributed", "TCPStore"),
        "torch.distributed.elastic.agent.server.local_elastic_agent",
        "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    },
    # tables name programs
    "known_programs.py": {"horovod", "_train_horovod.py"},
    # what the flight recorder has written, by its own names
    "standstill.py": {"all_to_all", "process_group"},
    "flight_recorder.py": {"torch._C._distributed_c10d", "torch.distributed.distributed_c10d"},
    "strategies.py": {
        *("horovodrun", "horovod"),
        *(name for place, script in strategies.PROGRAMS.items() for name in (place, script.name)),
    },
    # names what starts ranks, and asks the group that the script has made
    "environment.py": {"horovodrun", "torch.distributed", "all_gather_object"},
    # the group in which a reader's cells call collectives, and where a rank waits in one
    "live_rank.py": {
        *("torch.distributed", "init_process_group", "destroy_process_group"),
        *("distributed_c10d", "torch/distributed/distributed_c10d.py"),
    },
    # gather what is sharded, for fingerprints and for checkpoints
    "sharded_tensors.py": {"torch.distributed.tensor", "distributed"},
    "sharded_checkpoint.py": {
        "torch.distributed",
        "torch.distributed.checkpoint",
    },
    "allreduce_sweep.py": {"snippets/sweep_all_reduce.py"},
    "hosts_lab.py": {"snippets/sweep_all_reduce.py", "torch.distributed.elastic.rendezvous"},
    # lessons read what checkpoints and torch's flight recorder left, and start torchrun
    "checkpoints.py": {"torch.distributed"},
    "ddp_depth.py": {
        "torch.distributed.flight_recorder",
        "torch.distributed.flight_recorder.components.fr_logger",
    },
    "excerpts.py": {"torch.distributed.run"},
}


# the launcher starts them by their commands, and knows the files in which a waiting rank is found
LAUNCHER = {
    *("torch.distributed.run", "horovod.runner.launch", "horovodrun", "horovod"),
    *("distributed_c10d.py", "torch/distributed/", "torch/nn/parallel/distributed.py"),
    "horovod/torch/mpi_ops.py",
}


def named(path):
    """Every module, name, attribute and text in a file's code, docstrings not among them."""
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield str(node.value)


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
def test_is_short_linear_and_says_how_to_run_it(script):
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
def test_differs_from_its_parent_by_a_few_lines(script):
    added, removed = compare.count_changed_lines(
        script.path, strategies.SCRIPTS[script.parent].path
    )
    assert max(added, removed) <= MOST_LINES.get(script.name, 15)
    assert added > 0


def test_budgets_are_those_of_the_course():
    assert MOST_LINES["gpu"] == 5
    assert not {"dp", "amp", "activation_checkpointing", "ddp", "horovod"} & set(MOST_LINES)


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


PACKAGES = SRC / "bootcamp", SRC / "bootcamp_lessons"
FILES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
# they draw and name collectives in labels; the next test sees that they cannot call them
WORDS = ("bootcamp/drawing", "bootcamp_lessons/diagrams", "bootcamp_lessons/exercises")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_the_package_hides_no_strategy(path):
    """Wrapping, process groups and collectives stand in the scripts, never in the package."""
    launcher = LAUNCHER if path.is_relative_to(SRC / "bootcamp" / "launcher") else set()
    allowed = HIDDEN_BY_NAME.get(path.name, set()) | launcher
    if any(path.is_relative_to(SRC / words) for words in WORDS):
        return
    found = {name for name in named(path) if NEVER_HIDDEN.search(name)} - allowed
    assert not {name for name in found if " " not in name}, found


def imports_distributed(path):
    """Whether a file imports torch.distributed, Horovod or what is below them, however spelt."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    return [name for name in imported if name.startswith(("torch.distributed", "horovod"))]


IMPORTS_BY_NAME = {
    "environment.py": {"torch.distributed"},
    "live_rank.py": {"torch.distributed"},
    "forkserver.py": {
        "torch.distributed.TCPStore",
        "torch.distributed.run.main",  # it becomes torchrun
    },
    "sharded_tensors.py": {"torch.distributed.tensor.distribute_tensor"},
    "checkpoints.py": {"torch.distributed.checkpoint"},
    "hosts_lab.py": {"torch.distributed.elastic.rendezvous.dynamic_rendezvous"},
    "ddp_depth.py": {
        "torch.distributed.flight_recorder.fr_trace",
        "torch.distributed.flight_recorder.components.fr_logger.FlightRecorderLogger",
    },
    "sharded_checkpoint.py": {
        "torch.distributed",
        "torch.distributed.checkpoint",
        "torch.distributed.checkpoint.CheckpointException",
    },
}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_no_file_of_the_package_imports_torch_distributed(path):
    assert set(imports_distributed(path)) == IMPORTS_BY_NAME.get(path.name, set())


def test_the_boundary_test_can_fail(tmp_path):
    path = tmp_path / "helper.py"
    path.write_text("from torch.nn.parallel import DistributedDataParallel as Wrapped\n")
    assert [name for name in named(path) if NEVER_HIDDEN.search(name)]
    for spelling in (
        "import torch.distributed as dist",
        "from torch import distributed",
        "from torch.distributed import all_reduce",
        "import horovod.torch as hvd",
    ):
        path.write_text(f"{spelling}\n")
        assert imports_distributed(path), spelling


def imported_modules(statement: str) -> set[str]:
    """Top-level modules outside the standard library that a statement loads in a new process."""
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
def test_the_rank_side_needs_torch_and_numpy_only():
    modules = imported_modules(
        "import bootcamp.train.config, bootcamp.train.data, bootcamp.train.optimizers"
    )
    assert "torch" in modules
    assert not modules & NOTEBOOK_LIBRARIES


def test_launch_and_runs_need_the_standard_library_only():
    modules = imported_modules(
        "import bootcamp.launcher.launch, bootcamp.records.runs, bootcamp.experiments.equality"
    )
    assert not modules & (NOTEBOOK_LIBRARIES | {"torch", "numpy"})
