"""Formulas against this course's own scripts, as they ran here: bytes by kind and by collective.

Runs are those of strategy_table.py and of lessons. Meshes larger than a machine are those of
torch's fake process group: one process builds its part of 64 ranks' model and trains on noise.
"""

from dataclasses import replace

import pytest
import strategy_table
from trained import PROOF, baseline, trained

from bootcamp.costs import memory, model_shapes, plans, sharding, traffic
from bootcamp.costs.hardware import Cluster, gpu
from bootcamp.costs.model_shapes import Model
from bootcamp.costs.plans import Plan
from bootcamp.experiments import equality
from bootcamp.paths import SRC
from bootcamp.scripts.variants import variant
from bootcamp_lessons import excerpts, sharding_tables
from snippets import ranks_without_ranks

ADAMW = {**PROOF, "optimizer": "adamw"}
KNOWN = ("accumulate", "activation_checkpointing", "ddp", "zero1", "zero", "fsdp", "hsdp", "tp")
KNOWN += ("fsdp_tp", "mp", "ddp_mp", "pp", "ddp_pp")
UNKNOWN = {"kv_heads", "dtype"}  # flags that the formulas do not know
CASES = {
    str(case): case
    for case in strategy_table.CASES
    if case.name in KNOWN and case.alone is baseline and not UNKNOWN & set(case.flags)
    if case.name != "zero" or "model" not in case.flags  # an MLP's gathered parts may be alive
}
ONE_F_ONE_B = "pp x2 schedule=1f1b steps=4 global_batch=32"
# activations too
TO_THE_BYTE = ("fsdp x4", ONE_F_ONE_B, "tp x2", "hsdp x4 shard=2", "accumulate x1 micro_batches=3")
RECORDED = {"parameters": "parameter", "gradients": "gradient", "optimizer": "optimizer"}
# of what is not to the byte: the first may have a few of DeepSpeed's scalars, or one more target;
# the kernel counts the headers of each message, too, and ddp_pp sends a message for each parameter
ACTIVATIONS, SENT, SMALL_MESSAGES = 0.014, 0.014, 0.03


def held_at_most(kept: int, model: Model, plan: Plan) -> tuple[int, ...]:
    """What FSDP has gathered last is alive when the backward begins, now and then twice."""
    twice = plan.script in plans.UNITS
    return (kept, kept + memory.gathered(model, plan)) if twice else (kept,)


def differences(
    records: list[dict], model: Model, plan: Plan, near: float = ACTIVATIONS
) -> list[str]:
    """What the formulas do not say of a run's ranks, in words. near: for activations."""
    found = []
    for record in records:
        rank = record["rank"]
        said = memory.rank_memory(model, plan, rank)
        for kind, name in RECORDED.items():
            if said[kind] != record[f"{name}_bytes"]:
                found.append(f"rank {rank} {kind}: {said[kind]}, not {record[f'{name}_bytes']}")
        kept, counted = said["activations"], record["activation_bytes"]
        if kept is not None and not any(
            each == pytest.approx(counted, rel=near) for each in held_at_most(kept, model, plan)
        ):
            found.append(f"rank {rank} activations: {kept}, not {counted}")
    sent = [record["sent_bytes_per_step"] for record in records]
    if None not in sent and model.kind == "gpt":
        said = [sum(traffic.bytes_sent(model, plan, each["rank"]).values()) for each in records]
        within = SMALL_MESSAGES if plan.script == "ddp_pp" else SENT
        if sum(said) != pytest.approx(sum(sent), rel=within):
            found.append(f"sent: {said}, not {sent}")
    return found


def run_and_plan(name: str, **wrong):
    """A run of CASES, its model, and its plan, of which something may be wrong."""
    case = CASES[name]
    if case.missing:
        pytest.skip(case.missing)
    run = case.train(case.optimizers[-1])
    assert len(run.ranks) == case.ranks
    model, plan = plans.of_run({**run.config, "strategy": case.name})
    return run, model, replace(plan, **wrong)


@pytest.mark.parametrize("name", CASES)
def test_bytes_of_every_rank_are_those_of_the_formulas(name):
    """States to the byte, integer by integer."""
    run, model, plan = run_and_plan(name)
    near = 0 if name in TO_THE_BYTE else ACTIVATIONS
    assert differences(run.ranks, model, plan, near) == []


def test_scripts_with_formulas_are_all_compared():
    assert set(TO_THE_BYTE) <= set(CASES)
    assert {case.name for case in CASES.values()} == set(KNOWN)


@pytest.mark.parametrize("model", ["gpt", "mlp", "striped-lstm"])
def test_baselines_hold_what_the_formulas_say(model):
    own = {} if model == "gpt" else {"model": model}
    run = equality.baseline(optimizer="adamw", **PROOF, **own)
    assert differences(run.ranks, *plans.of_run(run.config)) == []


PLANTED = {
    "parameters": ("fsdp x4", {"stage": 0}),
    "gradients": ("ddp_mp x2", {"stage": 3}),
    "optimizer": ("zero1 x4", {"data": 2}),
    "activations": (ONE_F_ONE_B, {"schedule": "gpipe"}),
    "sent": ("hsdp x4 shard=2", {"shard": 4}),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_wrong_plans_are_told_from_the_run(kind):
    name, wrong = PLANTED[kind]
    run, model, plan = run_and_plan(name, **wrong)
    found = differences(run.ranks, model, plan)
    assert any(kind in line for line in found), found


@pytest.mark.parametrize("keep_gathered", [False, True])
def test_collectives_by_kind_and_size_are_those_of_the_formulas(keep_gathered):
    """The runs of lesson 07 that count what FSDP2 calls: each unit gathered and reduced."""
    own = {"keep_gathered": True} if keep_gathered else {}
    run = trained(sharding_tables.make_counting_script("fsdp"), 4, **ADAMW, **own)
    model, plan = plans.of_run({**run.config, "strategy": "fsdp"})
    assert run.collective_counts() == traffic.fsdp_calls(model, plan)
    other = replace(plan, keep_gathered=not keep_gathered)
    assert run.collective_counts() != traffic.fsdp_calls(model, other)


@pytest.mark.parametrize(
    ("script", "count", "flags"), [("fsdp", 100, {}), ("fsdp_tp", 64, {"mesh": "16x4"})]
)
def test_bytes_are_right_on_meshes_larger_than_this_machine(script, count, flags):
    """Rank 0 of ranks that are not there."""
    changes = ranks_without_ranks.changes(count)
    fake = variant(script, f"{script}_of_{count}_ranks", changes)
    run = trained(fake, 1, steps=2, global_batch=count, **flags)
    (record,) = run.ranks
    assert record["world_size"] == count
    config = {**run.config, "strategy": script, "processes": count}
    assert differences([{**record, "sent_bytes_per_step": None}], *plans.of_run(config)) == []


def test_local_tensors_have_the_losses_of_real_ranks_and_miss_a_rank_that_waits():
    """Lesson 08c shows these rows, and those of fake ranks."""
    program = SRC / "snippets" / "ranks_without_ranks.py"
    local, real = (
        excerpts.parse_printed(trained(program, ranks, **how))
        for ranks, how in ((1, {"how": "local"}), (4, {}))
    )
    found = ranks_without_ranks.compare(local, local, local, real)
    said = [(row["local, 4 ranks"], row["real, 4 ranks"]) for row in found]
    assert said[2:4] == [("raises", "raises")] * 2
    assert said[4] == (said[0][0], "one waits in vain")
    for right, other in zip(local[:2], real[:2], strict=True):
        assert right["loss"] == pytest.approx(other["loss"], abs=1e-5)
    assert local[1]["loss"] < local[0]["loss"] - 1e-3, "a sum steps further than a mean"


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("ddp x4", {}),
        ("fsdp x4 keep_gathered=True", {"stage": 3, "keep_gathered": True}),
        ("hsdp x4 shard=2", {"stage": 3, "shard": 2}),
        ("tp x2", {"tensor": 2}),
    ],
)
def test_kinds_of_any_model_are_right_for_ours(monkeypatch, name, plan):
    """traffic.kinds, which answers for published models, holds and sends what the run did."""
    run, model, own_plan = run_and_plan(name)
    count = len(run.ranks)
    data = count // plan.get("tensor", 1)
    how = {"data": data, "batch": 12, "micro_batch": 12 // data, "precision": "fp32"}
    shape = model_shapes.course_model()
    planned = Plan(**how, **plan, reduce_bytes=4)
    (line,) = traffic.kinds(shape, planned, Cluster(gpu("A100"), count))
    for kind, recorded in (("parameters", "parameter"), ("gradients", "gradient")):
        assert line[f"{kind}_bytes"] == run.ranks[0][f"{recorded}_bytes"]
    counts = 4 * sum(len(layer.shapes) for layer in model_shapes.layers("gpt", "tiny"))
    assert line["optimizer_bytes"] + counts == run.ranks[0]["optimizer_bytes"]
    if "tensor" in plan or "shard" in plan:  # it leaves out the loss; and gathers the head twice
        return
    monkeypatch.setattr(traffic, "GLOO", sharding.RING)  # for which traffic.kinds counts
    said = sum(traffic.bytes_sent(model, own_plan).values())
    sent = line["sent_inside_bytes"] + line["sent_between_bytes"]
    assert sent == pytest.approx(said)


def test_course_models_have_their_parameters_in_the_planner():
    for size in ("tiny", "small", "xl"):
        counted = sum(sum(layer.numbers) for layer in model_shapes.layers("gpt", size))
        assert model_shapes.course_model("gpt", size).parameters == counted
