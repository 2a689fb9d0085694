"""Sharded strategies: equal to the baseline, their bytes those of the formulas."""

import collections
import math
import os
import subprocess
import sys

import pytest
from trained import PROOF, trained

from bootcamp.costs import model_shapes, sharding
from bootcamp.experiments import equality
from bootcamp.launcher import launch
from bootcamp.paths import SRC
from bootcamp.scripts.variants import variant
from bootcamp.train import sent_bytes
from bootcamp_lessons import ddp_practice, excerpts, sharding_tables

DEEPSPEED = launch.available("deepspeed")
needs_deepspeed = pytest.mark.skipif(not DEEPSPEED, reason="DeepSpeed is not installed")
GPT = {
    "embedding": [(256, 64), (64, 64)],
    "block": [(64,)] * 4 + [(64, 64)] * 4 + [(256, 64), (256,), (64, 256), (64,)],
    "head": [(64,), (64,), (256, 64)],
}
SHAPES = [*GPT["embedding"], *GPT["block"] * 6, *GPT["head"]]
NUMBERS = sum(math.prod(shape) for shape in SHAPES)


def proved(script, ranks, optimizer, model="gpt", **flags):
    """The run, after the proof that it trained what the baseline trained."""
    same = {**PROOF, "optimizer": optimizer, **({} if model == "gpt" else {"model": model})}
    run = trained(script, ranks, **same, **flags)
    equality.same_training(run, equality.baseline(**same))
    return run


# four ranks are those of lesson 07
@pytest.mark.proves("zero1")
@pytest.mark.parametrize(("ranks", "optimizer"), [(4, "adamw"), (2, "sgd"), (4, "sgd")])
def test_zero1_of_torch(ranks, optimizer):
    run = proved("zero1", ranks, optimizer)
    held = sum(rank["optimizer_bytes"] for rank in run.ranks)
    counts = 4 * len(SHAPES) if optimizer == "adamw" else 0
    assert held == {"adamw": 8, "sgd": 4}[optimizer] * NUMBERS + counts


@pytest.mark.proves("fsdp")
@pytest.mark.parametrize(
    ("ranks", "optimizer", "flags"),
    [(4, "adamw", {}), (4, "sgd", {}), (3, "adamw", {}), (2, "adamw", {"keep_gathered": True})],
)
def test_fsdp(ranks, optimizer, flags):
    run = proved("fsdp", ranks, optimizer, **flags)
    for rank, record in enumerate(run.ranks):
        own = sharding.rows_of_rank(SHAPES, ranks, rank)
        padded = sharding.rows_of_rank(SHAPES, ranks)  # room for the largest part
        assert record["parameter_bytes"] == record["gradient_bytes"] == 4 * padded
        state = {"adamw": 8 * own + 4 * len(SHAPES), "sgd": 4 * own}[optimizer]
        assert record["optimizer_bytes"] == state


def collectives_of_a_step(script: str, name: str = "", changes=None, **flags) -> dict[str, int]:
    """How often rank 0 of two calls each kind of collective in one step."""
    script = sharding_tables.make_counting_script(script, changes, name)
    run = launch.launch(script, 2, device="cpu", steps=4, global_batch=8, quiet=True, **flags)
    counts = collections.Counter()
    for (kind, _), count in run.collective_counts().items():
        counts[kind] += count
    return counts


def test_each_part_is_a_unit_of_fsdp_and_the_head_stays_gathered():
    """Each unit reduces its gradients once. All but the head are gathered a second time."""
    blocks = model_shapes.GPT["tiny"]["layers"]
    counts = collectives_of_a_step("fsdp")
    assert counts["reduce-scatter"] == blocks + 2
    assert counts["all-gather"] == 2 * (blocks + 1) + 1
    loop = "for part in model[:-1]:"
    left = {loop: "for part in model[:-2]:"}
    less = collectives_of_a_step("fsdp", "fsdp_one_part_left", left)
    assert less["all-gather"] == 2 * (blocks + 1), "the root has it, and is gathered once"


@pytest.mark.proves("fsdp_in_practice")
def test_accumulated_gradients_are_reduced_once():
    hidden = model_shapes.MLP["tiny"]["layers"]
    counts = collectives_of_a_step("fsdp_in_practice", model="mlp", micro_batches=4)
    assert counts["reduce-scatter"] == hidden + 2
    assert counts["all-gather"] == 4 * (2 * (hidden + 1) + 1)


@pytest.mark.proves("fsdp_in_practice")
@pytest.mark.parametrize(
    ("optimizer", "flags"),
    [("adamw", {"reshard": 2}), ("sgd", {"micro_batches": 3}), ("sgd", {"reshard": 2})],
)
def test_fsdp_in_practice(optimizer, flags):
    """Clipped: as a baseline that is. Most of its gradients are longer than the clip."""
    same = {**PROOF, "optimizer": optimizer}
    run = trained("fsdp_in_practice", 4, **same, **flags)
    equality.same_training(run, ddp_practice.launch_baseline(trained, **same))


NORM = """shards = [p.grad.to_local() for p in model.parameters()]
norm = torch.nn.utils.get_total_norm(shards)
torch.nn.utils.clip_grads_with_norm_(model.parameters(), args.clip, norm)"""
WRONG = {
    "clipped by the norm of its own shards": (
        "torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)",
        NORM,
    ),
    "parts that are not divided": (
        "loss = models.loss(model(inputs[share]), targets[share]) * len(share) / len(inputs)",
        "loss = models.loss(model(inputs[share]), targets[share])",
    ),
    "reduced in the first micro-batch": (
        "model.set_requires_gradient_sync(share is shares[-1])",
        "model.set_requires_gradient_sync(share is shares[0])",
    ),
}


@pytest.mark.rejects("shards clipped by their own norms", "the wrong part reduced")
@pytest.mark.parametrize("name", WRONG)
def test_rejects_what_people_get_wrong_in_fsdp(name):
    script = variant("fsdp_in_practice", f"fsdp_wrong_{len(name)}", dict([WRONG[name]]))
    same = {**PROOF, "optimizer": "sgd", "model": "mlp"}
    failed = equality.compare(
        trained(script, 2, **same), ddp_practice.launch_baseline(trained, **same)
    ).failed
    assert any("final parameters" in row["compared"] for row in failed)


IN_16 = {"gather_dtype": "bfloat16", "micro_batches": 1}
SENDS = {  # flags, bytes of a gathered number, arguments of sharding.collectives
    "reduced in 32 bits": (IN_16, 2, {"number": 2}),
    "reduced in 16 bits": ({**IN_16, "reduce_dtype": "bfloat16"}, 2, {"number": 1}),
    "kept by two": (
        {"reshard": 2, "micro_batches": 3},
        4,
        {"reshard": 2, "micro_batches": 3, "once": True},
    ),
}


@pytest.mark.proves("fsdp_in_practice")
@pytest.mark.skipif(not sent_bytes.count_sent_bytes(), reason="Linux counts what connections send")
@pytest.mark.parametrize("name", SENDS)
def test_fsdp_sends_the_bytes_of_the_formula(name):
    """Within 1 %; the formulas of the other two are further off."""
    large = {"model": "mlp", "size": "small", "steps": 4, "global_batch": 12}
    run = trained("fsdp_in_practice", 4, **large, **SENDS[name][0])
    for other, (_, width, how) in SENDS.items():
        formula = sharding_tables.calculate_sent_bytes("fsdp", "mlp", "small", 4, width, **how)
        for rank in run.ranks:
            near = rank["sent_bytes_per_step"] == pytest.approx(formula, rel=0.01)
            assert near == (other == name)


@pytest.mark.proves("fsdp")
@pytest.mark.parametrize(("model", "optimizer"), [("mlp", "sgd"), ("striped-lstm", "adamw")])
def test_fsdp_shards_every_model(model, optimizer):
    same = {**PROOF, "model": model, "optimizer": optimizer}
    equality.same_training(trained("fsdp", 2, **same), equality.baseline(**same))


@pytest.mark.proves("hsdp")
@pytest.mark.parametrize(("shard", "optimizer"), [(2, "adamw"), (2, "sgd"), (4, "sgd"), (1, "sgd")])
def test_hsdp(shard, optimizer):
    run = trained("hsdp", 4, shard=shard, **PROOF, optimizer=optimizer)
    equality.same_training(run, equality.baseline(**PROOF, optimizer=optimizer))
    assert {rank["parameter_bytes"] for rank in run.ranks} == {4 * NUMBERS // shard}


@pytest.mark.rejects("shards that each rank draws itself")
@pytest.mark.parametrize(("script", "ranks"), [("fsdp", 2), ("hsdp", 4), ("tp", 2), ("fsdp_tp", 4)])
def test_rejects_ranks_that_draw_their_own_parts(script, ranks):
    """What many programs do after to_empty. Another number of ranks is then another model."""
    drawn = "torch.manual_seed(args.seed + rank)\nfor parameter in model.parameters():\n"
    drawn += "    torch.nn.init.normal_(parameter, std=0.02)"
    wrong = variant(script, f"{script}_draws", {"models.initialise(model, args)": drawn})
    same = {"steps": 2, "global_batch": 8, "optimizer": "sgd"}
    run = trained(wrong, ranks, **same)
    failed = equality.compare(run, equality.baseline(**same)).failed
    assert any(row["compared"].startswith("initial parameters") for row in failed)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="Linux bounds the memory")
@pytest.mark.parametrize("way", ["meta", "complete"])
def test_a_model_that_no_rank_could_hold_is_initialised_in_shards(way):
    run = trained(excerpts.SNIPPETS / "initialise_sharded.py", 4, way=way, device="cpu")
    for rank in excerpts.parse_printed(run):
        assert rank["room"] < 0.7 * rank["model"]
        if way == "complete":
            assert "can't allocate memory" in rank["error"]
            continue
        peak = rank["model"] / 4 + rank["largest"]  # one unit after another
        assert rank["grown"] == pytest.approx(peak, rel=0.05)
        assert rank["held"] == rank["model"] / 4


@pytest.mark.proves("zero")
@needs_deepspeed
@pytest.mark.parametrize(("ranks", "optimizer", "model"), [(2, "adamw", "gpt"), (3, "sgd", "mlp")])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed(stage, ranks, optimizer, model):
    run = proved("zero", ranks, optimizer, model, stage=stage)
    shapes = sharding_tables.parameter_shapes(model)
    numbers = sum(map(math.prod, shapes))
    flat = 4 * sharding.flat_part(numbers, ranks)
    one_by_one = 4 * sharding.parts_one_by_one(shapes, ranks)
    whole = ranks * flat if stage else 4 * numbers  # the row of parameters with its padding
    part = {3: one_by_one}.get(stage, flat)
    for record in run.ranks:
        assert record["parameter_bytes"] == (part if stage == 3 else whole)
        assert record["gradient_bytes"] == (part if stage else whole)
        states = {"adamw": 2, "sgd": 1}[optimizer]
        state = (states + 1) * part if stage else states * whole  # and its copy of its part
        counts = {"adamw": 4 if stage else 4 * len(shapes), "sgd": 0}[optimizer]
        assert record["optimizer_bytes"] == state + counts


@pytest.mark.rejects("gradients clipped unasked")
@needs_deepspeed
def test_deepspeed_clips_gradients_unless_told_not_to():

    line = '"gradient_clipping": 0.0,'
    script = variant("zero", "zero_clips", {line: ""})
    same = {**PROOF, "optimizer": "sgd"}
    run = trained(script, 2, **same)
    failed = " ".join(
        r["compared"] for r in equality.compare(run, equality.baseline(**same)).failed
    )
    assert "loss" in failed
    assert "final parameters" in failed


@pytest.mark.parametrize(("script", "flag"), [("hsdp", "shard"), ("fsdp_in_practice", "reshard")])
def test_a_shard_that_does_not_divide_the_ranks_is_refused(script, flag):
    with pytest.raises(launch.RunRefused) as error:
        launch.launch(script, 4, device="cpu", quiet=True, **{flag: 3})
    assert f"-{flag}" in str(error.value)
    assert "4 ranks do not divide into groups of 3. Give one of 1, 2, 4." in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.slow
def test_the_ranks_of_a_host_are_not_guessed():
    """As under a launcher that sets no LOCAL_WORLD_SIZE."""
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "2"}
    environment.pop("LOCAL_WORLD_SIZE", None)
    command = [sys.executable, str(SRC / "_train_hsdp.py"), "--device", "cpu"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--shard: this launcher does not say how many ranks are on a host" in done.stderr


def test_the_papers_figure_is_reproduced():
    """ZeRO, figure 1: 7.5 B parameters on 64 ranks, in GB."""
    published = {0: 120, 1: 31.4, 2: 16.6, 3: 1.9}
    for stage, gigabytes in published.items():
        found = sum(sharding.rank_bytes(7.5e9, 64, stage).values()) / 1e9
        assert found == pytest.approx(gigabytes, rel=0.015)


@pytest.mark.parametrize(
    ("strategy", "how", "ring", "gloo"),
    [
        ("ddp", {}, 1.5, 1.5),
        ("ddp", {"number": 0.5}, 0.75, 0.75),
        ("fsdp", {}, 2.25, 3.0),
        ("fsdp", {"root": 0.5}, 1.875, 2.625),
        ("fsdp", {"keep_gathered": True}, 1.5, 2.25),
        ("zero1", {}, 1.5, 2.25),
        ("hsdp", {"shard": 2}, 1.0, 1.0),
    ],
)
def test_what_crosses_between_two_hosts_of_two(strategy, how, ring, gloo):
    for factors, expected in ((sharding.RING, ring), (sharding.GLOO, gloo)):
        assert sharding.link_bytes(strategy, 1.0, 4, 2, factors, **how) == expected


def test_a_rank_sends_what_the_papers_say():
    """2 psi for DDP and for stages 1 and 2, 3 psi for stage 3, for many ranks."""
    many = 1_000_000
    for strategy, expected in {"ddp": 2, "zero1": 2, "zero2": 2, "fsdp": 3}.items():
        assert sharding.sent_bytes(strategy, 1.0, many) == pytest.approx(expected, rel=1e-5)


def test_inside_a_host_nothing_crosses():
    only_gathers = sharding.link_bytes("hsdp", 1.0, 4, 2, shard=2, number=0)
    assert only_gathers == 0
    assert sharding.link_bytes("hsdp", 1.0, 4, 1, shard=2) == 0
