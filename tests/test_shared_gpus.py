"""Ranks that share a GPU: what they measure, and who holds its memory."""

import os
import types

import pytest

from bootcamp import machine
from bootcamp.drawing import style
from bootcamp.launcher import orphans
from bootcamp.records import runs


@pytest.mark.parametrize(("world", "hosts", "shared"), [(1, 1, False), (2, 1, True), (2, 2, False)])
def test_ranks_that_share_a_gpu_measure_no_scaling(world, hosts, shared):
    run = runs.Run("shared")
    run.config = {"device": "cuda:0", "processes": world, "hosts": hosts, "strategy": "ddp"}
    run.config["machine"] = {"gpus": ["NVIDIA H100"], "cores": 16}
    run.summary = {"status": "ok"}
    assert run.oversubscribed == shared
    assert ("more ranks than GPUs" in run.label) == shared
    assert ("more ranks than GPUs" in style._describe_ranks([run], "GPU")) == shared


def test_orphans_list_who_holds_gpu_memory(monkeypatch):
    said = f"{os.getpid()}, 512 MiB\n4711, [N/A]\n"
    answer = types.SimpleNamespace(stdout=said)
    monkeypatch.setattr(orphans.subprocess, "run", lambda *_, **__: answer)
    monkeypatch.setattr(machine, "gpu_names", lambda: ("NVIDIA H100",))
    assert orphans.list_gpu_holders() == [(os.getpid(), 512 << 20), (4711, None)]
    monkeypatch.setattr(orphans, "_find_orphans", list)
    row, _ = orphans.orphans().rows
    assert (row["process"], row["why"]) == (os.getpid(), "holds GPU memory")
