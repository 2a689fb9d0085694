"""Ranks that share a GPU: what they lease, what they measure, and who holds its memory."""

import os
import types

import pytest

from bootcamp import machine
from bootcamp.drawing import style
from bootcamp.launcher import device_locks, launch, orphans
from bootcamp.records import runs


def test_ranks_that_share_gpus_lease_those_that_there_are(monkeypatch):
    one = {"GPU 0": "GPU-1"}
    monkeypatch.setattr(device_locks, "list_gpus", lambda *_: one)
    monkeypatch.setattr(launch, "gpu_count", lambda: 1)
    call = launch.Call("ddp", 3, device="cuda")
    with pytest.raises(Exception, match="lease as many devices, and here are 1"):
        call.choose_leases()
    call.env = {"BOOTCAMP_SHARE_GPUS": "1"}
    assert call.choose_leases()["lease"]["count"] == 1


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
