"""The dashboard of all runs, without a browser."""

import json
import os
import shutil
import time

import pytest

pytest.importorskip("matplotlib")

from bootcamp.paths import REFERENCE
from bootcamp.records import runs
from bootcamp.widgets import dashboard

RECORDED = REFERENCE / "xeon-2core-ddp-2"


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "logs"


@pytest.fixture
def put(logs):
    """A function that puts a copy of a recorded run into logs/, with some settings changed."""

    def copy(name, status="ok", began=None, **config):
        folder = logs / name
        shutil.copytree(RECORDED, folder)
        written = json.loads((folder / "config.json").read_text())
        written["started_unix_seconds"] = time.time() if began is None else began
        (folder / "config.json").write_text(json.dumps(written | config))
        said = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps(said | {"status": status}))
        return folder

    return copy


def names_of(rows):
    return [row["folder"].name for row in rows]


def test_lists_the_runs_newest_first_and_marks_recorded_ones(put, logs):
    put("old", began=1000.0)
    put("new")
    own, unreadable = dashboard.read_rows(logs, logs / "none")
    assert names_of(own) == ["new", "old"]
    assert unreadable == 0
    both, _ = dashboard.read_rows(logs)
    recorded = [run for run in both if run["folder"].parent == REFERENCE]
    assert recorded
    assert {run["numbers"] for run in recorded} == {dashboard.RECORDED}
    assert dashboard.RECORDED in dashboard._list_options(recorded)[0][0]


def test_a_run_of_another_machine_is_not_called_measured_here(put, logs):
    described = json.loads((RECORDED / "config.json").read_text())["machine"]
    put("elsewhere", machine=described | {"cpu": "another processor"})
    (run,), _ = dashboard.read_rows(logs, logs / "none")
    assert run["numbers"] == dashboard.ELSEWHERE


def test_filters_and_sorts(put, logs):
    put("a", strategy="ddp", processes=2)
    put("b", strategy="fsdp", processes=4, status="failed", model="mlp")
    put("c", strategy="ddp", processes=4, began=time.time() - 7200)
    put("gpu", strategy="gpu", device="cuda:0", processes=1)
    known, _ = dashboard.read_rows(logs, logs / "none")

    def chosen(**filters):
        return set(names_of(dashboard.select(known, **filters)))

    assert chosen(strategy="ddp") == {"a", "c"}
    assert chosen(ranks=4) == {"b", "c"}
    assert chosen(status="failed") == chosen(model="mlp tiny") == {"b"}
    assert chosen(device="GPU") == {"gpu"}
    by_strategy = dashboard.select(known, sort="strategy and ranks")
    assert [run["strategy"] for run in by_strategy] == ["ddp", "ddp", "fsdp", "gpu"]
    with pytest.raises(ValueError, match="expected one of newest first"):
        dashboard.select(known, sort="colour")
    with pytest.raises(TypeError, match="no filter .'colour'.: expected strategy, model"):
        dashboard.select(known, colour="red")


def test_broken_folders_are_counted_and_break_nothing(put, logs):
    good = put("good")
    for name, config, said in (
        ("half", '{"strategy": "dd', '{"status": "ok"}'),
        ("list", "[1, 2]", '{"status": "ok"}'),
        ("empty", "", ""),
        ("odd", json.dumps({"model": "gpt"}), '{"status": "ok"}'),
        ("null", (good / "config.json").read_text(), "[]"),
        ("text", (good / "config.json").read_text(), '{"status": "ok", "samples_per_second": 7}'),
    ):
        (logs / name).mkdir()
        (logs / name / "config.json").write_text(config)
        (logs / name / "summary.json").write_text(said)
    (logs / "command").mkdir()
    (logs / "command" / "summary.json").write_text('{"status": "ok"}')
    (logs / "a_file").write_text("no folder")
    (logs / "no_run").mkdir()
    (logs / "loop").symlink_to(logs / "loop")
    known, unreadable = dashboard.read_rows(logs, logs / "none")
    found = {run["folder"].name: run["status"] for run in known}
    assert found == {"good": "ok", "null": "running"}  # a torn summary is no verdict
    assert unreadable == 6
    assert "6 folders hold no record" in dashboard.table(logs, numbers=dashboard.HERE).caption
    assert dashboard.read_rows(logs / "missing", logs / "none") == ([], 0)


def test_a_record_that_says_running_without_anybody_is_shown_as_lost(put, logs):
    folder = put("a", status="running")
    (folder / "ranks" / "0.beat").write_text("  1234567         5\n")
    assert dashboard.read_rows(logs, logs / "none")[0][0]["status"] == "running"
    for path in [*folder.rglob("*")]:
        os.utime(path, (1e9, 1e9))
    assert dashboard.read_rows(logs, logs / "none")[0][0]["status"] == "lost"


def run(folder):
    return runs.Run(folder)


def test_compares_by_table_and_by_each_picture(put):
    one = put("one", processes=1, strategy="gpu")
    two = put("two")
    for how in ("table", "speed", "loss", "memory"):
        shown = dashboard.compare_runs([run(one), run(two)], how)
        assert "<table" in shown if how == "table" else 'alt="' in shown
    cores = {"cpu": "a", "cores": 4, "memory_bytes": 1, "gpus": []}
    for folder in (one, two):
        config = json.loads((folder / "config.json").read_text()) | {"machine": cores}
        (folder / "config.json").write_text(json.dumps(config))
    assert "Speed-up" in dashboard.compare_runs([run(one), run(two)], "more ranks, same batch")


def test_the_settings_that_differ_are_named(put):
    shown = dashboard.compare_runs([run(put("a")), run(put("b", global_batch=64, lr=0.5))], "speed")
    assert "also differ in: global batch (32, 64); lr (0.001, 0.5)" in shown
    assert "also differ" not in dashboard.compare_runs([run(put("c")), run(put("d"))], "speed")


@pytest.mark.parametrize(
    ("change", "how", "why"),
    [
        ({"model": "mlp"}, "speed", "different models do different work"),
        ({"size": "small"}, "memory", "models of different size"),
        ({"global_batch": 64}, "loss", "different samples"),
        ({"corpus_crc32": 1}, "loss", "different texts"),
        ({"device": "cuda:0", "processes": 1}, "more ranks, same batch", "one kind of device"),
        ({"status": "failed"}, "speed", "expected ok. Launch it again, or leave it out"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(put, change, how, why):
    gpus = json.loads((RECORDED / "config.json").read_text())["machine"] | {"gpus": ["A GPU"]}
    chosen = [run(put("a", machine=gpus)), run(put("b", machine=gpus, **change))]
    with pytest.raises(ValueError, match=why):
        dashboard.compare_runs(chosen, how)
    assert "<table" in dashboard.compare_runs(chosen, "table")


def test_a_cpu_rank_is_never_drawn_as_a_gpu(put):
    gpus = json.loads((RECORDED / "config.json").read_text())["machine"] | {"gpus": ["A GPU"]}
    chosen = [run(put("c")), run(put("g", machine=gpus, device="cuda:0", processes=1))]
    shown = dashboard.compare_runs(chosen, "speed")
    assert "2 ranks (CPU)" in shown
    assert "1 rank (GPU)" in shown


def test_too_many_runs_and_runs_that_are_gone_are_refused(put, logs):
    folder = put("a")
    with pytest.raises(ValueError, match="choose 12 or fewer"):
        dashboard.compare_runs([run(folder)] * 13, "table")
    with pytest.raises(ValueError, match="no longer there"):
        dashboard.compare_runs([run(logs / "gone")], "speed")
    config = json.loads((folder / "config.json").read_text())
    del config["machine"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="is incomplete"):
        dashboard.compare_runs([run(folder)], "speed")


def test_the_controls_choose(put, logs, picture):
    put("one", strategy="gpu", processes=1)
    two = put("two")
    controls = dashboard.show(logs)
    assert all(control.description for control in controls.values())
    controls["strategy"].value = "gpu"
    assert ">one</td>" in picture.html
    assert ">two</td>" not in picture.html
    put("three")  # began meanwhile
    controls["strategy"].value = "ddp"
    assert ">three</td>" in picture.html
    controls["chosen"].value = (str(two),)
    controls["compare"].value = "loss"
    assert "<img" in picture.html
    controls["numbers"].value = dashboard.RECORDED
    assert controls["chosen"].value == ()
    assert "<table" in picture.html


def test_an_empty_dashboard_is_shown(logs, monkeypatch, picture):
    monkeypatch.setattr(dashboard, "read_rows", lambda logs: ([], 0))
    dashboard.show(logs)
    assert "No runs" in dashboard.table(logs).caption


def test_a_thousand_runs_are_quick(put, logs):
    """Read anew each time: quick enough without remembering what was read before."""
    first = put("run-0000")
    for number in range(1, 1000):
        folder = logs / f"run-{number:04d}"
        folder.mkdir()
        for name in ("config.json", "summary.json"):
            os.link(first / name, folder / name)
    began = time.process_time()  # of this process: other work on the machine does not count
    known, _ = dashboard.read_rows(logs, logs / "none")
    assert time.process_time() - began < 3
    assert len(known) == 1000
    (first / "summary.json").unlink()  # the others are links to the same file
    (first / "summary.json").write_text(json.dumps({"status": "interrupted"}))
    assert dashboard.read_rows(logs, logs / "none")[0] != known, "a change is seen at the next look"
