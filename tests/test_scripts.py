"""The family of scripts keeps its promises: short, five headings, a few lines from its parent."""

import ast
import re

import pytest

from bootcamp.paths import SRC
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
    "cp": 17,
    "ep": 25,
    "zero1": 5,
    "fsdp_in_practice": 20,
    "fsdp_fp8": 27,
    "zero": 35,
    "megatron": 45,
}


def test_scripts_of_the_folder_are_the_family():
    assert {s.path for s in SCRIPTS} == set(SRC.glob("_train_*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.name)
def test_script_is_short_linear_near_its_parent_and_says_how_to_run_it(script):
    text = script.path.read_text()
    tree = ast.parse(text)
    assert len(compare.list_code_lines(script.path)) <= 80
    assert re.findall(r"^# (\d\. .*)$", text, re.M) == HEADINGS
    first = ast.get_docstring(tree).splitlines()[0]
    first = first.replace("--nproc-per-node 8", "--nproc-per-node 4")  # three axes need eight
    assert first.startswith(f"{STARTS[script.launcher]} src/{script.path.name} ")
    definitions = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    assert [node.name for node in definitions] == list(script.defines)
    assert "if strategy" not in text
    if script.parent:
        parent = strategies.SCRIPTS[script.parent].path
        added, removed = compare.count_changed_lines(script.path, parent)
        assert 0 < added <= MOST_LINES.get(script.name, 15)
        assert removed <= MOST_LINES.get(script.name, 15)


def test_changed_lines_are_counted_without_comments_and_docstrings(tmp_path):
    parent, child = tmp_path / "a.py", tmp_path / "b.py"
    parent.write_text('"""Doc\nstring."""\na = 1\nb = 2  # two\ntext = """two\nlines"""\n')
    assert compare.list_code_lines(parent) == ["a = 1", "b = 2", 'text = """two', 'lines"""']
    child.write_text('# Other\na = 1\nb = 20\ntext = """two\nlines"""\nd = 4\n')
    assert compare.count_changed_lines(child, parent) == (2, 1)


# Wrapping, process groups and collectives stand in the scripts, never in the package
DISTRIBUTED = ("torch.distributed", "torch.nn.parallel", "horovod")
STRATEGY = re.compile(
    r"DataParallel|fully_shard|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
    r"|broadcast_(parameters|optimizer)|DistributedOptimizer|process_group|parallelize_module"
)
ALLOWED = {
    # the rendezvous of the ranks, and torchrun itself where a job asks for it
    "launcher/forkserver.py": "torch.distributed.TCPStore torch.distributed.run.main",
    # asks the group that the script has made
    "train/environment.py": "torch.distributed all_gather_object",
    # the group in which a reader's cells call collectives
    "train/live_rank.py": "torch.distributed init_process_group destroy_process_group",
    # add up what is sharded for fingerprints, cut and gather it for checkpoints
    "train/fingerprint.py": "torch.distributed all_reduce",
    "train/sharded_tensors.py": "torch.distributed torch.distributed.tensor.distribute_tensor",
    "train/sharded_checkpoint.py": "torch.distributed.new_group torch.distributed.checkpoint",
    # lessons read what checkpoints and torch's flight recorder left, and show its rendezvous
    "checkpoints.py": "torch.distributed.checkpoint",
    "ddp_depth.py": "torch.distributed.flight_recorder.fr_trace "
    "torch.distributed.flight_recorder.components.fr_logger.FlightRecorderLogger",
    "labs/hosts_lab.py": "torch.distributed.elastic.rendezvous.dynamic_rendezvous",
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
        str(path.relative_to(SRC / package)): list_hidden_strategies(path.read_text())
        for package in ("bootcamp", "bootcamp_lessons")
        for path in (SRC / package).rglob("*.py")
    }
    allowed = {path: set(names.split()) for path, names in ALLOWED.items()}
    assert {path: names for path, names in hidden.items() if names} == allowed


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
