"""Lesson 10's tables, and the sliders that choose a plan. Nothing is launched."""

import pytest

pytest.importorskip("matplotlib")  # a GPU machine may lack all of the notebook side

from bootcamp.costs import failures, fitted_constants, memory
from bootcamp.costs.plans import Plan
from bootcamp.drawing import plots
from bootcamp_lessons import forecasts, simulators


@pytest.fixture(scope="module")
def plans():
    """All plans of a 70 B model on 256 GPUs."""
    return forecasts.list_plans("Llama 3 70B")


def test_memory_parts_add_up_to_the_planners_peak():
    table = forecasts.memory_by_part(gpus=128)
    assert {row["model"] for row in table} == set(forecasts.MODELS)
    reserved = fitted_constants.find_constants("", "H100 80GB").reserved
    for row in table:
        shape, fields = forecasts.find_model(row["model"]), forecasts.make_ways(128)[row["plan"]]
        fullest = memory.find_fullest_rank(shape, Plan(compile=True, **fields))
        held = reserved * sum(fullest.values()) / 1e9
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


def test_plans_lose_by_the_part_that_grew_most(plans):
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


def test_growth_names_its_limits():
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


def test_growth_takes_the_best_of_the_plans_it_may():
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


def test_checkpoint_intervals_are_dalys():
    for row in forecasts.checkpoint_intervals((1024, 16384)):
        assert row["between_failures_seconds"] == failures.mtbf_seconds(row["GPUs"])
        assert row["best_interval_seconds"] == failures.daly_interval(
            60, row["between_failures_seconds"]
        )
    assert row["effective_share"] < 0.9


def test_impossible_plans_and_unknown_models_say_why():
    with pytest.raises(ValueError, match="expected one of GPT-2 124M"):
        forecasts.find_model("Llama 9")
    with pytest.raises(ValueError, match="divide over no mesh of 16,384 GPUs"):
        forecasts.list_plans("Llama 3 70B", gpus=16384)
    given = ("Llama 3 70B", "H100 80GB", 256, 400)
    with pytest.raises(ValueError, match="pipeline 64 is 512 ranks, and there are 256 GPUs"):
        forecasts.add_plan(*given, zero=1, tensor=8, pipeline=64)
    with pytest.raises(ValueError, match="80 layers do not divide over 32 stages"):
        forecasts.add_plan(*given, zero=1, tensor=1, pipeline=32)


def test_closest_plan_is_changed_one_thing_at_a_time():
    closest, changes = forecasts.vary_closest("Llama 3 70B", gpus=8, batch=64)
    assert closest[0]["peak_gb"] > 80
    fits = {row["change"]: row["fits"] for row in changes}
    assert fits["offload the optimizer"]
    assert not fits["sequences of 2048"]


def test_sliders_move_one_plan_among_all(picture, plans):
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
