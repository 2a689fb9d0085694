"""What a rank writes down, and what is read back of it."""

import argparse
import json
import socket

import pytest
import torch

from bootcamp.experiments import equality
from bootcamp.experiments.run_and_baseline import distance
from bootcamp.launcher import launch
from bootcamp.records import runs, summary, trace
from bootcamp.train import memory_usage, models, process_end, record
from bootcamp.train.fingerprint import fingerprint
from bootcamp.train.sent_bytes import count_sent_bytes


def gpt():
    shape = {"model": "gpt", "size": "tiny", "seed": 0, "dtype": "float32"}
    return models.build(argparse.Namespace(**shape))


@pytest.fixture(scope="module")
def ddp():
    """One real run of two ranks with a traced step."""
    return launch.launch("ddp", 2, device="cpu", steps=8, trace_step=5, quiet=True)


def test_sent_bytes_counts_this_processes_connections():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with socket.create_connection(server.getsockname()) as client:
            peer, _ = server.accept()
            before = count_sent_bytes()["all"]
            client.sendall(bytes(100_000))
            assert count_sent_bytes()["all"] - before == 100_000, "before anybody has read it"
            peer.close()


def count_traced_steps(run) -> int:
    events = json.loads((run.folder / "ranks" / "0.trace.json").read_text())["traceEvents"]
    return [event["name"] for event in events].count("training_step")


def test_trace_of_one_step(ddp):
    assert count_traced_steps(ddp) == 1
    for rank in (0, 1):
        step = ddp.timeline(rank)
        assert step["communicate"], "the step has all-reduces"
        assert 0 < trace.total_seconds(step["communicate"]) < step["seconds"] * 1.2
        assert 0 < trace.total_seconds(step["compute"]) <= step["seconds"]
        assert ddp.ranks[rank]["communication_seconds"] == pytest.approx(
            trace.total_seconds(step["communicate"])
        )
        names = [name for name, _, _ in step["calls"]]
        assert names == ["gloo:all_reduce"] * 2, "a tiny GPT has two buckets; the loss comes behind"
        assert step["separated"], "both ranks were traced, and all-reduced the same buckets"
        parts = trace.total_seconds(step["waiting"]) + trace.total_seconds(step["sending"])
        assert parts == pytest.approx(trace.total_seconds(step["communicate"]))
    with pytest.raises(FileNotFoundError, match="trace_step"):
        equality.baseline(steps=2).timeline()


def test_trace_of_the_first_step_is_of_that_step_alone():
    """Of a later one the profiler starts a step early, which it doesn't record."""
    run = launch.launch("cpu", steps=2, trace_step=0, model="mlp", quiet=True)
    assert count_traced_steps(run) == 1


def test_fingerprint_does_not_depend_on_wrapping_or_cutting():
    model = gpt()
    wrapped = torch.nn.Module()
    wrapped.module = model
    assert fingerprint(wrapped) == fingerprint(model)
    parts = [fingerprint(part) for part in (model[:3], model[3:])]
    assert [a + b for a, b in zip(*parts, strict=True)] == pytest.approx(fingerprint(model))
    model.head.scores.weight.data[3, 5] += 1e-3
    assert fingerprint(wrapped) != fingerprint(gpt()), "a single number is seen"


@pytest.mark.slow
def test_fingerprint_estimates_the_distance_between_parameters():
    """One estimate from eight projections varies by a quarter; their mean over moves is right."""
    model = gpt()
    ratios = []
    for seed in range(16):
        moved, generator = gpt(), torch.Generator().manual_seed(seed)
        squares = 0.0
        with torch.no_grad():
            for parameter in moved.parameters():
                move = 0.01 * torch.randn(parameter.shape, generator=generator)
                parameter += move
                squares += move.double().square().sum().item()
        estimate = distance(fingerprint(model), fingerprint(moved))
        ratios.append(estimate**2 / squares)
    assert 0.6 < sum(ratios) / len(ratios) < 1.4
    assert all(0.1 < ratio < 3.5 for ratio in ratios)


def test_batch_norms_are_counted_that_use_a_ranks_own_samples():
    model = torch.nn.Sequential(
        torch.nn.BatchNorm1d(2), torch.nn.BatchNorm2d(2).eval(), torch.nn.SyncBatchNorm(2)
    )
    assert record.count_batch_norms(model) == 1
    model.eval()
    assert record.count_batch_norms(model) == 0


def test_storages_are_counted_once():
    base = torch.zeros(100)
    assert memory_usage.count_storage_bytes([base, base.view(10, 10), base[:5], None]) == 400


def test_measures_leave_out_the_warm_up():
    row = {"loss": 1.0, "samples": 10, "tokens": 20}
    steps = [{**row, "step": s, "seconds": 5.0 if s < 3 else 0.5} for s in range(6)]
    measured = summary.summarize_steps(steps)
    assert measured["samples_per_second"] == {"median": 20.0, "q25": 20.0, "q75": 20.0}
    assert measured["tokens_per_second"]["median"] == 40.0
    assert summary.summarize_steps([]) == {"steps": 0}
    spread = {"q25": 2.0, "median": 3.0, "q75": 4.0}
    assert summary.compute_quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == spread


def test_summary_fits_into_its_reserved_room(tmp_path, monkeypatch):
    summary.reserve(tmp_path)
    assert summary.read(tmp_path) == {"status": "running"}
    monkeypatch.setattr(summary, "write_json", lambda *_: (_ for _ in ()).throw(OSError(28, "")))
    error = {"rank": 1, "message": "x" * 9000, "traceback": "y" * 9000}
    summary.write(tmp_path, "failed", error=error)
    assert (tmp_path / "summary.json").stat().st_size == summary.RESERVED_BYTES
    assert summary.read(tmp_path)["error"]["message"] == "x" * 1000


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (torch.OutOfMemoryError(), "oom"),
        (RuntimeError("DefaultCPUAllocator: can't allocate"), "oom"),
        (KeyboardInterrupt(), "interrupted"),
        (ValueError(), "failed"),
    ],
)
def test_status_is_that_of_an_exception(error, status):
    assert process_end.classify_exception(error) == status


def test_runs_are_found_and_tabled(ddp):
    assert ddp.folder in [run.folder for run in runs.all_runs(ddp.folder.parent)]
    table = runs.table(ddp, caption="one run")
    assert table.column("run") == ["ddp, 2 ranks (CPU)"] or ddp.oversubscribed or ddp.shared_cores
    assert "<caption" in table._repr_html_()
    with pytest.raises(FileNotFoundError, match="holds no run"):
        runs.load(ddp.folder.parent / "nothing")


@pytest.mark.parametrize(("world", "hosts", "shared"), [(1, 1, False), (2, 1, True), (2, 2, False)])
def test_run_of_ranks_that_share_a_gpu_is_marked(world, hosts, shared):
    run = runs.Run("shared")
    run.config = {"device": "cuda:0", "processes": world, "hosts": hosts, "strategy": "ddp"}
    run.config["machine"] = {"gpus": ["NVIDIA H100"], "cores": 16}
    run.summary = {"status": "ok"}
    assert run.oversubscribed == shared
    assert ("more ranks than GPUs" in run.label) == shared


def test_run_of_shared_cores_more_ranks_than_cores_or_another_machine_is_marked(make_run):
    crowded, elsewhere = make_run("ddp", 2, cores=1), make_run("ddp", 2, cpu="Other Processor")
    assert crowded.oversubscribed
    assert "more ranks than cores" in crowded.label
    assert crowded.measured_here
    assert not elsewhere.measured_here
    assert "recorded on another machine" in elsewhere.origin
    shared = make_run(shared=True)
    assert shared.origin.endswith("on shared cores")
    marked = ["shared cores" in row["run"] for row in runs.table(make_run(), shared)]
    assert marked == [False, True]
