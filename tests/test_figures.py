"""Figures: hard ones can be read, and say their values and where these are from; they draw records.

figures.py has their values. All others are measured where lessons and slides show them.
"""

import json
import re

import pytest

pytest.importorskip("matplotlib")  # a GPU machine may lack all of the notebook side

import figures
import legible
import numpy as np
import records
from figures import list_bars, make_crowded, read_foot, read_texts

from bootcamp import machine
from bootcamp.drawing import plots
from bootcamp.records.runs import Run, name_runs
from bootcamp.scripts import strategies
from bootcamp_lessons import communication, forecasts
from bootcamp_lessons.diagrams import basics, predicted, scaling

CROWDED = "2 and 4 CPU ranks (4: more ranks than cores)"


@pytest.mark.parametrize("draw", figures.DRAWINGS)
def test_hard_figures_are_legible_and_say_their_values_and_origin(draw, make_run):
    runs = []
    for figure, words in draw(lambda *a, **how: runs.append(make_run(*a, **how)) or runs[-1]):
        legible.demand(figure)
        assert words in " ".join(f"{figure.alt} {read_texts(figure)}".split())
        assert figure.get_figwidth() == 10
        if runs:
            assert re.search(
                r"\d (CPU|GPU) ranks?[ (].*torch 2\.99\.0; (measured here|recorded)", figure.alt
            )
            assert figure.alt.endswith(read_foot(figure)[-40:])
        runs.clear()


def list_curves(figure, axes: int = 0) -> list[list[float]]:
    return [list(line.get_ydata()) for line in figure.axes[axes].lines]


def test_bars_and_curves_are_as_long_as_their_values(make_run):
    near = np.testing.assert_allclose
    near(list_bars(figures.draw_memory_of_gpus(make_run)), [10e6, 20e6, 30e6, 40e6])
    near(list_bars(figures.draw_sent_bytes(make_run)), [0, 0, 5e6, 30e6, 30e6])
    near(list_curves(figures.draw_left_out(make_run)), [[1, 2], [1.0, 1.5]])


# Origins and marks


def test_origins_name_each_machine_and_kind_of_rank(make_run):
    here = " ".join(machine.cpu_name().split())
    gpus = make_run("ddp", 2, device="cuda")
    figure = plots.throughput(make_run("cpu", 1, cpu="Other Processor"), make_run("ddp", 2), gpus)
    for origin in (
        "1 CPU rank on Other Processor, 8 cores, torch 2.99.0; recorded on another machine.",
        f"2 CPU ranks on {here}, 8 cores, torch 2.99.0; measured here.",
        "2 GPU ranks on NVIDIA H100 0, 8 cores, torch 2.99.0; measured here.",
    ):
        assert origin in read_foot(figure)
    _, cpu, gpu = (bar.get_facecolor() for bar in figure.axes[0].patches)
    assert cpu != gpu


def achieved(*runs):
    return plots.achieved(*runs, peak_flops_per_second=1e11)


@pytest.mark.parametrize(
    ("draw", "how", "hatch", "said"),
    [
        (plots.throughput, {"ranks": 4, "cores": 2}, "//", CROWDED),
        (plots.sent_bytes, {"ranks": 4, "cores": 2}, "//", CROWDED),
        (achieved, {"shared": True}, "xx", figures.SHARED),
    ],
)
def test_bars_of_crowded_runs_and_of_shared_cores_are_hatched(make_run, draw, how, hatch, said):
    sound = make_run("ddp", 2, cores=2)
    figure = draw(sound, make_run(**how))
    hatches = [bar.get_hatch() for bar in figure.axes[0].patches]
    half = len(hatches) // 2
    assert hatches == [None] * half + [hatch] * half
    assert said in read_foot(figure)
    assert said not in read_foot(draw(sound))


def is_crossed(figure) -> bool:
    """Whether the ground of all its axes is crossed, as a bar of shared cores is."""
    return all(any(patch.get_hatch() == "xx" for patch in axes.patches) for axes in figure.axes)


def test_curves_of_shared_cores_are_left_out_or_crossed(make_run):
    assert not is_crossed(figures.draw_left_out(make_run))
    assert is_crossed(plots.scaling(make_run("ddp", 1, shared=True), make_run("ddp", 2)))
    pair = (make_run("cpu", 1), make_run("ddp", 2, 180.0))
    shared = (make_run("cpu", 1, batch=128), make_run("ddp", 2, 999.0, batch=128, shared=True))
    figure = scaling.speed_up_by_batch([pair, shared])
    assert list(figure.axes[0].lines[0].get_xdata()) == [32]
    assert not is_crossed(figure)
    assert "Left out: 1 pair(s) of runs on shared cores." in read_foot(figure)
    assert is_crossed(scaling.speed_up_by_batch([shared]))


# Losses and speeds


def test_loss_differences_are_drawn_from_nothing_to_far_beyond_the_tolerance(make_run):
    far = make_run("ddp", 2, losses=(4.0, 3.0, 2.5, 2.35, 2.125 + 1e-6, 2.0))
    figure = plots.loss_curves(make_run("cpu", 1), far)
    lower = figure.axes[1]
    difference, tolerance = lower.lines
    assert set(tolerance.get_ydata()) == {1e-5}
    assert list(difference.get_ydata()) == pytest.approx([0, 0, 0, 0.1, 1e-6, 0])
    heights = lower.transData.transform([(0, value) for value in (0, 1e-7, 1e-6, 1e-5, 0.1)])[:, 1]
    assert min(heights[1:] - heights[:-1]) > 4, "each far enough from the others to be seen"
    assert min(lower.get_ylim()) < 0 < 0.1 < max(lower.get_ylim())
    assert "1.0e-01" in figure.alt


# The traced step


def list_spans(lane):
    return [(path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in lane.get_paths()]


def test_timeline_shows_each_ranks_lanes_and_their_overlap(make_run):
    lanes = plots.timeline(make_run("ddp", 2, traced=(0, 1))).axes[0].collections
    assert len(lanes) == 2 * 4
    for rank in (0, 1):
        compute, both, sends, waits = map(list_spans, lanes[4 * rank : 4 * rank + 4])
        assert compute == [pytest.approx((1, 5)), pytest.approx((6, 8))]
        assert sends == [pytest.approx((4, 7))]
        assert both == [pytest.approx((4, 5)), pytest.approx((6, 7))]
        assert waits == []
    heights = [lane.get_paths()[0].vertices[:, 1] for lane in lanes if lane.get_paths()]
    edges = [edge for height in heights for edge in (height.min(), height.max())]
    assert edges == pytest.approx(sorted(edges)), "no lane covers another"


def test_timeline_shows_who_waits_for_a_late_rank(make_run):
    """Rank 1 begins 2 ms later: the wait of rank 0 is light, and hides nothing of its sending."""
    run = make_run("ddp", 2, traced=(0, 1))
    path = run.folder / "ranks" / "1.trace.json"
    late = json.loads(path.read_text())
    for event in late["traceEvents"]:
        event["ts"] += 2000
    path.write_text(json.dumps(late))
    figure = plots.timeline(run)
    _, both, sends, waits = map(list_spans, figure.axes[0].collections[:4])
    assert (waits, sends, both) == ([pytest.approx((4, 6))], [pytest.approx((6, 7))], sends)
    assert "rank 0 computes 6.0 ms, both at once 1.0 ms, sends 1.0 ms, waits 2.0 ms" in figure.alt
    assert figure.axes[0].get_xlim() == (0, 12)


# What is refused


def without_ranks(run: Run) -> Run:
    """A run whose ranks have left no record."""
    for path in (run.folder / "ranks").glob("*.json"):
        path.unlink()
    return Run(run.folder)


scale = plots.scaling
REFUSED = [
    ("the same global batch, given 16 .*, 32", lambda m: scale(m("ddp", 1, batch=16), m())),
    ("batch per rank, given 32.*, 16", lambda m: scale(m("ddp", 1), m(), kind="weak")),
    ("no run with one rank was given .*Launch one", lambda m: scale(m("ddp", 2), m("ddp", 4))),
    ("only runs with more ranks than cores", lambda m: scale(make_crowded(m))),
    ("one kind of device, given CPU .*, GPU", lambda m: scale(m("ddp", 1), m(device="cuda"))),
    ("given more than once with 2 rank", lambda m: scale(m("ddp", 1), m(), m())),
    ("expected all on", lambda m: achieved(m(), m(device="cuda"))),
    ("more than zero", lambda m: plots.achieved(m(), peak_flops_per_second=0)),
    ("launch with trace_step=5", lambda m: plots.timeline(m())),
    ("recorded no losses", lambda m: plots.throughput(m(losses=(None, None)))),
    ("ended with status oom, expected ok", lambda m: plots.memory(m("ddp", 1, status="oom"))),
    ("at least one run", lambda m: plots.memory()),
    ("holds no record of a rank", lambda m: plots.memory(without_ranks(m()))),
    (
        "no number of GPUs",
        lambda m: predicted.what_breaks(forecasts.grow("Llama 3 405B", counts=(8,))),
    ),
]


def test_figures_refuse_runs_that_do_not_fit(make_run):
    for message, draw in REFUSED:
        with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
            draw(make_run)


def test_runs_with_one_label_are_told_apart(make_run):
    runs = [make_run(optimizer="sgd"), make_run(optimizer="adamw")]
    assert name_runs([*runs, make_run("cpu", 1), make_run("cpu", 1)]) == [
        "ddp, 2 ranks (CPU), optimizer sgd",
        "ddp, 2 ranks (CPU), optimizer adamw",
        "cpu, 1 rank (CPU), run 1",
        "cpu, 1 rank (CPU), run 2",
    ]
    axes = ({"pipeline": 2, "data": 1}, {"pipeline": 1, "data": 2})
    along = ["ddp, 2 ranks (CPU), 2 along pipeline", "ddp, 2 ranks (CPU), 2 along data"]
    assert name_runs([make_run(mesh=mesh) for mesh in axes]) == along
    names = name_runs([make_run(), make_run(cpu="Other")])
    assert [name.rpartition(", ")[2] for name in names] == ["measured here", "recorded"]


def test_show_displays_an_image_with_its_alternative_and_leaves_no_figure_open(displayed):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure = pyplot.figure()
    figure.suptitle("a reader's own")
    assert plots.show(figure) is None
    assert figure.number not in pyplot.get_fignums()
    assert displayed.html.startswith('<img src="data:image/png;base64,iVBOR')
    assert 'alt="a reader&#x27;s own"' in displayed.html


# Lessons


def test_family_tree_goes_from_the_baseline_to_hsdp():
    way = re.findall(r"_train_(\w+)\.py", basics.family_tree().alt)
    assert [strategies.SCRIPTS[name].parent for name in way] == [None, *way[:-1]]


# Rooflines and sweeps


def test_published_runs_are_under_their_roofs():
    """And not if the links were eight times as slow, bits taken for bytes."""
    rows = communication.published()
    assert {row["axis"] for row in rows} == {"FSDP", "tensor", "pipeline"}
    assert len(rows) > 50
    assert not [row for row in rows if row["reached"] > row["roof"]]
    slow = [communication.roof(row["axis"], row["ratio"] / 8) for row in rows]
    assert sum(row["reached"] > roof for row, roof in zip(rows, slow, strict=True)) > 5


def test_sweep_tells_fitted_sizes_from_held_out_ones(make_run):
    left, right = plots.all_reduce_sweep(*figures.make_sweep(make_run, figures.bent)).axes
    lines = {line.get_label(): line for line in left.lines}
    assert set(lines["fitted to"].get_xdata()) == {n for n in records.SIZES if n >= 256}
    assert set(lines["held out"].get_xdata()) == {n for n in records.HELD_OUT if n >= 256}
    assert max(lines["too small for the line"].get_xdata()) < 256
    assert lines["fitted line"].get_ydata()[-1] == pytest.approx(1e3 * figures.bent(2**25))
    assert lines["median call"].get_ydata()[-1] == pytest.approx(3e3 * figures.bent(2**25))
    bus = {line.get_label(): line for line in right.lines}["fitted to"].get_ydata()
    assert bus[-1] == pytest.approx(1.5 * 2**25 / figures.bent(2**25) / 1e9), "2(N-1)/N, 4 ranks"
