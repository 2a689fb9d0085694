"""The planner: exact states, formulas against theory, published rows, advice."""

import copy
import json
import math
import time
from pathlib import Path

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
    plans,
    published,
    sharding,
    step,
    traffic,
)
from bootcamp.costs.hardware import Cluster, gpu
from bootcamp.costs.plans import Plan
from bootcamp.plan import __main__

ROOT = Path(__file__).resolve().parents[1]


def printed(value: float, like: str) -> str:
    """A number with as many digits behind the point as another has."""
    return f"{value:.{len(like.partition('.')[2])}f}"


@pytest.mark.parametrize("row", published.table("zero_table1"), ids=lambda row: row["row_id"])
def test_states_are_exact_to_the_last_digit(row):
    answer = __main__.answer_row(row)
    # half a unit of the last digit: the paper rounds 41.25 up and 1.875 up
    last = 10.0 ** -len(row["published_peak_gb"].partition(".")[2])
    assert abs(answer["peak_gb"] - float(row["published_peak_gb"])) <= last / 2 + 1e-9
    assert answer["error"] == ""


def test_states_of_the_papers_figure_and_of_deepspeeds_offload():
    for row in published.table("zero_figure1"):
        size = row["published_peak_gb"]
        assert printed(__main__.answer_row(row)["peak_gb"], size) == f"{float(size):g}"
    offloaded, kept = published.table("deepspeed_memory")
    for row in (offloaded, kept):
        answer = __main__.answer_row(row)
        assert printed(answer["peak_gib"], row["published_peak_gib"]) == row["published_peak_gib"]


@pytest.mark.parametrize(
    "row", published.table("korthikanti_table2_eval"), ids=lambda r: r["row_id"]
)
def test_activations_of_a_layer_are_those_of_the_paper(row):
    sizes = {"22B": (6144, 64, 4), "175B": (12288, 96, 1)}
    hidden, heads, micro = sizes[row["model"]]
    technique = row["published_technique"]
    plan = Plan(
        tensor=1 if technique == "no parallelism" else 8,
        micro_batch=micro,
        batch=micro,
        sequence_parallel="sequence" in technique or "SP" in technique,
        recompute="full" if "full" in technique else "none",
        attention="unfused",
    )
    shape = model_shapes.Model(1, hidden, heads, 2048, 51200)
    kept = "selective" if "selective" in technique else None
    assert memory.layer_bytes(shape, plan, kept) == pytest.approx(float(row["published_bytes"]))
    answer = __main__.answer_row(row)
    assert answer["peak_gb"] * 1e9 == pytest.approx(float(row["published_bytes"]))


def test_peak_memory_of_published_rows_within_five_percent():
    seen = 0
    for row in published.table("torchtitan"):
        if row["published_peak_gib"]:
            answer = __main__.answer_row(row)
            assert answer["peak_gib"] == pytest.approx(float(row["published_peak_gib"]), rel=0.05)
            seen += 1
    assert seen == 4


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


def test_flops_are_the_papers():
    shape = model_shapes.Model(2, 64, 4, 32, 1000)
    # 72 B s l h^2 (1 + s/6h + V/12lh) of arXiv:2104.04473, for one token
    expected = 72 * 2 * 64**2 * (1 + 32 / (6 * 64) + 1000 / (12 * 2 * 64))
    assert shape.flops_of_token() == pytest.approx(expected)


@pytest.mark.parametrize(("pipeline", "micro_batches"), [(2, 4), (4, 4), (4, 12)])
def test_a_pipeline_takes_what_the_simulated_schedule_takes(pipeline, micro_batches):
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


def test_a_nearly_empty_wave_costs_a_full_one():
    full = kernels.count_tiled_flops(100, 256 * 10, 128 * 10, 1024, 1)
    one_more = kernels.count_tiled_flops(100, 256 * 10 + 1, 128 * 10, 1024, 1)
    assert one_more > 1.2 * full
    assert kernels.count_tiled_flops(100, 256 * 10, 128 * 10 - 5, 1024, 1) == full


def test_the_parts_are_the_step_and_none_is_negative():
    for table in ("vtrain_multi", "mosaicml_mpt", "torchtitan", "megascale"):
        for row in published.table(table):
            answer = planner.answer(planner.read(row))
            assert sum(answer.parts.values()) == pytest.approx(answer.seconds)
            assert min(answer.parts.values()) >= -1e-9, (row["row_id"], answer.parts)


def test_ten_thousand_rows_take_no_minute():
    """In CPU seconds; 500 rows stand for them."""
    rows = [
        {**row, "sequence_length": str(512 + 64 * i)}
        for i in range(21)
        for row in published.table("vtrain_single")
    ]
    began = time.process_time()
    assert all(__main__.answer_row(plan)["error"] == "" for plan in rows)
    assert (time.process_time() - began) * 10_000 / len(rows) < 60


def test_every_constant_is_in_its_range_and_has_four_rows():
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


def test_published_rows_are_predicted_by_the_constants_that_are_stored():
    """How wrong it is on rows that it has not seen, make accuracy says; this is the stored fit."""
    off = {}
    for table in ("vtrain_single", "vtrain_multi"):
        for row in published.table(table):
            answer = planner.answer(planner.read(row))
            measured = 1e-3 * float(row["published_milliseconds"])
            off.setdefault(table, []).append(abs(answer.seconds / measured - 1))
    assert sum(off["vtrain_single"]) / 24 < 0.055
    assert sum(off["vtrain_multi"]) / 10 < 0.045


def test_the_record_of_accuracy_is_of_the_stored_fit():
    recorded = json.loads((ROOT / "logs" / "reference" / "accuracy.json").read_text())
    fitted = {(row["stack"], row["constant"]): row["value"] for row in recorded["constants"]}
    for stack, found in fitted_constants.FITTED.items():
        for name, value in found["constants"].items():
            assert not stack or fitted[stack, name] == float(f"{value:.4g}")
    rows_of = [row for table in published_fit.TABLES for row in published.table(table)]
    assert len(recorded["rows"]) == len(rows_of)


def test_a_fit_without_a_row_finds_what_it_was_made_with():
    """Rows made up by the planner itself give its constants back, and a left-out row no error."""
    data = published_fit.measured(["mosaicml_mpt"])
    known = fitted_constants.FITTED["mosaicml_mpt"]["constants"]
    for row in data:
        row.seconds = planner.answer(row.case).seconds
    found = published_fit.fit("mosaicml_mpt", data[1:])
    assert found == pytest.approx(known, rel=0.02)
    assert abs(published_fit.error(data[0], found)) < 0.01


@pytest.mark.slow
def test_a_new_fit_finds_and_writes_what_is_stored(monkeypatch, tmp_path):
    """`tools/accuracy.py --fit`, without the tables that it prints afterwards."""
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


def test_another_stack_another_answer_and_a_stack_never_seen_borrows():
    row = published.table("ptdp_table1")[1]
    found = [__main__.answer_row({**row, "stack": name}) for name in ("", "vtrain", "mtnlg_530b")]
    assert len({answer["seconds_per_step"] for answer in found}) == 3
    borrowed = fitted_constants.FITTED[""]["constants"]
    assert fitted_constants.find_constants("", "A100 80GB").matmul == borrowed["matmul A100"]


def test_any_strategy_of_16384_ranks_at_once():
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


def test_a_plan_that_cannot_be_is_refused_with_a_sentence():
    shape = model_shapes.Model(8, 256, 4, 128, 1000)
    with pytest.raises(ValueError, match="recompute='some'"):
        plans.check(shape, Cluster(gpu("A100"), 1), Plan(recompute="some"))
    assert math.isfinite(planner.predict(shape, Cluster(gpu("A100"), 1), Plan()).seconds)
