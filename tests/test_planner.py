"""The planner against published tables, theory and its own simulations; tables that it answers."""

import csv
import io
import itertools
import json
import statistics
import time

import accuracy
import pytest

from bootcamp.costs import (
    fitted_constants,
    hardware,
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
from bootcamp.costs.hardware import GIB, Cluster, gpu
from bootcamp.costs.plans import Plan
from bootcamp.paths import REFERENCE
from bootcamp.plan import __main__

ROWS = [
    row
    for path in sorted(published.FOLDER.glob("*.csv"))
    for row in published.table(path.stem)
    if "stack" in row
]

# Against what was published

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
    rows = [row for row in published.table(table) if row[column]]
    assert len(rows) >= 2
    for row in rows:
        text, answer = row[column], __main__.answer_row(row)
        found = answer["peak_gib"] if column.endswith("gib") else answer["peak_gb"]
        found *= 1e9 if column.endswith("bytes") else 1
        if within == "last digit":  # rounded to even or up: 41.25 is printed as 41.3
            how_near = {"abs": 10.0 ** -len(text.partition(".")[2]) / 2 + 1e-9}
        else:
            how_near = {"rel": within}
        assert found == pytest.approx(float(text), **how_near), row["row_id"]


def test_published_rows_are_answered_and_their_parts_are_the_whole():
    for row in ROWS:
        answer = __main__.answer_row(row)
        assert answer["error"] == answer["warning"] == "", row
        assert answer["peak_gb"] > 0
        found = planner.answer(planner.read(row))
        if found.seconds is not None:
            assert sum(found.parts.values()) == pytest.approx(found.seconds)
            assert min(found.parts.values()) >= -1e-9, (row["row_id"], found.parts)
            assert found.peak_bytes < 1.04 * planner.read(row).cluster.gpu.memory, "since it ran"
    assert len({row["stack"] for row in ROWS}) > 10


def test_models_have_the_parameters_and_flops_of_theory_and_of_what_was_published():
    gpt = model_shapes.find_model("GPT-3 175B")
    # equation 2 of arXiv:2104.04473
    expected = 12 * 96 * 12288**2 * (1 + 13 / (12 * 12288) + (51200 + 2048) / (12 * 96 * 12288))
    assert gpt.parameters == pytest.approx(expected)
    for name, billions in (("Llama3.1-8B", 8.03), ("LLAMA3_70B", 70.55), ("Mixtral-8x7B", 46.7)):
        assert model_shapes.find_model(name).parameters / 1e9 == pytest.approx(billions, abs=0.01)
    for row in published.table("mosaicml_mpt"):
        shape = planner.read(row).shape
        assert shape.parameters == pytest.approx(float(row["published_parameters"]), rel=0.001)
    # its 72 B s l h^2 (1 + s/6h + V/12lh), for one token
    expected = 72 * 2 * 64**2 * (1 + 32 / (6 * 64) + 1000 / (12 * 2 * 64))
    assert model_shapes.Model(2, 64, 4, 32, 1000).flops_of_token() == pytest.approx(expected)


# The fit


RECORD = json.loads((REFERENCE / "accuracy.json").read_text())


def test_stored_fit_predicts_what_is_recorded_of_rows_held_out():
    """`make accuracy` draws the half by a seed; no constant is fitted to it."""
    _, held = accuracy.split(accuracy.measured())
    found = [planner.answer(row.case).seconds for row in held]
    recorded = [row for row in RECORD["rows"] if row["half"] == "held out"]
    predicted = sorted(row["predicted"] for row in recorded)
    assert sorted(found) == pytest.approx(predicted, rel=1e-3)
    off = {row["table"]: row["mean %"] for row in RECORD["by table"] if row["half"] == "held out"}
    assert off["vtrain_single"] < 7
    assert off["vtrain_multi"] < 5


def test_fitted_numbers_are_few_in_their_range_and_recorded():
    assert len(RECORD["constants"]) + 1 <= 11  # and what the allocator keeps
    listed = {
        (row["stack"].replace("all", ""), row["constant"]): row for row in RECORD["constants"]
    }
    stacks = fitted_constants.FITTED.items()
    stored = {(stack, name): each for stack, values in stacks for name, each in values.items()}
    assert stored.keys() == listed.keys()
    assert stored.keys() == set(accuracy.keys())
    for key, value in stored.items():
        about = accuracy.about(key[1])
        assert about["low"] <= value <= about["high"], key
        assert (listed[key]["value"], listed[key]["is"]) == (value, about["is"])


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Rows in intervals that others set, and held-out rows in those that the planner says."""
    kinds = [row for row in RECORD["calibration"] if row["GPUs, at most"] == "any number"]
    assert all(75 <= row["inside %"] <= 85 for row in kinds)
    hits = []
    for row in accuracy.split(accuracy.measured())[1]:
        if row.stack in fitted_constants.FITTED:
            how = planner.answer(row.case).seconds, row.stack, row.case.cluster.gpus
            low, high = fitted_constants.interval(*how)
            hits.append(low <= row.seconds <= high)
    assert 0.75 <= statistics.mean(hits) <= 0.9


def test_stacks_have_their_own_answers_and_one_never_seen_what_all_share():
    row = published.table("ptdp_table1")[1]
    found = [__main__.answer_row({**row, "stack": name}) for name in ("", "vtrain", "mtnlg_530b")]
    assert len({answer["seconds_per_step"] for answer in found}) == 3
    shared = fitted_constants.FITTED[""]
    for stack in ("", "ibm_fsdp_hsdp"):  # never seen, and with too few rows
        constants = fitted_constants.find_constants(stack, "H100 80GB")
        assert (constants.matmul, constants.clock) == (shared["matmul"], shared["clock H100"])


# Against theory and simulations


@pytest.mark.parametrize(("pipeline", "micro_batches"), [(2, 4), (4, 4), (4, 12)])
def test_pipelines_take_what_the_simulated_schedule_takes(pipeline, micro_batches):
    for schedule in ("1f1b", "zb-v"):
        if schedule == "zb-v" and micro_batches < 2 * pipeline - 1:
            continue  # too few to fill the V
        plan = Plan(pipeline=pipeline, batch=micro_batches, schedule=schedule)
        whole, bubble = step.pipeline_seconds((3.0, 3.0, 3.0), (0.0, 0.0), plan)
        spans = pipeline_schedules.timetable(schedule, pipeline, micro_batches)
        assert whole == pytest.approx(pipeline_schedules.makespan(spans))
        assert bubble / (whole - bubble) == pytest.approx(pipeline_schedules.bubble(spans))
        held = pipeline_schedules.most_in_flight(spans)
        if schedule == "zb-v":
            assert held == [2 * memory.in_flight(plan, stage) for stage in range(pipeline)]


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
    table = traffic.kinds(shape, Plan(data=4, pipeline=4, stage=1, batch=16), cluster)
    optimizer = sum(row["ranks"] * row["optimizer_bytes"] for row in table)
    head = shape.embedding_parameters()  # the first and the last stage hold the tied matrix each
    assert optimizer == pytest.approx(12 * (shape.parameters + head), rel=1e-6)


LARGE = ("llama3_table4", "megascale", "mtnlg_530b")


@pytest.mark.parametrize("row", [row for table in LARGE for row in published.table(table)])
def test_published_meshes_of_thousands_of_gpus_are_candidates(row):
    case, began = planner.read(row), time.process_time()
    mesh = {axis: getattr(case.plan, axis) for axis in ("context", "virtual", "micro_batch")}
    how = {"recompute": case.plan.recompute, "tensor": (4, 8)}  # constraints as real runs have them
    candidates = plans.list_candidates(case.shape, case.cluster, case.plan.batch, **how)
    same = [plan for plan in candidates if (plan.tensor, plan.data) == (8, case.plan.data)]
    assert any(mesh.items() <= vars(plan).items() for plan in same)
    best, found = planner.search(case.shape, case.cluster, case.plan.batch)[0]
    assert time.process_time() - began < 10
    assert found.peak_bytes <= case.cluster.gpu.memory
    assert found.mfu > 0.95 * planner.predict(case.shape, case.cluster, case.plan).mfu, best


@pytest.mark.parametrize(("per_host", "kind"), [(4, "H100"), (8, "A100"), (72, "GB200")])
def test_search_finds_what_trying_all_plans_finds(per_host, kind):
    shape = model_shapes.find_model("Mixtral 8x7B" if per_host == 4 else "Llama 3 8B")
    cluster = Cluster(gpu(kind), 4 * per_host, per_host, host_bytes=12.5e9 * per_host)
    given = {"precision": ("bf16", "fp8"), "micro_batch": (1, 2), "schedule": ("1f1b", "zb-v")}
    tried = list(plans.list_candidates(shape, cluster, 8 * per_host, **given))
    answers = [planner.predict(shape, cluster, plan) for plan in tried]
    fitting = [each.seconds for each in answers if each.peak_bytes <= cluster.gpu.memory]
    found = planner.search(shape, cluster, 8 * per_host, most=5, **given)
    assert [each.seconds for _, each in found] == sorted(fitting)[:5]
    assert {plan.precision for plan, _ in found} == {"fp8" if gpu(kind).peak_fp8 else "bf16"}
    assert all(per_host % plan.tensor == 0 for plan in tried)
    assert {plan.expert for plan in tried} > {1} or shape.experts == 1


def test_work_takes_longer_and_gpus_no_less_than_their_share():
    """Over meshes, micro-batches and widths of vtrain_single's kind."""
    names = ("gpus", "data", "tensor", "pipeline")
    first = published.table("vtrain_single")[0]
    for tensor, pipeline, micro in itertools.product((1, 2, 4), (1, 2, 4), (1, 2, 4)):
        seconds = {}
        for data, batch, layers in itertools.product((1, 2), (32, 64), (12, 24)):
            ranks_of = data * tensor * pipeline
            row = dict(zip(names, map(str, (ranks_of, data, tensor, pipeline)), strict=True))
            row |= {"micro_batch": str(micro), "batch": str(batch), "layers": str(layers)}
            answer = __main__.answer_row({**first, **row})
            seconds[data, batch, layers] = answer["seconds_per_step"]
        for data, layers in itertools.product((1, 2), (12, 24)):
            assert seconds[data, 32, layers] < seconds[data, 64, layers]
            assert seconds[data, 64, layers] <= 2 * seconds[data, 32, layers]
            assert seconds[data, 64, 12] < seconds[data, 64, 24]
            assert seconds[2, 64, layers] >= seconds[1, 64, layers] / 2


# Tables of plans: columns, names, malformed rows, a shell

GOOD = {"gpu": "A100-80GB", "gpus": "8", "tp": "2", "dp": "4", "pp": "1", "stack": ""}
GOOD |= {"hidden": "4096", "layers": "32", "heads": "32", "sequence_length": "2048"}
GOOD |= {"vocabulary": "50257", "batch": "64", "micro_batch": "2"}
BAD = [
    ({"gpus": "-8"}, "gpus=-8: expected a number above zero"),
    ({"hidden": ""}, "hidden is missing"),
    ({"layers": "many"}, "layers=many: expected a number"),
    ({"sequence_length": "nan"}, "sequence_length=nan: expected a number above zero"),
    ({"tp": "1.5"}, "tp=1.5: expected a whole number"),
    ({"hidden": "4e12"}, "hidden=4e12: too large"),
    ({"batch": "", "micro_batch": ""}, "the row gives no batch"),
    ({"batch": "62"}, "a batch of 62 is no multiple"),
    ({"dp": "3"}, "6 ranks, and there are 8 GPUs"),
    ({"gpus": "24", "tp": "3", "dp": "8"}, "32 heads do not divide over tensor 3"),
    ({"layers": "31", "pp": "4", "dp": "1"}, "31 layers do not divide over 4 stages"),
    ({"gpu": "A1000"}, "gpu='A1000' is not known"),
    ({"schedule": "spiral"}, "schedule='spiral'"),
    ({"stack": "mine"}, "stack='mine'"),
    ({"hidden": "", "layers": "", "heads": "", "model": "X"}, "model='X'"),
]


@pytest.fixture
def ask(monkeypatch, capsys):
    """Run python -m bootcamp.plan: ask(table, "--json") -> its exit code, output and errors."""

    def run(text: str, *flags: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        return __main__.main(list(flags)), *capsys.readouterr()

    return run


def test_malformed_rows_say_why_and_the_others_are_answered(ask):
    plans = [{**GOOD, **changes} for bad, _ in BAD for changes in ({}, bad)]
    text = io.StringIO()
    writer = csv.DictWriter(text, dict.fromkeys(key for plan in plans for key in plan))
    writer.writeheader()
    writer.writerows(plans)
    first = text.getvalue().splitlines()[1]
    text.write(f"{first},1,2\n8\n{first}\n")  # a row too long, one too short, a good one
    code, out, _ = ask(text.getvalue())
    *found, long, short, last = csv.DictReader(io.StringIO(out))
    assert (code, len(found)) == (0, len(plans))
    assert "more values than the header" in long["error"]
    assert "names no model" in short["error"]
    for answer, (_, said) in zip(found[1::2], BAD, strict=True):
        assert said in answer["error"]
        assert answer["seconds_per_step"] == answer["limit"] == ""
    for answer in found[::2]:
        assert answer == last
    assert float(last["seconds_per_step"]) > 0
    assert last["error"] == ""


SAME = {
    "other cases and spaces": {f" {name.upper()} ": value for name, value in GOOD.items()},
    "axes by their long names": {planner.ALIASES.get(n, n): value for n, value in GOOD.items()},
    "a mesh that says how many GPUs": {**GOOD, "gpus": ""},
    "accumulation in place of a batch": {**GOOD, "batch": "", "accumulation": "8"},
    "a GPU's full name": {**GOOD, "gpu": "NVIDIA A100-SXM4-80GB"},
    "an answer": __main__.answer_row(GOOD),
}


@pytest.mark.parametrize("row", SAME.values(), ids=SAME)
def test_plans_in_other_words_have_the_same_answer(row):
    good, found = __main__.answer_row(GOOD), __main__.answer_row(row)
    assert found["error"] == found["warning"] == ""
    assert found["seconds_per_step"] == good["seconds_per_step"]


def test_columns_that_nobody_reads_are_named_in_answers_and_once_on_stderr(ask):
    row = {**GOOD, "row_id": "7", "published_seconds": "3", "per_host": "4", "colour": "red"}
    _, out, err = ask("\n".join((",".join(row), *[",".join(row.values())] * 2)))
    text = "ignored, since not in --columns: per_host (did you mean gpus_per_host?), colour"
    assert [answer["warning"] for answer in csv.DictReader(io.StringIO(out))] == [text, text]
    assert err == f"{text}\n"
    assert "gpus_per_host: 8" in ask("", "--columns")[1].splitlines()
    assert __main__.answer_row({**GOOD, "gpus_per_host": "4"}) != __main__.answer_row(GOOD)


def test_gpus_are_known_by_the_words_of_their_names():
    spelled = {
        "NVIDIA A100-SXM4-40GB": "A100 40GB",
        "a100_80gb": "A100 80GB",
        "H100 SXM 96GB HBM2e 2.4TB/s, 500W cap": "H100 96GB",
        "DGX-GB200": "GB200",
        "V100-SXM2-16GB": "V100 16GB",
    } | {row["lessons"]: row["gpu"] for row in hardware.shown_in_lessons()}
    assert {name: gpu(name).name for name in spelled} == spelled
    assert gpu("H200").kind == "H100"  # whose fitted constants hold for it too
    clocks = [fitted_constants.find_constants("", name).clock for name in ("H200", "H100", "A100")]
    assert clocks[0] == clocks[1] < clocks[2]
    with pytest.raises(ValueError, match=r"gpu='H900' is not known: expected one of .*A100 80GB"):
        gpu("H900")


def test_intervals_hold_the_seconds_and_trainings_have_days_and_a_price():
    run = published.table("llama3_table4")[1] | {"stack": "", "stage": "1", "host_gb_s": "400"}
    run |= {"sequence_parallel": "yes", "compile": "yes", "tokens": "15.6e12"}
    alone, found = __main__.answer_row(run | {"tokens": ""}), __main__.answer_row(run)
    assert alone["low"] < alone["seconds_per_step"] < alone["high"]
    assert [alone[name] for name in ("days", "gpu_hours", "dollars", "mwh")] == [None] * 4
    # 30.84 million H100 hours, says Llama 3.1's model card of its 405B
    assert found["gpu_hours"] == pytest.approx(30.84e6, rel=0.2)
    assert found["days"] == pytest.approx(found["gpu_hours"] / 24 / 16384)
    assert found["gpu_hours"] > 15.6e12 / found["tokens_per_second_per_gpu"] / 3600, "none fails"
    assert found["dollars"] == 2 * found["gpu_hours"]
    assert found["mwh"] == pytest.approx(1.1 * 700e-6 * found["gpu_hours"])
    dearer = __main__.answer_row(run | {"dollars_per_hour": "3"})
    assert dearer["dollars"] == 3 * found["gpu_hours"]
    assert "tokens=0: expected" in __main__.answer_row(run | {"tokens": "0"})["error"]


def test_json_goes_in_and_out(ask):
    _, out, _ = ask(json.dumps([{**GOOD, "gpus": 8}, {"gpus": -1}]), "--json")
    good, bad = json.loads(out)
    assert good["mfu"] > 0.1
    assert good["peak_gb"] * 1e9 == pytest.approx(good["peak_gib"] * GIB)
    assert bad["seconds_per_step"] is None
    assert bad["error"]
    assert ask("gpus,tp", "--json")[0] == 2
