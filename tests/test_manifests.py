"""The files for other schedulers: the same job in each of them."""

import ast
import hashlib
import json
import re

import pytest
import yaml

from bootcamp.paths import ROOT
from bootcamp_lessons.labs import hosts_lab

PLACE = ROOT / "src" / "jobs" / "elsewhere"
FILES = sorted(path for path in PLACE.iterdir() if path.suffix in (".py", ".yaml"))
FLAGS = ["--steps", "20", "--global-batch", "32"]


def kubeflow(text):
    trainer = yaml.safe_load(text)["spec"]["trainer"]
    words = [*trainer["command"], *trainer["args"]]
    return trainer["numNodes"], trainer["numProcPerNode"], words


def skypilot(text):
    task = yaml.safe_load(text)
    words = task["run"].replace("\\\n", " ").split()
    return task["num_nodes"], int(words[words.index("--nproc-per-node") + 1]), words


def python(text):
    """NODES, PROCESSES and FLAGS as the file sets them; its libraries are not imported."""
    said = {}
    for line in ast.parse(text).body:
        if isinstance(line, ast.Assign):
            names = line.targets[0].elts if isinstance(line.targets[0], ast.Tuple) else line.targets
            values = line.value.elts if isinstance(line.targets[0], ast.Tuple) else [line.value]
            said |= {name.id: value for name, value in zip(names, values, strict=True)}
    script = re.search(r'parents\[2\] / "(\w+\.py)"', text)[1]
    words = [f"src/{script}", *ast.literal_eval(said["FLAGS"])]
    return said["NODES"].value, said["PROCESSES"].value, words


READERS = {"kubeflow.yaml": kubeflow, "skypilot.yaml": skypilot}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_file_starts_the_same_script_on_two_nodes_of_two_processes(path):
    nodes, processes, words = READERS.get(path.name, python)(path.read_text())
    assert (nodes, processes) == (2, 2)
    scripts = [word for word in words if word.startswith("src/_train")]
    assert [word for word in scripts if (ROOT / word).exists()] == ["src/_train_ddp.py"]
    assert words[words.index(scripts[0]) + 1 :] == FLAGS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_was_checked_is_the_file_that_is_here(path):
    found = json.loads(hosts_lab.MANIFESTS.read_text())[path.name]
    changed = "the file has changed since it was checked, see logs/README.md"
    assert found["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest(), changed
    assert (found["nodes"], found["processes"]) == (2, 2)
    row = next(row for row in hosts_lab.scheduler_table().rows if row["file"] == path.name)
    assert found["tool"].split("==")[1] in row["checked with"]
    assert row["here"] in ("run", "read, not run")
