"""Notebook 05: its pictures, how it reads Horovod's timeline, and the records that stand in."""

import csv
import gzip
import json
import re

import pytest

pytest.importorskip("matplotlib")

from bootcamp.experiments import replay
from bootcamp.paths import NOTEBOOKS, REFERENCE, ROOT, SRC
from bootcamp.records import runs
from bootcamp_lessons.diagrams import horovod as diagrams

LESSON = REFERENCE / "05_horovod"
SOURCE = NOTEBOOKS / "sources" / "05_horovod.py"


def said(figure):
    return " ".join(text.get_text() for axes in figure.axes for text in axes.texts)


def ring_records(world=3):
    """What the ranks of src/snippets/horovod_ring.py print, simulated."""
    held = [[[10**rank * (piece + 1)] for piece in range(world)] for rank in range(world)]
    total = [sum(10**rank for rank in range(world)) * (piece + 1) for piece in range(world)]
    records = [{"held": [held[rank]], "sent": [], "total": total} for rank in range(world)]
    for step in range(2 * (world - 1)):
        before, held = held, [[list(piece) for piece in rank] for rank in held]
        for rank in range(world):
            sent, to = (rank - step) % world, (rank + 1) % world
            added = before[to][sent][0] if step < world - 1 else 0
            held[to][sent] = [before[rank][sent][0] + added]
            records[rank]["sent"].append(sent)
        for rank in range(world):
            records[rank]["held"].append(held[rank])
    return records


@pytest.mark.parametrize("world", [2, 3, 4])
def test_the_ring_is_drawn_as_the_ranks_printed_it(world):
    records = ring_records(world)
    assert all(sum(record["held"][-1], []) == record["total"] for record in records)
    figure = diagrams.ring(records)
    words = said(figure)
    assert words.count("▶") - 1 == world * 2 * (world - 1), "one more explains the mark"
    assert f"after step {2 * (world - 1)}" in words
    assert str(records[0]["total"][0]) in words
    assert "rank 0 held [[1]" in figure.alt


def horovod_file(folder, fused=True, closed=True):
    """A timeline as Horovod writes it: two gradients and the loss, in two steps."""
    names = ["allreduce.weight", "allreduce.bias", "allreduce.mean_loss", "broadcast.weight"]
    events = [
        {"name": "process_name", "ph": "M", "pid": k, "args": {"name": n}}
        for k, n in enumerate(names)
    ]
    clock = iter(range(0, 100_000, 1000))

    def span(name, pids, inside=()):
        events.extend({"ph": "B", "name": name, "ts": next(clock), "pid": pid} for pid in pids)
        for inner in inside:
            span(inner, pids)
        events.extend({"ph": "E", "ts": next(clock), "pid": pid} for pid in pids)

    span("BROADCAST", [3])
    for _ in range(2):
        for pids in ([[0, 1]] if fused else [[0], [1]]) + [[2]]:
            span("NEGOTIATE_ALLREDUCE", pids)
            span("ALLREDUCE", pids, ["GLOO_ALLREDUCE"])
    text = ",\n".join(json.dumps(event) for event in events)
    path = folder / "timeline.json"
    path.write_text(f"[\n{text}{']' if closed else ','}")
    return path


@pytest.mark.parametrize(("fused", "all_reduces"), [(True, 2), (False, 3)])
def test_fused_tensors_are_one_all_reduce(tmp_path, fused, all_reduces):
    steps = diagrams.read_timeline(horovod_file(tmp_path, fused))
    assert [step["all_reduces"] for step in steps] == [all_reduces] * 2
    tensors = {tensor for tensor, *_ in steps[1]["spans"]}
    assert tensors == {"weight", "bias", "mean_loss"}
    assert all(start < end for *_, start, end in steps[1]["spans"])


def test_a_timeline_may_be_cut_off_or_compressed(tmp_path):
    path = horovod_file(tmp_path, closed=False)
    whole = diagrams.read_timeline(path)
    assert len(whole) == 2
    with gzip.open(f"{path}.gz", "wt") as file:
        file.write(path.read_text())
    path.unlink()
    assert diagrams.read_timeline(path) == whole


def test_the_timeline_says_what_it_shows():
    run = replay.Run(LESSON / "timeline")
    steps = diagrams.read_timeline(run.folder / "timeline.json")
    figure = diagrams.timeline(steps[-1], run)
    assert f"{steps[-1]['all_reduces']} all-reduces" in figure.get_suptitle()
    assert "78 tensors" in figure.alt
    assert "recorded run timeline" in figure.alt
    looks = [text.get_text() for text in figure.legends[0].get_texts()]
    assert looks == [words for words, _ in diagrams.ACTIVITIES.values()]


def test_published_numbers_name_their_source():
    with open(SRC / "bootcamp" / "costs" / "published" / "horovod.csv") as file:
        rows = list(csv.DictReader(file))
    assert all("Horovod 0.28.1" in row["source"] for row in rows)
    figure = diagrams.published_scaling(rows)
    assert "VGG-16 68 %" in figure.alt
    assert rows[0]["source"] in figure.alt
    assert "coordinator" in diagrams.one_cycle().alt


def experiments():
    """The names of the runs that the notebook asks for."""
    text = SOURCE.read_text()
    by_name = set(re.findall(r'horovod\.launch\(\s*"([\w-]+)"', text))
    return by_name | set(re.findall(r'^    "([\w-]+)": \{"HOROVOD', text, re.M))


def test_every_run_of_the_notebook_is_recorded_and_nothing_else():
    assert {path.name for path in LESSON.iterdir()} == experiments()
    for name in experiments():
        run = replay.Run(LESSON / name)
        failed = name == "only-rank-0"
        assert run.status == ("failed" if failed else "ok"), name


def test_records_hold_no_place_of_a_machine():
    for path in (path for path in LESSON.rglob("*") if path.is_file()):
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt") as file:
            text = file.read()
        assert str(ROOT) not in text, path
        assert not re.search(r"/(root|home|tmp|work)/", text), path


def test_without_the_framework_a_run_is_its_record(monkeypatch, capsys):
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "horovod")
    horovod = replay.RecordedRuns("05_horovod", needs="horovod")
    assert "make horovod" in repr(horovod)
    run = horovod.launch("horovod", "horovod", 2, steps=3)
    assert "make horovod" in capsys.readouterr().out
    assert run.status == "ok"
    assert not run.measured_here
    assert len(run.ranks) == 2
    with pytest.raises(FileNotFoundError, match="there is no such record"):
        horovod.launch("nothing", "horovod", 2)


def test_what_is_kept_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "OWN_FOLDERS", {"/secret/place": "."})
    run = tmp_path / "run"
    (run / "ranks").mkdir(parents=True)
    lines = "[1]<stdout>:second\n[0]<stdout>:first /secret/place/x\n[0]<stdout>:  more\n"
    (run / "ranks" / "launcher.out").write_text(lines)
    (run / "ranks" / "0.beat").write_text("beat")
    (run / "ranks" / "0.err").write_text("")
    (run / "timeline.json").write_text("x" * 200_000)
    replay.keep_run(runs.Run(run), tmp_path / "record")
    kept = {
        str(path.relative_to(tmp_path / "record")) for path in (tmp_path / "record").rglob("*.*")
    }
    assert kept == {"ranks/launcher.out", "timeline.json.gz"}
    assert replay.read_printed_lines(runs.Run(tmp_path / "record")) == [
        "first ./x",
        "  more",
        "second",
    ]


def test_a_timeline_is_counted():
    unfused, default = (replay.Run(LESSON / name) for name in ("no-fusion", "timeline"))
    assert diagrams.count_all_reduces(unfused) == diagrams.count_tensors(default) == 78
    assert diagrams.count_all_reduces(default) < 78


def test_the_line_that_a_rank_stood_in_is_found(tmp_path):
    script = tmp_path / "hangs.py"
    script.write_text("first\n    second\n")
    stacks = f'[1]<stderr>:  File "{script}", line 2 in <module>\nTraceback\n'
    assert diagrams.find_last_lines(stacks, script) == ["rank 1 stands in line 2: second"]
