"""Figures: all can be read and say where their numbers are from; those of runs draw the record."""

import json
import re

import pytest

pytest.importorskip("matplotlib")  # a GPU machine may lack all of the notebook side

import embed
import legible
import matplotlib
import numpy as np
from figures import (
    FIGURES,
    list_bars,
    list_figures,
    make_crowded,
    read_foot,
    read_texts,
)
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.ticker import FixedLocator, NullFormatter
from records import BYTES, MB

from bootcamp import machine
from bootcamp.drawing import plots, style
from bootcamp.drawing.palette import KINDS
from bootcamp.records.runs import Run, name_runs
from bootcamp_lessons.diagrams import scaling

ORIGIN = re.compile(
    r"measured here|recorded|(nothing here is|not) measured|published|by (the \w+'s )?formula|"
    r"predicted|in theory|one unit",
    re.IGNORECASE,
)
SHARED = "shared with another run, so the times mean nothing"


def test_registry_has_every_figure_of_the_package():
    assert {name.partition(":")[0] for name in FIGURES} >= list_figures().keys()


@pytest.mark.parametrize("name", FIGURES)
def test_figure_is_legible_and_names_its_values_and_origin(name, make_run):
    runs = []
    figure = FIGURES[name](lambda *args, **how: runs.append(make_run(*args, **how)) or runs[-1])
    assert legible.faults(figure, style.FOOT) == []
    assert figure.get_suptitle()
    assert figure.get_figwidth() == 10
    assert len(figure.alt) > 60
    assert re.fullmatch(r".*\.", figure.alt), "its alternative is one paragraph of sentences"
    charts = [axes for axes in figure.axes if axes.axison]
    if not charts:
        return  # a drawing, which has no values
    assert re.search(r"\d", figure.alt)
    assert ORIGIN.search(" ".join(read_texts(figure).split()))
    for way in "xy":
        numbered = [axes for axes in charts if has_numbers(getattr(axes, f"{way}axis"))]
        labels = [axes.get_xlabel() if way == "x" else axes.get_ylabel() for axes in charts]
        assert any(labels) or not numbered, f"no label says what the numbers on {way} are"
    if runs:
        assert re.search(
            r"\d (CPU|GPU) ranks?[ (].*torch 2\.99\.0; (measured here|recorded)", figure.alt
        )
        assert figure.alt.endswith(read_foot(figure)[-40:])


def has_numbers(axis) -> bool:
    """Whether an axis counts, and does not name rows."""
    named = isinstance(axis.get_major_locator(), FixedLocator)
    return not named and not isinstance(axis.get_major_formatter(), NullFormatter)


@pytest.mark.parametrize(
    ("name", "height"),
    [
        ("plots.what_breaks", 465),
        ("plots.memory_by_part: two models", 465),
        ("three_axes.axes_map", 540),
    ],
)
def test_dense_figures_are_legible_on_a_slide(name, height):
    legible.watch_slides(embed)
    assert "<img" in embed.to_html(FIGURES[name](), height, title=True)


def test_style_neither_leaks_nor_takes_over_the_readers(make_run):
    with matplotlib.rc_context({"font.size": 5, "axes.facecolor": "red"}):
        before = dict(matplotlib.rcParams)
        figure = plots.throughput(make_run())
        style.png(figure)
        assert dict(matplotlib.rcParams) == before
    assert figure.axes[0].xaxis.label.get_fontsize() == style.STYLE["axes.labelsize"]
    assert figure.axes[0].get_facecolor() == (1, 1, 1, 1)


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


CROWDED = "2 and 4 CPU ranks (4: more ranks than cores)"


@pytest.mark.parametrize(
    ("draw", "how", "hatch", "said"),
    [
        (plots.throughput, {"ranks": 4, "cores": 2}, "//", CROWDED),
        (achieved, {"ranks": 4, "cores": 2}, "//", CROWDED),
        (plots.sent_bytes, {"ranks": 4, "cores": 2}, "//", CROWDED),
        (plots.throughput, {"shared": True}, "xx", SHARED),
        (achieved, {"shared": True}, "xx", SHARED),
    ],
)
def test_bars_of_crowded_runs_and_of_shared_cores_are_hatched(make_run, draw, how, hatch, said):
    sound = make_run("ddp", 2, cores=2)
    hatches = [bar.get_hatch() for bar in draw(sound, make_run(**how)).axes[0].patches]
    half = len(hatches) // 2
    assert hatches == [None] * half + [hatch] * half
    assert said in read_foot(draw(sound, make_run(**how)))
    assert said not in read_foot(draw(sound))


def is_crossed(figure) -> set[bool]:
    """Whether the ground of its axes is crossed, as a bar of shared cores is."""
    return {any(patch.get_hatch() == "xx" for patch in axes.patches) for axes in figure.axes}


def list_ranks_drawn(figure) -> list[int]:
    """The numbers of ranks that all curves of a scaling have a point at."""
    (ranks,) = {tuple(line.get_xdata()) for axes in figure.axes for line in axes.lines}
    return list(ranks)


LEFT_OUT = [  # of a scaling: what it is given, the ranks that it draws, what it leaves out
    (lambda m: [m("ddp", 1), m("ddp", 4)], [1, 4], None),
    (
        lambda m: [m("ddp", 1), m("ddp", 2), make_crowded(m)],
        [1, 2],
        "ddp on 4 ranks. More ranks than cores measure no scaling.",
    ),
    (
        lambda m: [m("ddp", n, cores=2, cores_per_rank=2) for n in (1, 2)],
        [1],
        "ddp on 2 ranks. More ranks than cores",
    ),
    (
        lambda m: [m("ddp", 1), m("ddp", 2), m("ddp", 4, shared=True)],
        [1, 2],
        "ddp on 4 ranks. Their cores were shared with another run.",
    ),
    (
        lambda m: [m("cpu", 1, 50.0), m("ddp", 1), m("ddp", 2)],
        [1, 2],
        "cpu on 1 rank. The curves begin with other runs on 1 rank.",
    ),
]


@pytest.mark.parametrize(("runs", "ranks", "missing"), LEFT_OUT)
def test_scaling_draws_no_run_that_measures_none(make_run, runs, ranks, missing):
    figure = plots.scaling(*runs(make_run))
    assert list_ranks_drawn(figure) == ranks
    assert is_crossed(figure) == {False}
    for said in (read_foot(figure), figure.alt):
        assert f"Left out: {missing}" in said if missing else "Left out" not in said


def test_scaling_without_any_run_alone_is_drawn_crossed(make_run):
    many = [make_run("ddp", n, 100.0 * n, shared=n == 4) for n in (2, 4)]
    alone = make_run("ddp", 1, shared=True)
    figure = plots.scaling(alone, *many, make_crowded(make_run))
    assert list_ranks_drawn(figure) == [1, 2, 4]
    assert is_crossed(figure) == {True}
    for said in (read_foot(figure), figure.alt):
        assert SHARED in said
        assert "Left out: ddp on 4 ranks. More ranks than cores" in said


def test_speed_ups_leave_out_pairs_on_shared_cores_or_are_crossed(make_run):
    pairs = [(make_run("cpu", 1, batch=b), make_run("ddp", 2, 180.0, batch=b)) for b in (32, 64)]
    shared = (make_run("cpu", 1, batch=128), make_run("ddp", 2, 999.0, batch=128, shared=True))
    figure = scaling.speed_up_by_batch([*pairs, shared])
    assert list(figure.axes[0].lines[0].get_xdata()) == [32, 64]
    assert is_crossed(figure) == {False}
    assert "Left out: 1 pair(s) of runs on shared cores." in read_foot(figure)
    figure = scaling.speed_up_by_batch([shared])
    assert list(figure.axes[0].lines[0].get_xdata()) == [128]
    assert is_crossed(figure) == {True}
    assert SHARED in read_foot(figure)


# Losses


def test_loss_curves_that_are_equal_can_all_be_seen(make_run):
    runs = [make_run(name, 1, losses=[3.0, 2.0] * 25) for name in ("cpu", "ddp", "zero", "pp")]
    figure = plots.loss_curves(*runs)
    upper = figure.axes[0]
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[::-1, :, :3].astype(int)
    box = upper.get_window_extent()
    inside = pixels[int(box.y0) : int(box.y1), int(box.x0) : int(box.x1)]
    for line in upper.lines:
        ink, opaque = np.array(matplotlib.colors.to_rgb(line.get_color())), line.get_alpha() or 1
        colour = 255 * (opaque * ink + (1 - opaque))
        assert (np.abs(inside - colour).max(2) < 3).sum() > 200, line.get_label()


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


def test_loss_curves_name_what_is_no_number_and_who_failed(make_run):
    nan = float("nan")
    broken = make_run("zero", 2, losses=(4.0, 3.0, 2.0, 1.0, nan, nan))
    failed = make_run("ddp", 2, losses=(4.0, 3.0), status="failed")
    figure = plots.loss_curves(make_run("cpu", 1), broken, failed)
    assert "zero, 2 ranks (CPU): the loss is not a number in 2 steps, from 4" in read_foot(figure)
    assert "not a number" in figure.alt
    assert "ddp, 2 ranks (CPU), failed" in read_texts(figure)
    assert len(figure.axes[1].lines[1].get_ydata()) == 2


# Speeds


def test_throughput_is_the_median_after_warm_up_with_quartiles(make_run):
    figure = plots.throughput(make_run(speed=[1.0, 1.0, 1.0, 100.0, 600.0, 200.0]))
    assert list_bars(figure) == pytest.approx([200.0])
    (line,) = figure.axes[0].collections
    assert line.get_segments()[0][:, 0] == pytest.approx([150.0, 400.0])
    assert {"200.0 samples/s", "12,800 tokens/s"} <= set(read_texts(figure).split("\n"))
    assert "200.0 samples/s (150.0 to 400.0)" in figure.alt


def test_scaling_draws_speed_up_and_efficiency_beside_the_ideal(make_run):
    runs = [make_run("ddp", n, speed) for n, speed in ((4, 300.0), (1, 100.0), (2, 180.0))]
    left, right = plots.scaling(*runs).axes
    ideal, speedup = left.lines
    assert list(ideal.get_xdata()) == list(ideal.get_ydata()) == [1, 2, 4]
    assert speedup.get_ydata() == pytest.approx([1.0, 1.8, 3.0])
    full, efficiency = right.lines
    assert set(full.get_ydata()) == {100}
    assert efficiency.get_ydata() == pytest.approx([100.0, 90.0, 75.0])
    assert left.get_xlabel() == "CPU ranks, 1 core each"
    on_gpus = [make_run("ddp", ranks, device="cuda") for ranks in (1, 2)]
    assert plots.scaling(*on_gpus).axes[0].get_xlabel() == "GPUs, one rank each"


def test_scaling_holds_a_strategy_without_a_single_rank_against_the_baseline(make_run):
    runs = [make_run("cpu", 1), make_run("ddp", 2, 150.0), make_run("zero", 2, 120.0)]
    curves = plots.scaling(*runs).axes[0].lines[1:]
    assert [line.get_label() for line in curves] == ["ddp (1 rank: cpu)", "zero (1 rank: cpu)"]
    assert [line.get_ydata()[-1] for line in curves] == pytest.approx([1.5, 1.2])
    assert len({line.get_marker() for line in curves}) == 2


def test_achieved_is_a_share_of_all_ranks_peaks_or_of_the_cores_there_are(make_run):
    figure = achieved(make_run("cpu", 1, 50.0), make_run("ddp", 2, 80.0), make_crowded(make_run))
    assert list_bars(figure) == pytest.approx([50.0, 40.0, 50.0])
    assert "80.00 GFLOP/s\nof 200.0 GFLOP/s" in read_texts(figure)
    assert figure.axes[0].lines[0].get_xdata() == [100, 100]


# Memory and bytes


def test_memory_stacks_the_kinds_and_leaves_the_process_out(make_run):
    figure = plots.memory(make_run("ddp", 2))
    bars = figure.axes[0].patches
    assert list_bars(figure) == pytest.approx([10e6, 20e6, 30e6, 40e6] * 2)
    assert [bar.get_x() for bar in bars] == pytest.approx([0, 10e6, 30e6, 60e6] * 2)
    assert len({bar.get_hatch() for bar in bars}) == 4
    assert read_texts(figure).count("100 MB") == 2
    assert "process peak 4.32 GB" in read_texts(figure)
    assert figure.axes[0].get_xlim()[1] < 200e6
    assert [label.get_text() for label in figure.legends[0].get_texts()] == list(KINDS)
    assert "GPU peak 4.32 GB" in read_texts(plots.memory(make_run(device="cuda")))


def test_memory_of_many_equal_ranks_is_one_bar_in_the_unit_that_suits(make_run):
    sizes = {name: 1000 * size for name, size in BYTES.items()}
    figure = plots.memory(make_run("ddp", 8, sizes=sizes))
    assert list_bars(figure) == pytest.approx([10e9, 20e9, 30e9, 40e9])
    assert "ddp, each of 8 ranks" in read_texts(figure)
    assert figure.axes[0].xaxis.get_major_formatter()(50e9) == "50 GB"


@pytest.mark.parametrize(
    ("how", "drawn", "words"),
    [
        ({"sent": 31 * MB}, [31e6, 30e6], "counted 31 MB"),
        ({"sent": None}, [30e6], "not counted here"),
        ({"device": "cuda"}, [30e6], "not counted here"),
    ],
)
def test_sent_bytes_are_the_counted_ones_beside_the_formula(make_run, how, drawn, words):
    figure = plots.sent_bytes(make_run("ddp", 4, **how))
    assert list_bars(figure) == pytest.approx(drawn), "2(N-1)/N of 20 MB by formula"
    assert {"formula 30 MB", words} <= set(read_texts(figure).split("\n"))
    assert words in figure.alt


# The traced step


def list_spans(lane):
    return [(path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in lane.get_paths()]


def test_timeline_shows_each_ranks_lanes_and_their_overlap(make_run):
    figure = plots.timeline(make_run("ddp", 2, traced=(0, 1)))
    lanes = figure.axes[0].collections
    names = ["computes", "both at once", "sends", "waits"]
    assert [lane.get_label() for lane in lanes] == 2 * names
    for rank in (0, 1):
        compute, both, sends, waits = map(list_spans, lanes[4 * rank : 4 * rank + 4])
        assert compute == [pytest.approx((1, 5)), pytest.approx((6, 8))]
        assert sends == [pytest.approx((4, 7))]
        assert both == [pytest.approx((4, 5)), pytest.approx((6, 7))]
        assert waits == []
    assert figure.axes[0].get_xlim() == (0, 10)
    for words in ("computes 6.0 ms", "sends 3.0 ms, waits 0.0 ms", "both at once 2.0 ms"):
        assert read_texts(figure).count(words) == 2
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


def test_timeline_of_some_ranks_tells_no_waiting(make_run):
    figure = plots.timeline(make_run("ddp", 4, traced=(0, 2)))
    assert "No trace was recorded of rank 1 and 3." in read_foot(figure)
    assert "communicates 3.0 ms" in figure.alt
    assert "waits" not in figure.alt
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["rank 0", "rank 2"]


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
    ("'strong' or 'weak'", lambda m: scale(m("ddp", 1), kind="wide")),
    ("no run with one rank was given .*Launch one", lambda m: scale(m("ddp", 2), m("ddp", 4))),
    ("only runs with more ranks than cores", lambda m: scale(make_crowded(m))),
    ("one kind of device, given CPU .*, GPU", lambda m: scale(m("ddp", 1), m(device="cuda"))),
    ("all on one machine", lambda m: scale(m("ddp", 1), m(cpu="Other"))),
    ("with one size, given tiny .*, small", lambda m: scale(m("ddp", 1), m(size="small"))),
    ("given more than once with 2 rank", lambda m: scale(m("ddp", 1), m(), m())),
    ("expected all on", lambda m: achieved(m(), m(device="cuda"))),
    ("expected all with", lambda m: achieved(m(), m(dtype="bfloat16"))),
    ("more than zero", lambda m: plots.achieved(m(), peak_flops_per_second=0)),
    ("launch with trace_step=5", lambda m: plots.timeline(m())),
    ("recorded no losses", lambda m: plots.throughput(m(losses=(None, None)))),
    ("recorded no losses", lambda m: plots.loss_curves(m(losses=()))),
    ("at least one run", lambda m: plots.memory()),
    ("runs one after another", lambda m: plots.throughput([m()])),
]
REFUSED += [
    ("ended with status oom, expected ok", lambda m, draw=draw: draw(m("ddp", 1, status="oom")))
    for draw in (plots.throughput, scale, plots.memory, plots.sent_bytes, plots.timeline)
]
REFUSED += [
    ("holds no record of a rank", lambda m, draw=draw: draw(without_ranks(m())))
    for draw in (plots.throughput, plots.memory, plots.sent_bytes)
]


@pytest.mark.parametrize(("message", "draw"), REFUSED)
def test_figures_refuse_runs_that_do_not_fit(make_run, message, draw):
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
    figure.alt = 'fast & "loose"'
    plots.show(figure)
    assert 'alt="fast &amp; &quot;loose&quot;"' in displayed.html
