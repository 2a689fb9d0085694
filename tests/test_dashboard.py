"""The dashboard of all runs, without a browser."""

import json
import shutil
import time

import pytest

pytest.importorskip("matplotlib")

from bootcamp.paths import REFERENCE
from bootcamp.records import runs
from bootcamp.widgets import dashboard

RECORDED = REFERENCE / "xeon-2core-ddp-2"
MACHINE = json.loads((RECORDED / "config.json").read_text())["machine"]


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "logs"


@pytest.fixture
def put(logs):
    """A function that puts a copy of a recorded run into logs/, with some settings changed."""

    def copy(name, status="ok", began=None, **config) -> runs.Run:
        folder = logs / name
        shutil.copytree(RECORDED, folder)
        written = json.loads((folder / "config.json").read_text())
        written["started_unix_seconds"] = time.time() if began is None else began
        (folder / "config.json").write_text(json.dumps(written | config))
        said = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps(said | {"status": status}))
        return runs.Run(folder)

    return copy


def names_of(rows):
    return [row["folder"].name for row in rows]


def read_own(logs):
    """The rows of logs/ alone, without the recorded runs, and how many folders are no run's."""
    return dashboard.read_rows(logs, logs / "none")


def test_runs_are_listed_newest_first_with_where_they_were_measured(put, logs):
    put("old", began=1000.0, machine=MACHINE | {"cpu": "another processor"})
    put("new")
    own, unreadable = read_own(logs)
    assert (names_of(own), unreadable) == (["new", "old"], 0)
    assert own[1]["numbers"] == dashboard.ELSEWHERE
    both, _ = dashboard.read_rows(logs)
    recorded = [row for row in both if row["folder"].parent == REFERENCE]
    assert {row["numbers"] for row in recorded} == {dashboard.RECORDED}
    assert dashboard.RECORDED in str(dashboard.table(logs))


CHOSEN = [
    ({"strategy": "ddp"}, ["a", "c"]),
    ({"ranks": 4}, ["b", "c"]),
    ({"status": "failed"}, ["b"]),
    ({"model": "mlp tiny"}, ["b"]),
    ({"device": "GPU"}, ["gpu"]),
    ({"sort": "strategy and ranks"}, ["a", "c", "b", "gpu"]),
]


def test_runs_are_filtered_and_sorted(put, logs):
    put("gpu", strategy="gpu", device="cuda:0", processes=1)
    put("a", strategy="ddp", processes=2)
    put("b", strategy="fsdp", processes=4, status="failed", model="mlp", began=time.time() - 60)
    put("c", strategy="ddp", processes=4, began=time.time() - 7200)
    rows, _ = read_own(logs)
    for chosen, expected in CHOSEN:
        assert names_of(dashboard.select(rows, **chosen)) == expected, chosen
    with pytest.raises(ValueError, match="expected one of newest first"):
        dashboard.select([], sort="colour")
    with pytest.raises(TypeError, match="no filter .'colour'.: expected strategy, model"):
        dashboard.select([], colour="red")


def test_broken_folders_are_counted_and_break_nothing(put, logs):
    config = (put("good").folder / "config.json").read_text()
    for name, written, said in (
        ("half", '{"strategy": "dd', '{"status": "ok"}'),
        ("list", "[1, 2]", '{"status": "ok"}'),
        ("empty", "", ""),
        ("odd", json.dumps({"model": "gpt"}), '{"status": "ok"}'),
        ("null", config, "[]"),
        ("text", config, '{"status": "ok", "samples_per_second": 7}'),
    ):
        (logs / name).mkdir()
        (logs / name / "config.json").write_text(written)
        (logs / name / "summary.json").write_text(said)
    (logs / "command").mkdir()
    (logs / "command" / "summary.json").write_text('{"status": "ok"}')
    (logs / "a_file").write_text("no folder")
    (logs / "no_run").mkdir()
    (logs / "loop").symlink_to(logs / "loop")
    rows, unreadable = read_own(logs)
    found = {row["folder"].name: row["status"] for row in rows}
    assert found == {"good": "ok", "null": "running"}  # a torn summary is no verdict
    assert unreadable == 6
    assert "6 folders hold no record" in dashboard.table(logs, numbers=dashboard.HERE).caption
    assert "No runs" in dashboard.table(logs, model="none").caption
    assert read_own(logs / "missing") == ([], 0)


def test_runs_are_compared_and_settings_that_differ_are_named(put):
    four = MACHINE | {"cores": 4}
    one, two = put("one", processes=1, strategy="gpu", machine=four), put("two", machine=four)
    for how in ("table", "speed", "loss", "memory", "more ranks, same batch"):
        shown = dashboard.compare_runs([one, two], how)
        assert "<table" in shown if how == "table" else 'alt="' in shown
        assert "also differ" not in shown
    other = put("other", machine=four, global_batch=64, lr=0.5)
    shown = dashboard.compare_runs([two, other], "speed")
    assert "also differ in: global batch (32, 64); lr (0.001, 0.5)" in shown


REFUSED = [
    ({"model": "mlp"}, "speed", "different models do different work"),
    ({"size": "small"}, "memory", "models of different size"),
    ({"global_batch": 64}, "loss", "different samples"),
    ({"corpus_crc32": 1}, "loss", "different texts"),
    ({"device": "cuda:0", "processes": 1}, "more ranks, same batch", "one kind of device"),
    ({"status": "failed"}, "speed", "expected ok. Launch it again, or leave it out"),
]


def test_runs_that_cannot_be_compared_are_refused_with_the_reason(put, logs):
    gpus = MACHINE | {"gpus": ["A GPU"]}
    run = put("a", machine=gpus)
    for number, (change, how, why) in enumerate(REFUSED):
        chosen = [run, put(f"b{number}", machine=gpus, **change)]
        with pytest.raises(ValueError, match=why):
            dashboard.compare_runs(chosen, how)
        assert "<table" in dashboard.compare_runs(chosen, "table")
    with pytest.raises(ValueError, match="choose 12 or fewer"):
        dashboard.compare_runs([run] * 13, "table")
    with pytest.raises(ValueError, match="no longer there"):
        dashboard.compare_runs([runs.Run(logs / "gone")], "speed")
    config = json.loads((run.folder / "config.json").read_text())
    del config["machine"]
    (run.folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="is incomplete"):
        dashboard.compare_runs([runs.Run(run.folder)], "speed")


def test_controls_choose(put, logs, picture):
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
    controls["chosen"].value = (str(two.folder),)
    controls["compare"].value = "loss"
    assert "<img" in picture.html
    controls["numbers"].value = dashboard.RECORDED
    assert controls["chosen"].value == ()
    assert "<table" in picture.html
