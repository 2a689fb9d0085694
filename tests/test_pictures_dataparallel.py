"""The figures of notebook 03, and the phases that they are drawn from. Nothing is launched."""

import gzip
import json

import pytest

pytest.importorskip("matplotlib")  # a GPU machine may lack all of the notebook side

from bootcamp import machine
from bootcamp.drawing import style as frame
from bootcamp.records import trace
from bootcamp.records.runs import Run
from bootcamp_lessons.diagrams import dataparallel

PHASES = (
    ("Optimizer.zero_grad#AdamW.zero_grad", 10, 5),
    ("scatter", 20, 10),
    ("replicate", 30, 100),
    ("parallel forward", 200, 300),
    ("gather", 500, 20),
    ("backward", 520, 400),
    ("reduce", 920, 30),
    ("Optimizer.step#AdamW.step", 950, 40),
)


def _event(name, start, length, thread=1, kind="user_annotation"):
    return {"ph": "X", "cat": kind, "name": name, "tid": thread, "ts": start, "dur": length}


def _events():
    """A step of 1 ms, out of order, with what is no phase: a part within one, another thread's,
    an operator, and a range after the step's end of another name."""
    events = [_event(name, start, length) for name, start, length in reversed(PHASES)]
    events.append(_event("inside", 210, 50))
    events.append(_event("gloo:all_reduce", 300, 50, thread=2))
    events.append(_event("aten::mm", 250, 50, kind="cpu_op"))
    return [*events, _event("training_step", 0, 1000)]


def _write(folder, name="dp_by_hand"):
    (folder / "ranks").mkdir(parents=True)
    config = {"strategy": name, "processes": 1, "device": "cpu", "cores_per_rank": 2}
    config |= {"machine": {"cpu": machine.cpu_name(), "cores": 2, "gpus": []}}
    config |= {"versions": {"torch": "2.99.0"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "summary.json").write_text(json.dumps({"status": "ok"}))
    (folder / "ranks" / "0.trace.json").write_text(json.dumps({"traceEvents": _events()}))
    return Run(folder)


def test_phases_are_read_from_the_trace_in_their_order(tmp_path):
    run = _write(tmp_path / "run")
    found = trace.time_phases(run.folder / "ranks" / "0.trace.json")
    names = [name.partition("#")[0] for name, _, _ in PHASES]
    assert list(found) == names
    assert list(found.values()) == pytest.approx([length / 1e6 for _, _, length in PHASES])


def test_phases_of_one_name_are_added_up_and_a_packed_trace_is_read(tmp_path):
    events = [_event("training_step", 0, 100), _event("reduce", 1, 10), _event("reduce", 20, 5)]
    path = tmp_path / "0.trace.json.gz"
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file)
    assert trace.time_phases(path) == pytest.approx({"reduce": 15e-6})


def test_a_trace_without_a_step_is_an_error(tmp_path):
    path = tmp_path / "0.trace.json"
    path.write_text(json.dumps({"traceEvents": [_event("scatter", 0, 10)]}))
    with pytest.raises(ValueError, match="0.trace.json holds no whole step"):
        trace.time_phases(path)


def test_the_drawn_phases_fill_the_step(tmp_path):
    figure = dataparallel.phases(_write(tmp_path / "a"), _write(tmp_path / "b", "other"))
    for axes in figure.axes:
        bars = list(axes.patches)
        assert sum(bar.get_width() for bar in bars) == pytest.approx(1.0)  # milliseconds
        for bar, after in zip(bars, bars[1:], strict=False):
            assert after.get_x() == pytest.approx(bar.get_x() + bar.get_width())
    assert [a.get_title(loc="left").split(",")[0] for a in figure.axes] == ["dp_by_hand", "other"]
    assert "backward 0.4 ms" in frame.alt(figure)
    assert "measured here" in frame.alt(figure)


def test_workers_are_told_in_times_of_one_alone():
    loop = {"alone": [0.01, 0.012], "threads": [0.03, 0.02], "processes": [0.0105, 0.02]}
    step = {"alone": [0.02, 0.01], "threads": [0.03, 0.03], "processes": [0.011, 0.03]}
    rows = [{"work": "python loop", **loop}, {"work": "replica step", **step}]
    figure = dataparallel.workers(rows, cores=2)
    said = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert said == ["10 ms", "20 ms\n2.0×", "10 ms\n1.1×", "10 ms", "30 ms\n3.0×", "11 ms\n1.1×"]
    assert "on 2 cores" in frame.alt(figure)
    assert "on 1 core." in frame.alt(dataparallel.workers(rows, cores=1))


def test_the_computed_memory_says_that_it_is_computed():
    kinds = {"parameters": 1e6, "gradients": 1e6, "activations": 5e6, "outputs": 2e6}
    bars = {"DataParallel, device 0": kinds | {"optimizer state": 2e6}, "others": kinds}
    figure = dataparallel.memory_by_device(bars, "By formula.")
    assert "computed, not measured" in figure.get_suptitle()
    assert [text.get_text().strip() for text in figure.axes[0].texts] == ["11 MB", "9 MB"]
    assert "optimizer state 2" in frame.alt(figure)


def test_the_picture_of_the_phases_is_complete():
    figure = dataparallel.five_phases()
    words = " ".join(text.get_text() for text in figure.axes[0].texts)
    for phase in ("1 scatter", "2 replicate", "3 forward", "4 gather", "5 reduce"):
        assert phase in words
    assert "thrown away" in frame.alt(figure)
    assert frame.png(figure).startswith(b"\x89PNG")
