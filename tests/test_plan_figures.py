"""Lesson 10's tables, figures and sliders. Nothing is launched."""

import random

import pytest

pytest.importorskip("matplotlib")  # a GPU machine may lack all of the notebook side

import embed
import legible

from bootcamp.costs import failures, fitted_constants, memory
from bootcamp.costs.plans import Plan
from bootcamp.drawing import plots, style
from bootcamp_lessons import forecasts, simulators
from bootcamp_lessons.diagrams import three_axes


@pytest.fixture(scope="module")
def plans():
    """All plans of a 70 B model on 256 GPUs."""
    return forecasts.list_plans("Llama 3 70B")


# The tables


def test_parts_of_memory_are_the_planners_peak():
    table = forecasts.memory_by_part(gpus=128)
    assert {row["model"] for row in table} == set(forecasts.MODELS)
    reserved = fitted_constants.find_constants("", "H100 80GB").reserved
    for row in table:
        shape, fields = forecasts.find_model(row["model"]), forecasts.make_ways(128)[row["plan"]]
        held = (
            reserved
            * sum(memory.find_fullest_rank(shape, Plan(compile=True, **fields)).values())
            / 1e9
        )
        parts = [row[f"{part.split()[0]}_gb"] for part in plots.plans.PARTS]
        assert sum(parts) == pytest.approx(row["peak_gb"]) == pytest.approx(held)
        assert min(parts) >= 0
        assert row["fits"] == (row["peak_gb"] <= 80)
    alone = table[0]
    assert alone["plan"] == "1 GPU"
    parameters = forecasts.find_model("Llama 2 7B").parameters / 1e9
    states = [alone[f"{part}_gb"] for part in ("parameters", "gradients", "optimizer")]
    assert states == pytest.approx([2 * parameters, 2 * parameters, 12 * parameters])


def test_plans_stand_in_order_and_parts_are_the_whole(plans):
    speeds = [row["seconds_per_step"] for row in plans if row["fits"]]
    assert speeds == sorted(speeds)
    for row in plans:
        assert sum(row["seconds"].values()) == pytest.approx(row["seconds_per_step"])
        assert sum(row["gb"].values()) == pytest.approx(row["peak_gb"])
        assert row["fits"] == (row["peak_gb"] <= row["gpu_gb"])


def test_each_plan_says_what_it_loses_by(plans):
    """The reason is the part that grew most against the best plan."""
    best, reasons = plans[0], {row["slower_by"] for row in plans if row["fits"]}
    assert best["slower_by"] == ""
    assert {"recomputation", "bubble"} <= reasons
    for row in plans.rows[1:]:
        lost = {part: s - best["seconds"][part] for part, s in row["seconds"].items()}
        most = max(lost, key=lost.get)
        if not row["fits"]:
            assert row["slower_by"] == "memory"
        elif most == "compute":
            again = row["recompute"] != best["recompute"]
            assert row["slower_by"].startswith("recomputation" if again else "smaller products")
        else:
            assert row["slower_by"] == forecasts.SLOWER_BY[most]
    turned = [dict(row) for row in plans]
    turned[3]["seconds"] = turned[3]["seconds"] | {"host": 1e3}
    assert forecasts.rank_plans(turned)[3]["slower_by"] == "launches"


def test_what_grows_names_its_limits():
    """By construction: data ranks alone, then matrices in eight over links that are slow."""
    alone = forecasts.grow("Llama 3 8B", counts=(8, 512, 1024), batch=2**22, keep=only_data)
    small, full, none = alone
    assert small["shares"]["compute"] > 0.9
    assert (full["samples_per_gpu"], full["data"], full["marks"]) == (1, 512, [])
    assert none["marks"] == ["no plan divides the batch"]
    assert none["tokens_per_second_per_gpu"] is None

    def in_eight(plan):
        return plan.tensor == 8

    given = {"counts": (64, 512, 4096), "batch": 2**22, "host_gb_s": 20, "keep": in_eight}
    less = forecasts.grow("Llama 3 8B", **given)
    assert ["batch" in row["marks"] for row in less] == [False, False, True]
    assert sum("links" in row["marks"] for row in less) == 1, "where it sets in, and there alone"
    parts = [share for part, share in less[2]["shares"].items() if part != "latency"]
    assert sum(parts) == pytest.approx(1)
    assert 0 < less[2]["shares"]["latency"] < 0.5 * less[2]["shares"]["data"]
    (large,) = forecasts.grow("Llama 3 405B", counts=(8,))
    assert large["marks"] == ["no plan fits the memory"]


def only_data(plan):
    return plan.ranks == plan.data


def test_the_best_of_some_plans_only():
    alone = forecasts.grow("Llama 3 8B", counts=(64, 4096), keep=lambda plan: plan.tensor == 8)
    assert [row["tensor"] for row in alone] == [8, 8]
    (row,) = forecasts.grow("Llama 3 70B", counts=(256,), batch=forecasts.BATCH)
    best = forecasts.list_plans("Llama 3 70B")[0]
    assert row["tokens_per_second_per_gpu"] == best["tokens_per_second_per_gpu"]


def test_published_runs_stand_beside_their_predictions():
    table = forecasts.published_beside_predicted()
    assert len(table) > 90
    errors = [abs(row["error %"]) for row in table]
    assert errors == sorted(errors, reverse=True)
    for row in table:
        off = 100 * (row["predicted_seconds"] / row["published_seconds"] - 1)
        assert off == pytest.approx(row["error %"], abs=0.1)
    assert "7.47 B, TP4 DP32 A100" in table.column("run")


def test_clusters_fail_as_the_theory_says():
    for row in forecasts.checkpoint_intervals((1024, 16384)):
        assert row["between_failures_seconds"] == failures.mtbf_seconds(row["GPUs"])
        assert row["best_interval_seconds"] == failures.daly_interval(
            60, row["between_failures_seconds"]
        )
    assert row["effective_share"] < 0.9


def test_unknown_models_and_impossible_plans_say_why():
    with pytest.raises(ValueError, match="expected one of GPT-2 124M"):
        forecasts.find_model("Llama 9")
    with pytest.raises(ValueError, match="divide over no mesh of 16,384 GPUs"):
        forecasts.list_plans("Llama 3 70B", gpus=16384)
    given = ("Llama 3 70B", "H100 80GB", 256, 400)
    with pytest.raises(ValueError, match="pipeline 64 is 512 ranks, and there are 256 GPUs"):
        forecasts.add_plan(*given, zero=1, tensor=8, pipeline=64)
    with pytest.raises(ValueError, match="80 layers do not divide over 32 stages"):
        forecasts.add_plan(*given, zero=1, tensor=1, pipeline=32)


def test_what_does_not_fit_is_changed_one_thing_at_a_time():
    closest, changes = forecasts.vary_closest("Llama 3 70B", gpus=8, batch=64)
    assert closest[0]["peak_gb"] > 80
    fits = {row["change"]: row["fits"] for row in changes}
    assert fits["offload the optimizer"]
    assert not fits["sequences of 2048"]


# The figures


def fuzzed_plans(seed: int) -> forecasts.Table:
    """Rows as list_plans has them, with sizes and speeds over many powers of ten."""
    chance = random.Random(seed)
    scale, gpu = 10 ** chance.uniform(-1, 5), chance.choice((12.0, 80.0, 186.0))
    found = []
    for _ in range(chance.choice((1, 2, 40))):
        parts = {part: chance.random() ** 3 for part in plots.plans.STEP}
        gb = {part.split()[0]: gpu * 10 ** chance.uniform(-4, 1.5) for part in plots.plans.PARTS}
        held, seconds = sum(gb.values()), sum(parts.values())
        found.append(
            {"tensor": 8, "pipeline": 64, "data": 2048, "ZeRO": 1, "micro-batch": 8}
            | {"recompute": "selective op", "fits": held <= gpu, "peak_gb": held, "gpu_gb": gpu}
            | {"seconds_per_step": seconds, "tokens_per_second_per_gpu": scale / seconds}
            | {"mfu": chance.random(), "limit": "gradients and parameters on the links"}
            | {"gb": gb, "seconds": parts}
        )
    return forecasts.Table(forecasts.rank_plans(found), "plans by chance")


def fuzzed_growth(seed: int) -> forecasts.Table:
    """Rows as grow has them: any shares, any marks, gaps anywhere but at the first number."""
    chance = random.Random(seed)
    found = []
    for power in range(3, 3 + (12, 4, 1)[seed % 3]):
        shares = {part: chance.random() ** 4 for part in plots.plans.STEP}
        shares = {part: share / sum(shares.values()) for part, share in shares.items()}
        known = power == 3 or chance.random() < 0.7
        marks = chance.sample(["batch", "latency", "links", "bubble", "launches"], 2)
        line = {"GPUs": 2**power, "tensor": 8, "pipeline": 64, "data": 2048}
        line |= {"tokens_per_second_per_gpu": 10 ** chance.uniform(0, 5) if known else None}
        line |= {"shares": shares if known else {}}
        found.append(line | {"marks": marks if known else ["no plan divides the batch"]})
    return forecasts.Table(found, "GPUs by chance")


def fuzzed_failures(seed: int):
    chance = random.Random(seed)
    counts = sorted(round(10 ** chance.uniform(0, 6)) for _ in range(chance.choice((1, 5))))
    return forecasts.checkpoint_intervals(
        counts, 10 ** chance.uniform(-1, 4), chance.random() * 3e3
    )


def fuzzed_errors(seed: int) -> forecasts.Table:
    chance = random.Random(seed)
    names = chance.sample(list(forecasts.PUBLISHED.values()), chance.choice((1, 4, 16)))
    size = 10 ** chance.uniform(-2, 3)
    found = [
        {"run": "530 B, TP8 PP35 DP8 A100", "published by": name, "error %": chance.gauss(0, size)}
        for name in names
        for _ in range(chance.choice((1, 30)))
    ]
    return forecasts.Table(sorted(found, key=lambda row: -abs(row["error %"])))


DRAWN = {
    "memory": lambda: plots.memory_by_part(forecasts.memory_by_part()),
    "memory of one": lambda: plots.memory_by_part(forecasts.memory_by_part(["GPT 1T"], 4096)),
    "plans": lambda: plots.feasible_plans(forecasts.list_plans("Mixtral 8x7B", gpus=128)),
    "plans, none fits": lambda: plots.feasible_plans(forecasts.list_plans("Llama 3 405B", gpus=16)),
    "growing": lambda: plots.what_breaks(forecasts.grow("Llama 3 405B")),
    "published": lambda: plots.predicted_and_published(forecasts.published_beside_predicted()),
    "failures": lambda: plots.checkpoint_interval(forecasts.checkpoint_intervals()),
    "axes": three_axes.axes_map,
}
FUZZED = {
    "a plan": lambda seed: plots.chosen_plan(t := fuzzed_plans(seed), t[-1]),
    "plans": lambda seed: plots.feasible_plans(fuzzed_plans(seed)),
    "growing": lambda seed: plots.what_breaks(fuzzed_growth(seed)),
    "published": lambda seed: plots.predicted_and_published(fuzzed_errors(seed)),
    "failures": lambda seed: plots.checkpoint_interval(fuzzed_failures(seed)),
}


@pytest.mark.parametrize("name", DRAWN)
def test_the_lessons_figures_can_be_read(name):
    figure = DRAWN[name]()
    assert legible.faults(figure, style.FOOT) == []
    assert figure.get_figwidth() == 10
    assert "\n" not in figure.alt
    assert figure.alt.endswith(".")
    if name not in ("axes", "published"):
        assert "nothing here is measured" in " ".join(figure.get_supxlabel().split())


@pytest.mark.parametrize(("name", "height"), [("growing", 465), ("memory", 465), ("axes", 540)])
def test_dense_ones_can_be_read_on_a_slide(name, height):
    legible.watch_slides(embed)
    two = forecasts.memory_by_part(forecasts.MODELS[:2])
    figure = plots.memory_by_part(two) if name == "memory" else DRAWN[name]()
    assert "<img" in embed.to_html(figure, height, title=True)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", FUZZED)
def test_any_values_can_be_read(name, seed):
    assert legible.faults(FUZZED[name](seed), style.FOOT) == []


def test_bars_are_what_the_table_says_and_end_at_the_axis():
    table = forecasts.memory_by_part(["Llama 2 7B", "Llama 3 70B"])
    figure = plots.memory_by_part(table)
    (axes,) = figure.axes
    widths = [bar.get_width() for bar in axes.patches]
    assert widths[:2] == pytest.approx([table[0]["parameters_gb"], table[0]["gradients_gb"]])
    end = axes.get_xlim()[1]
    assert (
        max(bar.get_x() + bar.get_width() for bar in axes.patches if bar.get_width()) <= end + 1e-9
    )
    said = [text.get_text() for text in legible.texts(figure)]
    alone = table[4]
    assert (alone["model"], alone["plan"]) == ("Llama 3 70B", "1 GPU")
    assert f"▶ {alone['peak_gb']:,.0f} GB: does not fit" in said
    assert "Llama 3 70B, ZeRO-3 over 64, recomputed: " in figure.alt


def test_a_single_bar_can_be_read():
    whole = forecasts.memory_by_part(["Llama 2 7B"])
    figure = plots.memory_by_part(forecasts.Table(whole.rows[1:2], whole.caption))
    assert legible.faults(figure, style.FOOT) == []
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["Llama 2 7B", "ZeRO-3 over 64"]
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(whole[1]["peak_gb"])


def test_all_plans_are_drawn_and_the_best_is_marked(plans):
    figure = plots.chosen_plan(plans, plans[5])
    axes = figure.axes[-1]
    lines = {line.get_label().replace("\n", " "): line for line in axes.lines}
    points = [line for name, line in lines.items() if name not in ("best", "chosen")]
    drawn = sum(len(line.get_xdata()) for line in points if not line.get_label().startswith("_"))
    assert drawn == len(plans) - 1, "all but the best, which is a star"
    best = max((row for row in plans if row["fits"]), key=lambda r: r["tokens_per_second_per_gpu"])
    assert lines["best"].get_xdata() == [best["peak_gb"]]
    assert lines["chosen"].get_ydata() == [plans[5]["tokens_per_second_per_gpu"]]
    assert max(x for line in points for x in line.get_xdata()) < axes.get_xlim()[1]
    assert f"{len(plans)} plans, {sum(row['fits'] for row in plans)} fit" in figure.alt
    assert "too large" in lines
    with pytest.raises(ValueError, match="no plans"):
        plots.feasible_plans([])


def test_one_plan_is_told_part_by_part(plans):
    small, large = plots.chosen_plan(plans, plans[0]), plots.chosen_plan(plans, plans[-1])
    assert "100 % of the best" in small.get_suptitle()
    assert "does not fit" in large.get_suptitle()
    assert "chosen is limited by: memory" in large.alt
    assert "slower than the best by" not in large.alt
    row = {**plans[0], "ZeRO": 1, "tensor": 1, "pipeline": 2, "data": 1024, "recompute": "full"}
    named = plots.plans.describe_plan(row | {"micro-batch": 1})
    assert named == "pipeline 2, data 1,024, ZeRO-1, recompute full"
    memory, step, _ = small.axes
    assert memory.patches[-1].get_width() == pytest.approx(plans[0]["peak_gb"])
    spent = step.patches[-1].get_width()
    assert spent == pytest.approx(plans[0]["seconds_per_step"], rel=2e-3)


def test_limits_stand_where_they_set_in():
    growth = forecasts.grow("Llama 3 8B", counts=(512, 1024), batch=2**22)
    last = forecasts.grow("Llama 3 8B", counts=(16384,), batch=2**22, keep=only_data)
    figure = plots.what_breaks(forecasts.Table([*growth, *last]))
    (axes,) = figure.axes
    words = {text.get_text(): text.get_position()[0] for text in axes.texts if text.get_text()}
    assert words["batch"] == 1
    assert words["batch too small"] == 2
    labels = [tick.get_text() for tick in axes.get_xticklabels()]
    assert labels[0] == f"512\n1\n1\n512\n{growth[0]['tokens_per_second_per_gpu']:,.0f}"
    assert labels[2] == "16,384\n-\n-\n-\n-"
    assert "16,384 GPUs (no plan divides the batch)" in figure.alt
    first = [bar for bar in axes.patches if round(bar.get_x() + 0.4) == 0]
    assert sum(bar.get_height() for bar in first) == pytest.approx(100, abs=0.5)
    with pytest.raises(ValueError, match="no number of GPUs has a plan"):
        plots.what_breaks(forecasts.grow("Llama 3 405B", counts=(8,)))


def test_curves_are_the_models_and_marks_are_lowest():
    table = forecasts.checkpoint_intervals((1024, 16384))
    curve, mark, *_ = plots.checkpoint_interval(table).axes[0].lines
    assert min(curve.get_ydata()) == pytest.approx(100 * (1 - table[0]["effective_share"]))
    assert mark.get_xdata() == [table[0]["best_interval_seconds"]]


def test_the_worst_runs_are_named():
    figure = plots.predicted_and_published(forecasts.published_beside_predicted())
    worst = forecasts.published_beside_predicted()[0]
    assert f"{worst['run']} {worst['error %']:+.0f} %" in " ".join(figure.get_supxlabel().split())


# The sliders


def test_the_sliders_move_one_plan_among_all(picture, plans):
    best = {name: plans[0][words] for name, (words, _) in simulators.PLAN.items()}
    best["recompute"] = plans[0]["recompute"]
    controls = simulators.planner(**best)
    assert "100 % of the best" in picture.html
    controls["recompute"].value = "full"
    assert "slower than the best by: recomputation" in picture.html
    controls["zero"].value = 0
    assert "but it does not fit" in picture.html
    controls["pipeline"].value = 32
    assert "80 layers do not divide over 32 stages" in picture.html
    controls["model"].value = "Llama 2 7B"
    assert "Llama 2 7B on 256" in picture.html
    assert all(control.description for control in controls.values())
