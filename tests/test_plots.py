"""The figures: what they draw, what they say, and that all of it can be read.

Each test draws from record folders that it writes itself; nothing is launched.
"""

import functools
import json
import re

import pytest

pytest.importorskip("matplotlib")  # a GPU machine may lack all of the notebook side


import legible
import matplotlib
from records import BYTES, MB

from bootcamp import machine
from bootcamp.drawing import plots
from bootcamp.drawing import style as frame
from bootcamp.drawing.palette import KINDS
from bootcamp.records.runs import Run, name_runs
from bootcamp_lessons.diagrams import (
    dataparallel,
    hsdp,
    scaling,
    single_device,
)

HERE = " ".join(machine.cpu_name().split())


def crowded(make, **kwargs):
    return make("ddp", 4, **{"cores": 2, **kwargs})


FIGURES = {
    "loss of one": lambda make: plots.loss_curves(make("cpu", 1)),
    "losses": lambda make: plots.loss_curves(
        make("cpu", 1), *(make(s, n) for s in ("ddp", "zero") for n in (1, 2)), crowded(make)
    ),
    "losses far apart": lambda make: plots.loss_curves(
        make("cpu", 1), make("ddp_by_hand", 2, losses=(4.0, 3.9, 3.5, 3.2, 3.1, 3.0))
    ),
    "losses a little apart": lambda make: plots.loss_curves(
        make("cpu", 1),
        *(make(s, losses=(4.00003, 3.0, 2.5, 2.25, 2.125, 2.0)) for s in ("ddp", "pp", "tp", "mp")),
    ),
    "losses of many, some without a number": lambda make: plots.loss_curves(
        make("cpu", 1),
        *(
            make("ddp", n, cpu=f"Processor {n} of another machine", losses=[4.0] + 5 * [loss])
            for n, loss in zip((1, 2, 4, 8, 16), (3.0, *[float("nan")] * 4), strict=True)
        ),
    ),
    "losses of float64": lambda make: plots.loss_curves(
        make("cpu", 1), make("ddp", losses=(4.0, 3.0 + 1e-14, 2.5, 2.25, 2.125, 2.0))
    ),
    "throughput of one": lambda make: plots.throughput(make("cpu", 1, 12345.678)),
    "throughput": lambda make: plots.throughput(
        make("cpu", 1, 408.0),
        make("ddp", 2, [1.0, 1.0, 1.0, 600.0, 800.0, 900.0]),
        crowded(make, speed=555.0),
        make("ddp_by_hand", 8, 1200.0, device="cuda"),
    ),
    "throughput of uneven steps": lambda make: plots.throughput(
        make("cpu", 1, [100.0] * 5 + [900.0])
    ),
    "throughput on machines with long names": lambda make: plots.throughput(
        *(make("ddp", n, cpu=f"Processor {n}" + " with a name that goes on" * 4) for n in (1, 2)),
        make("cpu", 1),
    ),
    "throughput of twins": lambda make: plots.throughput(
        *(make("model_parallel", 2, 99.0 * n, batch=32 * n, device="cuda") for n in range(1, 9))
    ),
    "strong": lambda make: plots.scaling(
        make("ddp", 1, 100.0), make("ddp", 2, 180.0), crowded(make, speed=190.0)
    ),
    "strong, many": lambda make: plots.scaling(
        *(
            make(s, n, 100.0 * n**p, device="cuda")
            for s, p in (("ddp", 0.95), ("ddp_by_hand", 0.6), ("zero", 0.9), ("hsdp", 0.8))
            for n in (1, 2, 4, 8)
        )
    ),
    "strong, wide": lambda make: plots.scaling(
        make("single_process", 1), *(make(f"model_parallel_{k}", 2) for k in range(3))
    ),
    "strong, slower than one": lambda make: plots.scaling(
        make("ddp", 1, 100.0), make("ddp", 2, 15.0)
    ),
    "strong, on shared cores": lambda make: plots.scaling(
        make("ddp", 1, 100.0, shared=True), make("ddp", 2, 180.0)
    ),
    "weak": lambda make: plots.scaling(
        make("ddp", 1, 100.0, batch=16), make("ddp", 2, 180.0, batch=32), kind="weak"
    ),
    "scaling on one core": lambda make: plots.scaling(
        make("ddp", 1, 100.0, cores=1), make("ddp", 2, 100.0, cores=1)
    ),
    "memory": lambda make: plots.memory(make("cpu", 1), make("ddp", 2), crowded(make)),
    "memory of 8": lambda make: plots.memory(make("ddp_by_hand", 8, device="cuda")),
    "timeline": lambda make: plots.timeline(make("ddp", 2, traced=(0, 1))),
    "timeline of 8": lambda make: plots.timeline(
        make("model_parallel", 8, cores=2, traced=range(8))
    ),
    "sent": lambda make: plots.sent_bytes(
        make("ddp", 1, sent=0.0), make("ddp", 2), crowded(make), make("ddp", 4, sent=None)
    ),
    "sent nothing": lambda make: plots.sent_bytes(make("cpu", 1, sent=0.0)),
    "achieved": lambda make: plots.achieved(
        make("cpu", 1, 98.0), make("ddp", 2, 120.0), crowded(make), peak_flops_per_second=1e11
    ),
    "achieved, beyond the peak": lambda make: plots.achieved(
        make("cpu", 1, 0.3), crowded(make, speed=3860.0), peak_flops_per_second=1e11
    ),
}


def _batches(make, speeds, held):
    """Runs of one process with a larger batch each."""
    pairs = zip(speeds, held, strict=True)
    return [
        make("gpu", 1, speed, 4**k, sizes={**BYTES, "activation_bytes": size})
        for k, (speed, size) in enumerate(pairs)
    ]


def _pairs(make, *speeds, **how):
    """(one process at 100 samples/s, two ranks at these) with a larger batch each."""
    batches = [32 * 4**k for k in range(len(speeds))]
    return [
        (make("cpu", 1, batch=batch, **how), make("ddp", 2, speed, batch=batch))
        for batch, speed in zip(batches, speeds, strict=True)
    ]


def _tasks(*seconds):
    """Tasks with these seconds of one worker, two threads, two processes."""
    tasks = [dict(zip(dataparallel.WORKERS, ([s] for s in each), strict=True)) for each in seconds]
    return [{"work": f"task {k}", **task} for k, task in enumerate(tasks)]


# What lessons draw of measured values, where these are far apart, equal, or in each other's way.
OF_LESSONS = {
    "speed-ups near one": lambda make: scaling.speed_up_by_batch(_pairs(make, 95.0, 104.0)),
    "speed-ups on a line": lambda make: scaling.speed_up_by_batch(_pairs(make, 100.0, 100.0)),
    "speed-ups near the ideal": lambda make: scaling.speed_up_by_batch(_pairs(make, 101.0, 199.0)),
    "a speed-up of 50": lambda make: scaling.speed_up_by_batch(_pairs(make, 2.0, 5000.0, 100.0)),
    "speed-ups on shared cores": lambda make: scaling.speed_up_by_batch(
        _pairs(make, 95.0, 180.0, 190.0, 199.0, shared=True)
    ),
    "batches of a GPU": lambda make: single_device.batch_curve(
        _batches(
            make,
            (2570.0, 5360.0, 6100.0, 8830.0, 7600.0, 84400.0),
            (17_800, 71_100, 4_630_000, 4_800_000, 4_550_000, 18_200_000),
        )
    ),
    "batches that hold nothing": lambda make: single_device.batch_curve(
        _batches(make, (4630.0, 4800.0), (0, 0))
    ),
    "slow workers": lambda make: dataparallel.workers(
        _tasks((17.7, 33.572, 38.749), (0.002, 0.002, 0.002), (999.0, 999.0, 999.0)), 2
    ),
    "fast workers": lambda make: dataparallel.workers(
        _tasks((0.96, 0.97, 0.98), (4e-5, 4e-5, 4e-5), (0.9994, 0.9994, 0.9994)), 2
    ),
    "a link faster than its formula": lambda make: hsdp.step_seconds(
        {name: make(name, 4, 1000.0) for name in ("ddp", "fsdp")},
        {name: make(name, 4, 500.0, link="200mbit") for name in ("ddp", "fsdp")},
        {"ddp": 0.01, "fsdp": 0.19},
    ),
    "a link open and slower than slow": lambda make: hsdp.step_seconds(
        {"ddp": make("ddp", 4, 1.0)}, {"ddp": make("ddp", 4, 500.0, link="200mbit")}, {"ddp": 0.01}
    ),
}


@pytest.mark.parametrize("name", OF_LESSONS)
def test_what_lessons_draw_can_be_read_whatever_was_measured(make_run, name):
    assert legible.faults(OF_LESSONS[name](make_run), frame.FOOT) == []


@pytest.fixture(params=FIGURES)
def drawn(request, make_run):
    return FIGURES[request.param](make_run)


def said(figure) -> str:
    """All that is written in the figure."""
    return "\n".join(text.get_text() for text in legible.texts(figure))


def foot(figure) -> str:
    return " ".join(figure.get_supxlabel().split())


def bars(figure) -> list[float]:
    """The lengths of the horizontal bars in the order in which they were drawn."""
    return [bar.get_width() for bar in figure.axes[0].patches]


def test_nothing_overlaps_or_is_cut_off(drawn):
    assert legible.faults(drawn, frame.FOOT) == []


def test_the_foot_names_machine_ranks_device_version_and_origin(drawn):
    for part in ("rank", "torch 2.99.0", "measured here"):
        assert part in foot(drawn)
    assert HERE in foot(drawn) or "NVIDIA H100 0" in foot(drawn)
    assert re.search(r"\d (CPU|GPU) rank", foot(drawn))


def test_titles_axes_and_sizes_can_be_read(drawn):
    assert drawn.get_suptitle()
    assert drawn.get_figwidth() == 10
    assert drawn.axes[-1].get_xlabel()


def test_the_alternative_is_a_sentence_with_values_and_origin(drawn):
    assert "\n" not in drawn.alt
    assert re.match(r".*\d.*\. .*(measured here|recorded).*\.$", drawn.alt)


def test_the_style_does_not_leak_and_is_not_leaked_into(make_run):
    with matplotlib.rc_context({"font.size": 5, "axes.facecolor": "red"}):
        before = dict(matplotlib.rcParams)
        figure = plots.throughput(make_run())
        frame.png(figure)
        assert dict(matplotlib.rcParams) == before
    assert figure.axes[0].xaxis.label.get_fontsize() == frame.STYLE["axes.labelsize"]
    assert figure.axes[0].get_facecolor() == (1, 1, 1, 1)


def test_a_record_of_another_machine_is_marked(make_run):
    runs = (make_run("cpu", 1, cpu="Other Processor"), make_run("ddp", 2))
    figure = plots.throughput(*runs)
    assert "1 CPU rank on Other Processor, 8 cores, torch 2.99.0; recorded on another" in foot(
        figure
    )
    assert f"2 CPU ranks on {HERE}, 8 cores, torch 2.99.0; measured here" in foot(figure)


def test_a_cpu_rank_is_not_drawn_as_a_gpu(make_run):
    figure = plots.throughput(make_run("ddp", 2), make_run("ddp", 2, device="cuda"))
    cpu, gpu = (bar.get_facecolor() for bar in figure.axes[0].patches)
    assert cpu != gpu
    assert "2 CPU ranks on" in foot(figure)
    assert "2 GPU ranks on" in foot(figure)


@pytest.mark.parametrize("draw", [plots.throughput, plots.sent_bytes])
def test_more_ranks_than_cores_are_marked(make_run, draw):
    figure = draw(make_run("ddp", 2, cores=2), crowded(make_run))
    hatches = [bool(bar.get_hatch()) for bar in figure.axes[0].patches]
    half = len(hatches) // 2
    assert hatches == [False] * half + [True] * half
    assert "2 and 4 CPU ranks (4: more ranks than cores)" in foot(figure)


@pytest.mark.parametrize(
    "draw", [plots.throughput, functools.partial(plots.achieved, peak_flops_per_second=1e11)]
)
def test_a_run_that_shared_its_cores_is_marked(make_run, draw):
    figure = draw(make_run("ddp", 2), make_run("ddp", 2, shared=True))
    alone, shared = (bar.get_hatch() for bar in figure.axes[0].patches)
    assert (alone, shared) == (None, "xx")
    assert "shared with another run, so the times mean nothing" in foot(figure)
    assert "shared" not in foot(draw(make_run("ddp", 2)))


def test_no_speed_up_is_drawn_from_shared_cores(make_run):
    runs = [make_run("ddp", 1, 100.0), make_run("ddp", 2, 180.0)]
    figure = plots.scaling(*runs, make_run("ddp", 4, 200.0, shared=True))
    for line in [line for axes in figure.axes for line in axes.lines]:
        assert list(line.get_xdata()) == [1, 2]
    said = "Left out: ddp on 4 ranks. Their cores were shared with another run."
    assert said in foot(figure)
    assert said in figure.alt


def crossed(figure) -> list[bool]:
    """Whether the ground of each of its axes is crossed, as a bar of shared cores is."""
    return [any(patch.get_hatch() == "xx" for patch in axes.patches) for axes in figure.axes]


def test_where_nothing_was_alone_a_scaling_is_drawn_and_crossed(make_run):
    many = [make_run("ddp", n, 100.0 * n, shared=n == 4) for n in (2, 4)]
    figure = plots.scaling(make_run("ddp", 1, 100.0, shared=True), *many, crowded(make_run))
    for line in [line for axes in figure.axes for line in axes.lines]:
        assert list(line.get_xdata()) == [1, 2, 4]
    assert crossed(figure) == [True, True]
    for says in (foot(figure), figure.alt):
        assert "shared with another run, so the times mean nothing" in says
        assert "Left out: ddp on 4 ranks. More ranks than cores" in says
    sound = plots.scaling(make_run("ddp", 1, 100.0), *many)
    assert crossed(sound) == [False, False]
    assert "mean nothing" not in foot(sound)


def test_a_pair_on_shared_cores_is_left_out_of_speed_ups_by_batch(make_run):
    pairs = [(make_run("cpu", 1, batch=b), make_run("ddp", 2, 180.0, batch=b)) for b in (32, 64)]
    shared = (make_run("cpu", 1, batch=128), make_run("ddp", 2, 999.0, batch=128, shared=True))
    figure = scaling.speed_up_by_batch([*pairs, shared])
    assert list(figure.axes[0].lines[0].get_xdata()) == [32, 64]
    assert "Left out: 1 pair(s) of runs on shared cores." in foot(figure)
    assert crossed(figure) == [False]
    figure = scaling.speed_up_by_batch([shared])
    assert list(figure.axes[0].lines[0].get_xdata()) == [128]
    assert crossed(figure) == [True]
    for says in (foot(figure), figure.alt):
        assert "shared with another run, so the times mean nothing" in says
    assert "Left out" not in foot(figure)


# loss_curves


def test_equal_curves_are_both_to_be_seen(make_run):
    upper, lower = plots.loss_curves(make_run("cpu", 1), make_run("ddp", 2)).axes
    below, above = upper.lines
    assert list(below.get_ydata()) == list(above.get_ydata()) == [4.0, 3.0, 2.5, 2.25, 2.125, 2.0]
    assert below.get_linewidth() > 2 * above.get_linewidth()
    assert below.get_alpha() < 1
    assert below.get_linestyle() == "-"
    assert above.get_linestyle() == "--"
    assert below.get_color() != above.get_color()


def test_markers_of_equal_curves_stand_at_different_steps(make_run):
    runs = [make_run(s, 1, losses=[2.0] * 50) for s in ("cpu", "ddp", "zero", "pp")]
    marked = [
        set(range(line.get_markevery()[0], 50, line.get_markevery()[1]))
        for line in plots.loss_curves(*runs).axes[0].lines[1:]
    ]
    assert all(marked)
    assert len(set.union(*marked)) == sum(map(len, marked))


def test_several_equal_curves_leave_each_other_gaps(make_run):
    """The dashes of the overlaid runs follow one another: no point of the line is drawn twice."""
    upper = plots.loss_curves(make_run("cpu", 1), *(make_run("ddp", n) for n in (1, 2, 4))).axes[0]
    patterns = [line._unscaled_dash_pattern for line in upper.lines[1:]]
    drawn = [
        {place for place in range(9) if (place + offset) % sum(dashes) < dashes[0]}
        for offset, dashes in patterns
    ]
    assert sorted(place for places in drawn for place in places) == list(range(9))


def test_the_difference_to_the_first_run_has_a_log_axis_and_the_tolerance(make_run):
    far = make_run("ddp", 2, losses=(4.0, 3.0, 2.5, 2.35, 2.125 + 1e-6, 2.0))
    figure = plots.loss_curves(make_run("cpu", 1), far)
    lower = figure.axes[1]
    difference, tolerance = lower.lines
    assert set(tolerance.get_ydata()) == {1e-5}
    assert list(difference.get_ydata()) == pytest.approx([0, 0, 0, 0.1, 1e-6, 0])
    heights = lower.transData.transform([(0, value) for value in (0, 1e-7, 1e-6, 1e-5, 0.1)])[:, 1]
    assert min(heights[1:] - heights[:-1]) > 4, "each far enough from the others to be seen"
    assert 0 in lower.get_yticks()
    assert "1.0e-01" in figure.alt
    assert min(lower.get_ylim()) < 0 < 0.1 < max(lower.get_ylim())


def test_a_loss_that_is_no_number_is_named(make_run):
    nan = float("nan")
    figure = plots.loss_curves(
        make_run("cpu", 1), make_run("ddp", 2, losses=(4.0, 3.0, 2.0, 1.0, nan, nan))
    )
    assert "ddp, 2 ranks (CPU): the loss is not a number in 2 steps, from 4" in foot(figure)
    assert "not a number" in figure.alt


def test_an_interrupted_run_is_drawn_and_named(make_run):
    figure = plots.loss_curves(
        make_run("cpu", 1), make_run("ddp", 2, losses=(4.0, 3.0), status="failed")
    )
    assert len(figure.axes[1].lines[0].get_ydata()) == 2
    assert "ddp, 2 ranks (CPU), failed" in said(figure)


# throughput


def test_throughput_is_the_median_after_warm_up_with_quartiles(make_run):
    run = make_run(speed=[1.0, 1.0, 1.0, 100.0, 600.0, 200.0])
    figure = plots.throughput(run)
    assert bars(figure) == pytest.approx([200.0])
    (line,) = figure.axes[0].collections
    assert line.get_segments()[0][:, 0] == pytest.approx([150.0, 400.0])
    assert "200.0 samples/s" in said(figure)
    assert "12,800 tokens/s" in said(figure)
    assert "200.0 samples/s (150.0 to 400.0)" in figure.alt


# scaling


def test_scaling_draws_speed_up_and_efficiency_against_the_ideal(make_run):
    runs = [make_run("ddp", n, speed) for n, speed in ((4, 300.0), (1, 100.0), (2, 180.0))]
    left, right = plots.scaling(*runs).axes
    ideal, speedup = left.lines
    assert list(ideal.get_xdata()) == list(ideal.get_ydata()) == [1, 2, 4]
    assert list(speedup.get_xdata()) == [1, 2, 4]
    assert speedup.get_ydata() == pytest.approx([1.0, 1.8, 3.0])
    full, efficiency = right.lines
    assert set(full.get_ydata()) == {100}
    assert efficiency.get_ydata() == pytest.approx([100.0, 90.0, 75.0])


def test_scaling_leaves_out_more_ranks_than_cores_and_says_so(make_run):
    runs = [make_run("ddp", 1, 100.0, cores=2), make_run("ddp", 2, 180.0, cores=2)]
    figure = plots.scaling(*runs, crowded(make_run, speed=500.0))
    for line in [line for axes in figure.axes for line in axes.lines]:
        assert list(line.get_xdata()) == [1, 2]
    assert "Left out: ddp on 4 ranks. More ranks than cores measure no scaling." in foot(figure)
    assert "Left out: ddp on 4 ranks." in figure.alt


def test_scaling_leaves_nothing_out_where_there_are_cores_enough(make_run):
    figure = plots.scaling(make_run("ddp", 1), make_run("ddp", 4))
    assert "Left out" not in foot(figure) + figure.alt
    assert list(figure.axes[0].lines[1].get_xdata()) == [1, 4]


def test_scaling_names_a_single_rank_that_no_curve_begins_with(make_run):
    figure = plots.scaling(
        make_run("cpu", 1, 50.0), make_run("ddp", 1, 100.0), make_run("ddp", 2, 180.0)
    )
    assert figure.axes[0].lines[1].get_ydata() == pytest.approx([1.0, 1.8])
    assert "Left out: cpu on 1 rank. The curves begin with other runs on 1 rank." in foot(figure)


def test_scaling_counts_cores_per_rank(make_run):
    """Two ranks of two cores each are too many for two cores."""
    both = [make_run("ddp", n, cores=2, cores_per_rank=2) for n in (1, 2)]
    assert "Left out: ddp on 2 ranks" in foot(plots.scaling(*both))


def test_scaling_names_the_device_on_its_axis(make_run):
    cpu, gpu = (
        plots.scaling(make_run("ddp", 1, device=device), make_run("ddp", 2, device=device))
        for device in ("cpu", "cuda")
    )
    assert cpu.axes[0].get_xlabel() == "CPU ranks, 1 core each"
    assert gpu.axes[0].get_xlabel() == "GPUs, one rank each"


def test_a_strategy_without_a_single_rank_is_held_against_the_baseline(make_run):
    figure = plots.scaling(
        make_run("cpu", 1, 100.0), make_run("ddp", 2, 150.0), make_run("zero", 2, 120.0)
    )
    curves = figure.axes[0].lines[1:]
    assert [line.get_label() for line in curves] == ["ddp (1 rank: cpu)", "zero (1 rank: cpu)"]
    assert [line.get_ydata()[-1] for line in curves] == pytest.approx([1.5, 1.2])
    looks = {(line.get_marker(), line._unscaled_dash_pattern[1]) for line in curves}
    assert len({marker for marker, _ in looks}) == 2
    assert len({dashes for _, dashes in looks}) == 2


WRONG = {
    "strong, but batches differ": (
        "expected all with the same global batch, given 16 .*, 32",
        lambda make: ((make("ddp", 1, batch=16), make("ddp", 2, batch=32)), {}),
    ),
    "weak, but batches per rank differ": (
        "expected all with the same batch per rank, given 32.*, 16",
        lambda make: ((make("ddp", 1), make("ddp", 2)), {"kind": "weak"}),
    ),
    "no such kind": (
        "expected 'strong' or 'weak'",
        lambda make: ((make("ddp", 1),), {"kind": "wide"}),
    ),
    "no single rank": (
        "no run with one rank was given .*Launch one with ranks=1",
        lambda make: ((make("ddp", 2), make("ddp", 4)), {}),
    ),
    "only crowded runs": (
        "no run with one rank was given .only runs with more ranks than cores",
        lambda make: ((crowded(make),), {}),
    ),
    "CPU and GPU": (
        "expected all on one kind of device, given CPU .*, GPU",
        lambda make: ((make("ddp", 1), make("ddp", 2, device="cuda")), {}),
    ),
    "two machines": (
        "expected all on one machine",
        lambda make: ((make("ddp", 1), make("ddp", 2, cpu="Other")), {}),
    ),
    "two sizes": (
        "expected all with one size, given tiny .*, small",
        lambda make: ((make("ddp", 1), make("ddp", 2, size="small")), {}),
    ),
    "one twice": (
        "ddp was given more than once with 2 rank",
        lambda make: ((make("ddp", 1), make("ddp", 2), make("ddp", 2)), {}),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_scaling_refuses_runs_that_do_not_fit(make_run, case):
    message, given = WRONG[case]
    runs, kind = given(make_run)
    with pytest.raises(ValueError, match=message):
        plots.scaling(*runs, **kind)


# memory


def test_memory_stacks_the_kinds_of_each_rank(make_run):
    figure = plots.memory(make_run("ddp", 2))
    axes = figure.axes[0]
    assert bars(figure) == pytest.approx([10e6, 20e6, 30e6, 40e6] * 2)
    assert [bar.get_x() for bar in axes.patches] == pytest.approx([0, 10e6, 30e6, 60e6] * 2)
    assert len({bar.get_hatch() for bar in axes.patches}) == 4
    assert axes.get_xlabel() == "memory of one rank"
    assert said(figure).count("100 MB") == 2
    assert [label.get_text() for label in figure.legends[0].get_texts()] == list(KINDS)


def test_the_process_peak_is_a_text_and_does_not_set_the_scale(make_run):
    figure = plots.memory(make_run("cpu", 1))
    assert "process peak 4.32 GB" in said(figure)
    assert "libraries included" in foot(figure)
    assert figure.axes[0].get_xlim()[1] < 200e6
    on_gpu = plots.memory(make_run("ddp", 2, device="cuda"))
    assert "GPU peak 4.32 GB" in said(on_gpu)
    assert "libraries" not in foot(on_gpu)


def test_memory_takes_the_unit_that_suits(make_run):
    sizes = {name: 1000 * size for name, size in BYTES.items()}
    figure = plots.memory(make_run("cpu", 1, sizes=sizes))
    assert figure.axes[0].xaxis.get_major_formatter()(50e9) == "50 GB"
    assert bars(figure) == pytest.approx([10e9, 20e9, 30e9, 40e9])


def test_many_equal_ranks_share_a_bar(make_run):
    figure = plots.memory(make_run("ddp", 8))
    assert len(bars(figure)) == 4
    assert "ddp, each of 8 ranks" in said(figure)


# timeline


def spans_of(lane):
    return [(path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in lane.get_paths()]


def test_the_timeline_shows_both_lanes_and_their_overlap(make_run):
    figure = plots.timeline(make_run("ddp", 2, traced=(0, 1)))
    lanes = figure.axes[0].collections
    assert [lane.get_label() for lane in lanes[:4]] == [
        "computes",
        "both at once",
        "sends",
        "waits",
    ]
    for rank in (0, 1):
        compute, both, sends, waits = map(spans_of, lanes[4 * rank : 4 * rank + 4])
        assert compute == [pytest.approx((1, 5)), pytest.approx((6, 8))]
        assert sends == [pytest.approx((4, 7))]
        assert both == [pytest.approx((4, 5)), pytest.approx((6, 7))]
        assert waits == []
    assert figure.axes[0].get_xlim() == (0, 10)
    for words in ("computes 6.0 ms", "sends 3.0 ms, waits 0.0 ms", "both at once 2.0 ms"):
        assert said(figure).count(words) == 2
        assert words in figure.alt
    assert "This step took 10.0 ms, 0.03 times the run's median step" in foot(figure)


def test_a_rank_that_comes_late_lets_the_other_wait(make_run):
    """Rank 1 begins 2 ms later: the wait of rank 0 is light, and hides nothing of its sending."""
    run = make_run("ddp", 2, traced=(0, 1))
    path = run.folder / "ranks" / "1.trace.json"
    late = json.loads(path.read_text())
    for event in late["traceEvents"]:
        event["ts"] += 2000
    path.write_text(json.dumps(late))
    figure = plots.timeline(run)
    _, both, sends, waits = map(spans_of, figure.axes[0].collections[:4])
    assert (waits, sends, both) == ([pytest.approx((4, 6))], [pytest.approx((6, 7))], sends)
    assert "rank 0 computes 6.0 ms, both at once 1.0 ms, sends 1.0 ms, waits 2.0 ms" in figure.alt
    assert "rank 1 computes 6.0 ms, both at once 2.0 ms, sends 3.0 ms, waits 0.0 ms" in figure.alt
    assert figure.axes[0].get_xlim() == (0, 12)
    assert "Hatched: waiting until the last rank has entered" in foot(figure)


def test_lanes_do_not_cover_each_other(make_run):
    lanes = plots.timeline(make_run("ddp", 3, traced=range(3))).axes[0].collections
    heights = [lane.get_paths()[0].vertices[:, 1] for lane in lanes if lane.get_paths()]
    edges = [edge for low_high in heights for edge in (low_high.min(), low_high.max())]
    assert edges == pytest.approx(sorted(edges))


def test_a_timeline_without_a_trace_says_what_to_do(make_run):
    with pytest.raises(FileNotFoundError, match="launch with trace_step=5"):
        plots.timeline(make_run("ddp", 2))


def test_ranks_without_a_trace_are_named(make_run):
    figure = plots.timeline(make_run("ddp", 4, traced=(0, 2)))
    assert "No trace was recorded of rank 1 and 3." in foot(figure)
    assert "Communicating includes waiting" in foot(figure)
    assert "communicates 3.0 ms" in figure.alt
    assert "waits" not in figure.alt
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["rank 0", "rank 2"]


# sent_bytes


def test_sent_bytes_stand_beside_the_formula(make_run):
    figure = plots.sent_bytes(make_run("ddp", 4, sent=31 * MB))
    assert sorted(bars(figure)) == pytest.approx([2 * 3 / 4 * 20e6, 31e6])
    assert "formula 30 MB" in said(figure)
    assert "counted 31 MB" in said(figure)
    assert "2(N-1)/N" in foot(figure)


@pytest.mark.parametrize("how", [{"sent": None}, {"device": "cuda"}])
def test_what_was_not_counted_is_not_drawn(make_run, how):
    figure = plots.sent_bytes(make_run("ddp", 2, **how))
    assert bars(figure) == pytest.approx([20e6])
    assert "not counted here" in said(figure)
    assert "not counted here" in figure.alt


# achieved


def test_achieved_is_held_against_the_peak_of_all_ranks(make_run):
    runs = (make_run("cpu", 1, 50.0), make_run("ddp", 2, 80.0))
    figure = plots.achieved(*runs, peak_flops_per_second=1e11)
    assert bars(figure) == pytest.approx([50.0, 40.0])
    assert "50.00 GFLOP/s\nof 100.0 GFLOP/s" in said(figure)
    assert "80.00 GFLOP/s\nof 200.0 GFLOP/s" in said(figure)
    assert figure.axes[0].lines[0].get_xdata() == [100, 100]


def test_more_ranks_than_cores_are_held_against_the_cores(make_run):
    figure = plots.achieved(crowded(make_run, speed=100.0), peak_flops_per_second=1e11)
    assert bars(figure) == pytest.approx([50.0])
    assert figure.axes[0].patches[0].get_hatch()


@pytest.mark.parametrize("other", [{"device": "cuda"}, {"dtype": "bfloat16"}])
def test_one_peak_does_not_fit_two_kinds(make_run, other):
    with pytest.raises(ValueError, match="expected all"):
        plots.achieved(make_run(), make_run(**other), peak_flops_per_second=1e11)
    with pytest.raises(ValueError, match="more than zero"):
        plots.achieved(make_run(), peak_flops_per_second=0)


# what every figure refuses, and how runs are named


@pytest.mark.parametrize(
    "draw", [plots.throughput, plots.scaling, plots.memory, plots.sent_bytes, plots.timeline]
)
def test_a_failed_run_is_refused(make_run, draw):
    with pytest.raises(ValueError, match="ended with status oom, expected ok"):
        draw(make_run("ddp", 1, status="oom"))


@pytest.mark.parametrize("draw", [plots.throughput, plots.memory, plots.sent_bytes])
def test_a_run_whose_ranks_left_no_record_is_refused(make_run, draw):
    run = make_run()
    for path in (run.folder / "ranks").glob("*.json"):
        path.unlink()
    with pytest.raises(ValueError, match="holds no record of a rank"):
        draw(Run(run.folder))


def test_a_rehearsal_and_nothing_are_refused(make_run):
    with pytest.raises(ValueError, match="recorded no losses"):
        plots.throughput(make_run(losses=(None, None)))
    with pytest.raises(ValueError, match="recorded no losses"):
        plots.loss_curves(make_run(losses=()))
    with pytest.raises(ValueError, match="at least one run"):
        plots.memory()
    with pytest.raises(TypeError, match="runs one after another"):
        plots.throughput([make_run()])


def test_runs_with_one_label_are_told_apart(make_run):
    runs = [
        make_run(optimizer="sgd"),
        make_run(optimizer="adamw"),
        make_run("cpu", 1),
        make_run("cpu", 1),
    ]
    assert name_runs(runs) == [
        "ddp, 2 ranks (CPU), optimizer sgd",
        "ddp, 2 ranks (CPU), optimizer adamw",
        "cpu, 1 rank (CPU), run 1",
        "cpu, 1 rank (CPU), run 2",
    ]
    here, there = make_run(), make_run(cpu="Other")
    assert [name.rpartition(", ")[2] for name in name_runs([here, there])] == [
        "measured here",
        "recorded",
    ]


# show


@pytest.fixture
def displayed(monkeypatch):
    shown = []
    display = pytest.importorskip("IPython.display")
    monkeypatch.setattr(display, "display", shown.append)
    return shown


def test_show_displays_an_image_with_its_alternative(make_run, displayed):
    figure = plots.throughput(make_run())
    figure.alt = 'fast & "loose"'
    assert plots.show(figure) is None
    (html,) = (item.data for item in displayed)
    assert html.startswith('<img src="data:image/png;base64,iVBOR')
    assert 'alt="fast &amp; &quot;loose&quot;"' in html


def test_show_leaves_no_figure_open(displayed):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure = pyplot.figure()
    figure.suptitle("a reader's own")
    plots.show(figure)
    assert figure.number not in pyplot.get_fignums()
    assert 'alt="a reader\'s own"' in displayed[0].data.replace("&#x27;", "'")
