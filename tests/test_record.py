"""What a rank writes down, and what is read back of it."""

import argparse
import contextlib
import json
import socket
from types import SimpleNamespace

import pytest
import torch

from bootcamp.experiments import equality
from bootcamp.experiments.run_and_baseline import distance
from bootcamp.launcher import launch
from bootcamp.records import runs, summary, trace
from bootcamp.train import memory_usage, models, process_end, record
from bootcamp.train.fingerprint import fingerprint
from bootcamp.train.sent_bytes import count_sent_bytes


def gpt(**changes):
    return models.build(
        argparse.Namespace(
            **{"model": "gpt", "size": "tiny", "seed": 0, "dtype": "float32", **changes}
        )
    )


@pytest.fixture(scope="module")
def ddp():
    """One real run of two ranks with a traced step."""
    return launch.launch("ddp", 2, device="cpu", steps=8, trace_step=5, quiet=True)


def test_bytes_by_kind(ddp):
    parameters = sum(p.numel() * 4 for p in gpt().parameters())
    for rank in ddp.ranks:
        assert rank["parameter_bytes"] == parameters
        assert rank["gradient_bytes"] == parameters
        # AdamW: two numbers for each parameter and a step count for each tensor
        assert rank["optimizer_bytes"] == 2 * parameters + 4 * len(list(gpt().parameters()))
        assert rank["peak_bytes"] > 4 * parameters
        assert rank["activation_bytes"] > 0


def test_activations_grow_with_the_batch_of_a_rank(ddp):
    alone = launch.launch("cpu", steps=2, quiet=True)
    ratio = alone.ranks[0]["activation_bytes"] / ddp.ranks[0]["activation_bytes"]
    assert ratio == pytest.approx(2, rel=0.01)


def test_bytes_sent_are_those_of_a_ring_all_reduce(ddp):
    """Counted by the kernel, within 1 % of the formula."""
    for rank in ddp.ranks:
        counted = rank["sent_bytes_per_step"]
        assert counted == pytest.approx(ddp.predicted_sent_bytes_per_step, rel=0.01)


def test_sent_bytes_counts_this_processes_connections():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with socket.create_connection(server.getsockname()) as client:
            peer, _ = server.accept()
            before = count_sent_bytes()["all"]
            client.sendall(bytes(100_000))
            assert count_sent_bytes()["all"] - before == 100_000, (
                "counted before anybody has read it"
            )
            received = 0
            while received < 100_000:
                received += len(peer.recv(1 << 16))
            assert count_sent_bytes()["all"] - before == 100_000
            peer.close()


def test_trace_of_one_step(ddp):
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


@pytest.mark.parametrize("steps_left", [(2, 1, 0), (0,)], ids=["later", "the first step"])
def test_profiler_starts_a_step_early_and_records_one(tmp_path, steps_left):
    """What its start takes is another time on each rank: the others would wait in their step."""
    rank = record.Run.__new__(record.Run)
    rank.folder, rank.rank, rank.device = tmp_path, 0, torch.device("cpu")
    rank._trace_path = tmp_path / "ranks" / "0.trace.json"
    rank._trace, rank._profiler = contextlib.ExitStack(), None
    flushed = []
    rank._log = SimpleNamespace(flush=lambda: flushed.append(True))
    (tmp_path / "ranks").mkdir()
    for left in steps_left:
        rank._prepare_trace(left)
        assert (rank._profiler is None) == (left == 2)
        torch.ones(3).cos() if left else torch.ones(3).sin()
    rank._trace.close()
    rank._prepare_trace(-1)
    assert flushed == [True]
    events = json.loads((tmp_path / "ranks" / "0.trace.json").read_text())["traceEvents"]
    names = [event["name"] for event in events]
    assert names.count("training_step") == 1
    assert "aten::sin" in names
    assert "aten::cos" not in names


def test_intervals():
    merged = trace.merge_intervals([(20, 21), (0, 5), (2, 12), (7, 7), (15, 15)])
    assert merged == [(0, 12), (20, 21)]
    assert trace.total_seconds(merged) == pytest.approx(13e-6)
    assert trace.total_seconds(trace.intersect_intervals(merged, [(5, 25)])) == pytest.approx(8e-6)


def test_config_says_what_was_run(ddp):
    config = ddp.config
    assert config["command"].startswith("torchrun --standalone --nproc-per-node 2 src/_train_ddp")
    assert config["processes"] == 2
    assert config["machine"]["cores"] >= 1
    assert config["versions"]["torch"] == torch.__version__
    assert config["corpus_crc32"] > 0


def test_fingerprint_does_not_depend_on_wrapping_or_cutting():
    model = gpt()
    wrapped = torch.nn.Module()
    wrapped.module = model
    assert fingerprint(wrapped) == fingerprint(model)
    parts = [fingerprint(part) for part in (model[:3], model[3:])]
    assert [a + b for a, b in zip(*parts, strict=True)] == pytest.approx(fingerprint(model))


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


def test_fingerprint_sees_a_single_number():
    model, other = gpt(), gpt()
    with torch.no_grad():
        other.head.scores.weight[3, 5] += 1e-3
    assert fingerprint(model) != fingerprint(other)


def test_learning_rates_and_batch_norms_are_noted_for_a_diagnosis(ddp):
    for rank in ddp.ranks:
        assert rank["learning_rates"] == [ddp.config["lr"]] * 8
        assert rank["batch_norm_layers"] == 0


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


def test_quartiles_show_the_spread():
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
    assert "one run" in str(table)
    assert "<caption" in table._repr_html_()
    with pytest.raises(FileNotFoundError, match="holds no run"):
        runs.load(ddp.folder.parent / "nothing")


def test_run_of_more_ranks_than_cores_is_marked(ddp):
    ddp_crowded = runs.Run(ddp.folder)
    ddp_crowded.config["machine"]["cores"] = 1
    ddp_crowded.summary["shared_cores"] = False  # whatever else this machine does
    assert ddp_crowded.oversubscribed
    assert "more ranks than cores" in ddp_crowded.label


def test_run_of_another_machine_is_told_apart(ddp):
    run = runs.Run(ddp.folder)
    assert run.measured_here
    run.config["machine"]["memory_bytes"] += 1
    assert not run.measured_here
    assert "recorded on another machine" in run.origin
