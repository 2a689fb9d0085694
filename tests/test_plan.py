"""The planner against published tables, theory and its own simulations, and its stored fit."""

import copy
import json
import time

import accuracy
import published_fit
import pytest

from bootcamp.costs import (
    fitted_constants,
    kernels,
    memory,
    model_shapes,
    pipeline_schedules,
    planner,
    published,
    sharding,
    step,
    traffic,
)
from bootcamp.costs.hardware import Cluster, gpu
from bootcamp.costs.plans import Plan
from bootcamp.paths import REFERENCE
from bootcamp.plan import __main__

# columns that the planner answers, and how far from the published number it may be: half a unit of
# the last printed digit, or a relative error
PUBLISHED_MEMORY = {
    "zero_table1": ("published_peak_gb", "last digit"),
    "zero_figure1": ("published_peak_gb", "last digit"),
    "deepspeed_memory": ("published_peak_gib", "last digit"),
    "korthikanti_table2_eval": ("published_bytes", 1e-6),
    "torchtitan": ("published_peak_gib", 0.05),
}


@pytest.mark.parametrize("table", PUBLISHED_MEMORY)
def test_memory_is_the_published_one(table):
    column, within = PUBLISHED_MEMORY[table]
    seen = 0
    for row in published.table(table):
        text = row[column]
        if not text:
            continue
        answer = __main__.answer_row(row)
        found = answer["peak_gib"] if column.endswith("gib") else answer["peak_gb"]
        found *= 1e9 if column.endswith("bytes") else 1
        if within == "last digit":  # rounded to even or up: 41.25 is printed as 41.3
            how_near = {"abs": 10.0 ** -len(text.partition(".")[2]) / 2 + 1e-9}
        else:
            how_near = {"rel": within}
        assert found == pytest.approx(float(text), **how_near), row["row_id"]
        seen += 1
    assert seen >= 2


@pytest.mark.parametrize("table", sorted(path.stem for path in published.FOLDER.glob("*.csv")))
def test_published_rows_are_answered_and_their_parts_are_the_whole(table):
    for row in published.table(table):
        if "stack" not in row:
            continue
        assert row["stack"] == table
        answer = __main__.answer_row(row)
        assert answer["error"] == answer["warning"] == "", row
        assert answer["peak_gb"] > 0
        found = planner.answer(planner.read(row))
        if found.seconds is not None:
            assert sum(found.parts.values()) == pytest.approx(found.seconds)
            assert min(found.parts.values()) >= -1e-9, (row["row_id"], found.parts)


def test_parameters_are_those_of_the_theory_and_of_the_published_models():
    gpt = model_shapes.find_model("GPT-3 175B")
    # equation 2 of arXiv:2104.04473
    expected = 12 * 96 * 12288**2 * (1 + 13 / (12 * 12288) + (51200 + 2048) / (12 * 96 * 12288))
    assert gpt.parameters == pytest.approx(expected)
    for name, billions in (("Llama3.1-8B", 8.03), ("LLAMA3_70B", 70.55), ("Mixtral-8x7B", 46.7)):
        assert model_shapes.find_model(name).parameters / 1e9 == pytest.approx(billions, abs=0.01)
    for row in published.table("mosaicml_mpt"):
        shape = planner.read(row).shape
        assert shape.parameters == pytest.approx(float(row["published_parameters"]), rel=0.001)


def test_flops_are_those_of_the_paper():
    shape = model_shapes.Model(2, 64, 4, 32, 1000)
    # 72 B s l h^2 (1 + s/6h + V/12lh) of arXiv:2104.04473, for one token
    expected = 72 * 2 * 64**2 * (1 + 32 / (6 * 64) + 1000 / (12 * 2 * 64))
    assert shape.flops_of_token() == pytest.approx(expected)


@pytest.mark.parametrize(("pipeline", "micro_batches"), [(2, 4), (4, 4), (4, 12)])
def test_pipelines_take_what_the_simulated_schedule_takes(pipeline, micro_batches):
    plan = Plan(pipeline=pipeline, batch=micro_batches)
    whole, bubble = step.pipeline_seconds((3.0, 3.0, 3.0), (0.0, 0.0), plan)
    spans = pipeline_schedules.timetable("1f1b", pipeline, micro_batches)
    assert whole == pytest.approx(pipeline_schedules.makespan(spans))
    by_formula = pipeline_schedules.bubble_by_formula("1f1b", pipeline, micro_batches)
    assert bubble / (whole - bubble) == pytest.approx(by_formula)
    if micro_batches >= 2 * pipeline - 1:
        v = Plan(pipeline=pipeline, batch=micro_batches, schedule="zb-v")
        whole, _ = step.pipeline_seconds((3.0, 3.0, 3.0), (0.0, 0.0), v)
        spans = pipeline_schedules.timetable("zb-v", pipeline, micro_batches)
        assert whole == pytest.approx(pipeline_schedules.makespan(spans))
        held = [half / 2 for half in pipeline_schedules.most_in_flight(spans)]
        assert held == [memory.in_flight(v, stage) for stage in range(pipeline)]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_bytes_between_hosts_are_those_of_the_rings_rank_by_rank(strategy):
    group, size = sharding.Group(32), 1e6
    calls = sharding.collectives(strategy)
    expected = sharding.link_bytes(strategy, size, 32, 4)
    found = sum(sharding.split_by_link(k, size * part, group, 8)["between"] for _, k, part in calls)
    assert 8 * found == pytest.approx(expected)  # link_bytes counts one host
    alone = sum(sum(sharding.split_by_link(k, s * size, group, 8).values()) for _, k, s in calls)
    assert alone == pytest.approx(sharding.sent_bytes(strategy, size, 32))


def test_waves_cost_the_same_nearly_empty():
    full = kernels.count_tiled_flops(100, 256 * 10, 128 * 10, 1024, 1)
    one_more = kernels.count_tiled_flops(100, 256 * 10 + 1, 128 * 10, 1024, 1)
    assert one_more > 1.2 * full
    assert kernels.count_tiled_flops(100, 256 * 10, 128 * 10 - 5, 1024, 1) == full


def test_constants_are_in_their_range_and_have_four_rows_each():
    numbers, measured = 0, 0
    for stack, found in fitted_constants.FITTED.items():
        measured += len(found["rows"])
        for name, value in found["constants"].items():
            known = fitted_constants.EXPLAINED
            about = known.get(name) or known[name.partition(" ")[0]]
            assert about["low"] <= value <= about["high"], (stack, name)
            assert about["is"]
        if stack:
            numbers += len(found["constants"]) + len(found["anchors"])
        assert len(found["constants"]) * 4 <= len(found["rows"]) or not stack
    assert numbers * 4 <= measured


def test_seconds_are_the_published_ones_by_the_stored_fit():
    """How wrong it is on rows that it has not seen, make accuracy says; this is the stored fit."""
    off = {}
    for table in ("vtrain_single", "vtrain_multi"):
        for row in published.table(table):
            answer = planner.answer(planner.read(row))
            measured = 1e-3 * float(row["published_milliseconds"])
            off.setdefault(table, []).append(abs(answer.seconds / measured - 1))
    assert sum(off["vtrain_single"]) / 24 < 0.055
    assert sum(off["vtrain_multi"]) / 10 < 0.045


def test_accuracy_is_recorded_of_the_stored_fit():
    recorded = json.loads((REFERENCE / "accuracy.json").read_text())
    fitted = {(row["stack"], row["constant"]): row["value"] for row in recorded["constants"]}
    for stack, found in fitted_constants.FITTED.items():
        for name, value in found["constants"].items():
            assert not stack or fitted[stack, name] == float(f"{value:.4g}")
    rows_of = [row for table in published_fit.TABLES for row in published.table(table)]
    assert len(recorded["rows"]) == len(rows_of)


@pytest.mark.slow
def test_fits_find_and_write_what_is_stored(monkeypatch, tmp_path):
    """`make accuracy ARGS=--fit`, without the tables that it prints afterwards."""
    stored = copy.deepcopy(fitted_constants.FITTED)
    monkeypatch.setattr(fitted_constants, "HERE", tmp_path)
    monkeypatch.setattr(fitted_constants, "FITTED", {})
    accuracy.write_fit(published_fit.measured())
    found = json.loads((tmp_path / "fitted.json").read_text())
    assert found == fitted_constants.FITTED
    assert list(found) == list(stored)
    for stack, old in stored.items():
        assert found[stack]["rows"] == old["rows"]
        for kind in ("constants", "anchors"):
            assert found[stack][kind] == pytest.approx(old[kind], rel=0.001)


def test_stacks_have_their_own_answers_and_one_never_seen_borrows():
    row = published.table("ptdp_table1")[1]
    found = [__main__.answer_row({**row, "stack": name}) for name in ("", "vtrain", "mtnlg_530b")]
    assert len({answer["seconds_per_step"] for answer in found}) == 3
    borrowed = fitted_constants.FITTED[""]["constants"]
    assert fitted_constants.find_constants("", "A100 80GB").matmul == borrowed["matmul A100"]


def test_strategies_are_answered_for_16384_ranks():
    shape, cluster = model_shapes.find_model("Llama 3 405B"), Cluster(gpu("H100"), 16384)
    given = {
        "tensor, pipeline, data": Plan(data=128, tensor=8, pipeline=16, stage=1, batch=2048),
        "FSDP": Plan(data=16384, stage=3, batch=16384, recompute="full"),
        "HSDP": Plan(data=16384, stage=3, shard=64, batch=16384),
        "DDP": Plan(data=16384, batch=16384),
        "context": Plan(data=8, tensor=8, context=16, pipeline=16, stage=2, batch=128),
    }
    began = time.process_time()
    found = {name: traffic.kinds(shape, plan, cluster) for name, plan in given.items()}
    assert time.process_time() - began < 10
    assert all(sum(table.column("ranks")) == 16384 for table in found.values())
    held = found["tensor, pipeline, data"].column("activations_bytes")
    assert held[1:] == sorted(held[1:], reverse=True)  # the first has a layer less
    assert held[0] > held[8] > held[-1] > 0
    each = found["FSDP"][0]
    assert each["parameters_bytes"] == round(2 * shape.parameters / 16384)
    sent = each["sent_inside_bytes"] + each["sent_between_bytes"]
    assert sent == pytest.approx(sharding.sent_bytes("fsdp", 2 * shape.parameters, 16384), rel=1e-6)


def test_states_of_all_ranks_together_are_the_models():
    shape, cluster = model_shapes.Model(8, 256, 4, 128, 1000), Cluster(gpu("A100"), 16)
    plan = Plan(data=4, pipeline=4, stage=1, batch=16)
    table = traffic.kinds(shape, plan, cluster)
    optimizer = sum(row["ranks"] * row["optimizer_bytes"] for row in table)
    head = shape.embedding_parameters()  # the first and the last stage hold the tied matrix each
    assert optimizer == pytest.approx(12 * (shape.parameters + head), rel=1e-6)
