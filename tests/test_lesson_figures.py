"""Figures of lessons and of plans draw the values that they are given; the drawings are true."""

import math

import pytest

pytest.importorskip("matplotlib")  # a GPU machine may lack all of the notebook side

import figures
import records
from figures import FIGURES, list_bars, read_texts

from bootcamp.costs import pipeline_schedules
from bootcamp.drawing import plots
from bootcamp.scripts import strategies
from bootcamp_lessons import communication, forecasts
from bootcamp_lessons.diagrams import (
    dataparallel,
    horovod,
    pipelines,
    saved_checkpoints,
    single_device,
    zero_stages,
)


def list_curves(figure) -> list[list[float]]:
    return [list(line.get_ydata()) for line in figure.axes[0].lines]


# Values that a figure's alternative has, of what figures.py gives it.
VALUES = {
    "dataparallel.phases": "parallel forward 0.3 ms, gather 0.0 ms, backward 0.4 ms",
    "ddp.bucket_sweep": "1 buckets 320 to 320 ms; 17 buckets 320 to 320 ms; 20 buckets",
    "ddp.attempts": "attempt 0 steps 0 to 7, 0 of them again; attempt 1 steps 5 to 11, 3 of them",
    "horovod.timeline": "3 tensors, 2 all-reduces",
    "horovod.ring": "rank 0 held [[1], [2], [3]] at first and [[111], [222], [333]] at the end",
    "horovod.published_scaling": "VGG-16 68 %",
    "hsdp.rings": "1.5 times the model in a step with DDP, 2.25 times with FSDP",
    "hsdp.step_seconds": "ddp 32.00 s open, 0.064 s at 200mbit, of which the link by formula 0.010",
    "hsdp.two_hosts": "no more than 200mbit",
    "pipelines.one_step": "rank 1 backward from 2000.0 to 4000.0 ms",
    "pipelines.stage_costs": "parameters: 25 % before the cut",
    "pipelines.whole_and_cut": "in one piece: bubble 3.00",
    "pipelines.planned": "interleaved: bubble 0.19",
    "plots.all_reduce_sweep": "50 µs (alpha) + bytes at 2 GB/s (1/beta). On",
    "plots.all_reduce_sweep: bent": "10 GB/s (1/beta), those beyond 1 MiB at 1.1 GB/s. On",
    "plots.communication_roofline": "FSDP, Llama 2 70B, 128 A100: 0.77 at 2.01",
    "saved_checkpoints.pieces": "rows: __0_0.distcp has rows 0 to 3, columns 0 to 5",
    "saved_checkpoints.resumed_losses": "resumed: steps 2 to 3, at most 1.0e-01 from the baseline",
    "saved_checkpoints.step_times": "0.500 and 0.700 s in the steps after a save, 0.100 s in the",
    "hosts.link_sweep": "over the link 1.02 kB: 51.2 µs, 1.05 MB: 52.4 ms",
    "serving.latencies: 0.9 s": "open loop, 100/s: 100 answers, p99 500 ms. Server and client on",
    "serving.knee: 0.9 s": "At 10, 25, 50, 90 requests/s: p50 1,080 ms, 1,350 ms",
    "serving.ablation: 0.9 s": "Answers per second: 1 instance: 11",
    "serving.seconds_by_length": "8: 10 ms, 16: 20 ms. with a cache, by bytes of text: 8: 1.25 ms",
    "tensor_parallel.ring": "zigzag: rank 0 computed 0.75, 0.50; rank 1 computed 0.75, 0.50; the "
    "slowest of each step add up to 1.25",
    "single_device.number_formats": "bfloat16 has 16 bits: sign 1, exponent 8, fraction 7",
    "single_device.fp16_fates": "at a scale of 2^0 25 % become zero, at 2^16 50 % infinite",
    "single_device.activations_in_step": "all kept: at most 60.0 MB, ended at 18; inputs kept: at "
    "most 15.0 MB",
    "single_device.speeds": "V100 SXM2: float32 15.7, 16 bits 125 TFLOP/s, 900 GB/s",
    "zero_stages.gathers": "root 1 times, block 0 1 times",
    "zero_stages.published_memory": "stage 3: 15.0 by formula, 1.9 published",
}


@pytest.mark.parametrize("name", VALUES)
def test_alternative_has_the_values_that_are_drawn(make_run, name):
    assert VALUES[name] in FIGURES[name](make_run).alt


# Lengths of bars, and heights of curves.
LENGTHS = {
    "dataparallel.memory_by_device": (list_bars, [4, 4, 2, 1, 0] * 2),
    "pipelines.peak_memory": (
        lambda figure: [bar.get_height() for bar in figure.axes[0].patches],
        [2.0, 2.0, 3.0, 3.0],
    ),
    "zero_stages.rank_memory": (list_bars, [4, 4, 2, 1] * 2),
    "zero_stages.gradients_by_stage": (
        lambda figure: list_curves(figure)[:2],
        [[4, 8, 8, 8, 8, 2], [4, 4, 2, 4, 4, 2]],
    ),
    "experts.imbalance": (
        lambda figure: list_curves(figure)[:2],
        [[1.0, 2.0, 3.9], [1.0, 1.5, 1.1]],
    ),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_bars_and_curves_are_as_long_as_their_values(make_run, name):
    read, expected = LENGTHS[name]
    assert read(FIGURES[name](make_run)) == expected


# Lessons


def test_family_tree_names_every_script():
    said = read_texts(FIGURES["basics.family_tree"]())
    assert [name for name in strategies.SCRIPTS if name not in said] == []


def test_cached_steps_compute_a_byte_each():
    said = read_texts(FIGURES["serving.cached_steps"]()).split("\n")
    assert "computed: 4 + 5 + 6 + 7 + 8 = 30 bytes" in said
    assert "computed: 4 + 1 + 1 + 1 + 1 = 8 bytes" in said


def test_phases_of_dataparallel_fill_the_step(make_run):
    for axes in FIGURES["dataparallel.phases"](make_run).axes:
        bars = list(axes.patches)
        assert sum(bar.get_width() for bar in bars) == pytest.approx(1.0)  # milliseconds
        for bar, after in zip(bars, bars[1:], strict=False):
            assert after.get_x() == pytest.approx(bar.get_x() + bar.get_width())


def test_workers_are_held_against_one_alone_by_their_fastest_round():
    loop = {"alone": [0.01, 0.012], "threads": [0.03, 0.02], "processes": [0.0105, 0.02]}
    step = {"alone": [0.02, 0.01], "threads": [0.03, 0.03], "processes": [0.011, 0.03]}
    figure = dataparallel.workers([{"work": "loop", **loop}, {"work": "step", **step}], cores=2)
    said = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert said == ["10 ms", "20 ms\n2.0×", "10 ms\n1.1×", "10 ms", "30 ms\n3.0×", "11 ms\n1.1×"]


def test_bucket_sweep_draws_what_is_sent_and_what_of_it_is_hidden(make_run):
    figure = FIGURES["ddp.bucket_sweep"](make_run)
    assert [list(line.get_ydata()) for line in figure.axes[1].lines] == [
        [pytest.approx(3.0)] * 3,
        [pytest.approx(2.0)] * 3,
    ]
    assert list(figure.axes[0].get_xticks()) == [1, 17], "20 has no room beside 17"


@pytest.mark.parametrize("world", [2, 3, 4])
def test_horovods_ring_is_drawn_as_the_ranks_printed_it(world):
    ranks = figures.make_ring(world)
    assert all(sum(rank["held"][-1], []) == rank["total"] for rank in ranks)
    said = read_texts(horovod.ring(ranks))
    assert said.count("▶") - 1 == world * 2 * (world - 1), "one more explains the mark"
    assert f"after step {2 * (world - 1)}" in said


@pytest.mark.parametrize("world", [2, 4])
def test_each_zero_stage_shards_one_kind_more(world):
    figure = zero_stages.stages(world)
    for letter, stages in {"O": 3, "G": 2, "P": 1}.items():
        assert read_texts(figure).split().count(letter) == stages * world, "a part on each rank"
    parts = [line.count("its part") for line in figure.alt.split("Stage ")[1:]]
    assert parts == [0, 1, 2, 3]


@pytest.mark.parametrize("schedule", pipeline_schedules.SCHEDULES)
def test_gantt_has_a_box_for_each_action(schedule):
    spans = figures.plan_schedule(schedule)
    figure = pipelines.gantt({schedule: spans, "beside": figures.plan_schedule("gpipe")}, "title")
    above, below = figure.axes
    assert above.get_xlim() == below.get_xlim()
    frames = [bars for bars in figure.axes[0].collections if not len(bars.get_facecolor())]
    boxes = [path.get_extents() for bars in frames for path in bars.get_paths()]
    assert sorted((box.x0, box.x1, round(box.y0 + 0.42)) for box in boxes) == sorted(
        (span.began, span.ended, span.rank) for span in spans
    )


def test_active_ranks_and_micro_batches_in_flight_are_counted():
    step = figures.STEP_OF_TWO_RANKS
    assert pipelines.count_active_ranks(step) == 1
    at_once = [span._replace(began=span.began - 0.5) for span in step[1:]]
    assert pipelines.count_active_ranks([step[0], *at_once]) == 2
    for schedule, most in (("gpipe", "4, 4"), ("interleaved", "2.5, 1.5")):
        assert f"at most {most}" in pipelines.describe(figures.plan_schedule(schedule))


def test_activations_end_at_none_and_recomputing_costs_a_forward():
    plain, again = (single_device.trace_activations(6, 10, kept) for kept in (10, 1))
    assert plain[-1] == (6 + 12, 0)
    assert again[-1] == (6 + 6 + 12, 0)
    assert max(size for _, size in again) == 6 * 1 + 10 - 1  # all inputs and one block's rest


@pytest.mark.parametrize("save", [1, 60])
def test_best_interval_loses_least_whatever_a_restart_takes(save):
    between = 3600.0
    best = saved_checkpoints.best_interval(save, between)
    assert best == math.sqrt(2 * save * between)
    lowest = saved_checkpoints.lost_share(best, save, between)
    assert lowest == pytest.approx(math.sqrt(2 * save / between))
    assert saved_checkpoints.lost_share(best, save, between, 360) == pytest.approx(lowest + 0.1)
    for factor in (0.9, 1.1):
        assert saved_checkpoints.lost_share(best * factor, save, between) > lowest
    figure = saved_checkpoints.lost_time([save], between, 360)
    assert f"every {best / 60:.1f} minutes" in figure.alt


# Rooflines and sweeps


def test_roofline_draws_both_limits_and_each_operation_with_its_share():
    figure = plots.roofline(records.make_roofline())
    axes = figure.axes[0]
    roof, *points = axes.lines
    assert list(roof.get_xdata())[1] == 10
    assert list(roof.get_ydata())[1:] == [100e9, 100e9]
    assert len(points) == len(records.OPERATIONS)
    hollow = [line.get_xdata()[0] for line in points if line.get_markerfacecolor() == "white"]
    assert sorted(hollow) == [0.2, 1.0], "what fits in the cache"
    written = {text.get_text() for text in axes.texts}
    assert {"LayerNorm 90 %", "up-projection 90 %", "residual add 96 %"} <= written
    assert {"memory:\n10 GB/s", "arithmetic: 100.0 GFLOP/s"} <= written
    figure.draw_without_rendering()
    for label in (text for text in axes.texts if text.get_text()):
        box = label.get_window_extent()
        places = [axes.transData.transform((p.get_xdata()[0], p.get_ydata()[0])) for p in points]
        assert not [place for place in places if box.padded(5).contains(*place)], label


def test_published_runs_are_under_their_roofs():
    """And not if the links were eight times as slow, bits taken for bytes."""
    rows = communication.published()
    assert {row["axis"] for row in rows} == {"FSDP", "tensor", "pipeline"}
    assert len(rows) > 50
    assert not [row for row in rows if row["reached"] > row["roof"]]
    slow = [communication.roof(row["axis"], row["ratio"] / 8) for row in rows]
    assert sum(row["reached"] > roof for row, roof in zip(rows, slow, strict=True)) > 5
    with pytest.raises(ValueError, match="axis"):
        plots.communication_roofline([{**rows[0], "axis": "expert"}])


def test_sweep_tells_fitted_sizes_from_held_out_ones(make_run):
    left, right = FIGURES["plots.all_reduce_sweep: bent"](make_run).axes
    lines = {line.get_label(): line for line in left.lines}
    assert set(lines["fitted to"].get_xdata()) == {n for n in records.SIZES if n >= 256}
    assert set(lines["held out"].get_xdata()) == {n for n in records.HELD_OUT if n >= 256}
    assert max(lines["too small for the line"].get_xdata()) < 256
    assert lines["fitted line"].get_ydata()[-1] == pytest.approx(1e3 * figures.bent(2**25))
    assert lines["median call"].get_ydata()[-1] == pytest.approx(3e3 * figures.bent(2**25))
    bus = {line.get_label(): line for line in right.lines}["fitted to"].get_ydata()
    assert bus[-1] == pytest.approx(1.5 * 2**25 / figures.bent(2**25) / 1e9), "2(N-1)/N, 4 ranks"


# Plans


@pytest.fixture(scope="module")
def plans():
    """All plans of a 70 B model on 256 GPUs."""
    return forecasts.list_plans("Llama 3 70B")


def test_memory_bars_are_the_tables_and_end_at_the_axis():
    table = forecasts.memory_by_part(["Llama 2 7B", "Llama 3 70B"])
    figure = plots.memory_by_part(table)
    (axes,) = figure.axes
    assert list_bars(figure)[:2] == pytest.approx(
        [table[0]["parameters_gb"], table[0]["gradients_gb"]]
    )
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches if bar.get_width()]
    assert max(ends) <= axes.get_xlim()[1] + 1e-9
    assert (table[4]["model"], table[4]["plan"]) == ("Llama 3 70B", "1 GPU")
    assert f"▶ {table[4]['peak_gb']:,.0f} GB: does not fit" in read_texts(figure)


def test_chosen_plan_stands_among_all_and_is_drawn_part_by_part(plans):
    figure = plots.chosen_plan(plans, plans[5])
    memory, step, among = figure.axes
    assert memory.patches[-1].get_width() == pytest.approx(plans[5]["peak_gb"])
    spent = step.patches[-1].get_width()
    assert spent == pytest.approx(plans[5]["seconds_per_step"], rel=2e-3)
    lines = {line.get_label().replace("\n", " "): line for line in among.lines}
    points = [line for name, line in lines.items() if name not in ("best", "chosen")]
    drawn = sum(len(line.get_xdata()) for line in points if not line.get_label().startswith("_"))
    assert drawn == len(plans) - 1, "all but the best, which is a star"
    best = max((row for row in plans if row["fits"]), key=lambda r: r["tokens_per_second_per_gpu"])
    assert lines["best"].get_xdata() == [best["peak_gb"]]
    assert lines["chosen"].get_ydata() == [plans[5]["tokens_per_second_per_gpu"]]
    assert "too large" in lines


def test_chosen_plan_says_what_limits_it(plans):
    best, last = plots.chosen_plan(plans, plans[0]), plots.chosen_plan(plans, plans[-1])
    assert "100 % of the best" in best.get_suptitle()
    assert "does not fit" in last.get_suptitle()
    assert "chosen is limited by: memory" in last.alt
    with pytest.raises(ValueError, match="no plans"):
        plots.feasible_plans([])


def test_growth_names_each_limit_where_it_sets_in():
    small = {"batch": 2**22, "keep": lambda plan: plan.ranks == plan.data}
    growth = forecasts.grow("Llama 3 8B", counts=(512, 1024), batch=2**22)
    table = [*growth, *forecasts.grow("Llama 3 8B", counts=(16384,), **small)]
    figure = plots.what_breaks(forecasts.Table(table))
    (axes,) = figure.axes
    words = {text.get_text(): text.get_position()[0] for text in axes.texts if text.get_text()}
    assert (words["batch"], words["batch too small"]) == (1, 2)
    labels = [tick.get_text() for tick in axes.get_xticklabels()]
    assert labels[0] == f"512\n1\n1\n512\n{growth[0]['tokens_per_second_per_gpu']:,.0f}"
    assert labels[2] == "16,384\n-\n-\n-\n-"
    first = [bar for bar in axes.patches if round(bar.get_x() + 0.4) == 0]
    assert sum(bar.get_height() for bar in first) == pytest.approx(100, abs=0.5)
    with pytest.raises(ValueError, match="no number of GPUs has a plan"):
        plots.what_breaks(forecasts.grow("Llama 3 405B", counts=(8,)))


def test_checkpoint_curves_are_the_models_and_marks_are_lowest():
    table = forecasts.checkpoint_intervals((1024, 16384))
    curve, mark, *_ = plots.checkpoint_interval(table).axes[0].lines
    assert min(curve.get_ydata()) == pytest.approx(100 * (1 - table[0]["effective_share"]))
    assert mark.get_xdata() == [table[0]["best_interval_seconds"]]


def test_worst_predictions_are_named():
    worst = forecasts.published_beside_predicted()[0]
    figure = FIGURES["plots.predicted_and_published"]()
    assert f"{worst['run']} {worst['error %']:+.0f} %" in figures.read_foot(figure)
