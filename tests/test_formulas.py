"""Formulas of bytes and seconds, by hand, by torch's own rules, and by simulation.

What explorers draw is among them: collectives, DDP's buckets, the memory of a rank. Nothing is
launched; how the formulas fit runs is in test_run_bytes.py.
"""

import argparse

import pytest
import torch
import torch.distributed as dist

from bootcamp.costs import (
    collectives,
    failures,
    memory,
    model_shapes,
    overlap,
    pipeline_schedules,
    published,
    sharding,
    traffic,
)
from bootcamp.train import models
from bootcamp_lessons import explorers

HOUR = failures.HOUR

# By hand


def test_parts_of_a_rank_are_padded_in_three_ways():
    """A row of all to a multiple of twice the ranks; each tensor by itself; each by its rows."""
    given = {(12, 2): 6, (12, 3): 4, (13, 2): 8, (13, 3): 6, (1, 4): 2, (19, 2): 10}
    assert {key: sharding.flat_part(*key) for key in given} == given
    shapes = [(3, 5), (4,)]
    assert sharding.parts_one_by_one(shapes, 2) == 8 + 2
    assert [sharding.rows_of_rank(shapes, 2, rank) for rank in (0, 1)] == [10 + 2, 5 + 2]
    by_three = [sharding.rows_of_rank([(5, 3), (2,)], 3, rank) for rank in range(3)]
    assert by_three == [2 * 3 + 1, 2 * 3 + 1, 1 * 3 + 0], "the last gets what is left"


def test_ranks_send_and_hold_multiples_of_the_model():
    """Parameters that two neighbours keep: gathered 3/4, again 1/2, reduced 3/4, by 4 ranks."""
    given = {"ddp": 2 * 3 / 4, "zero1": 2 * 3 / 4, "zero2": 2 * 3 / 4, "fsdp": 3 * 3 / 4}
    assert {name: sharding.sent_bytes(name, 1, ranks=4) for name in given} == given
    in_row, between_rows = 3 * (1 / 2), 2 * (1 / 2) * (1 / 2)
    assert sharding.sent_bytes("hsdp", 1, ranks=4, shard=2) == in_row + between_rows
    how = {"micro_batches": 3, "once": True, "reshard": 2}
    assert sharding.sent_bytes("fsdp", 4.0, 4, **how) == 3 * (3 + 2) + 3
    assert sharding.link_bytes("fsdp", 4.0, 4, 2, **how) == 3 * 3 + 3, "neighbours share a host"
    calls = {("all-reduce", 100): 2, ("all-gather", 80): 1}
    assert sharding.bytes_of_calls(calls, 4) == (2 * 2 * 100 + 80) * 3 / 4
    rank = {"parameter_bytes": 10, "gradient_bytes": 10, "optimizer_bytes": 20}
    held = memory.data_parallel(rank | {"activation_bytes": 48}, 4, outputs=8)
    totals = [sum(kinds.values()) for kinds in held.values()]
    assert totals == [10 + 10 + 20 + 10 + 16, 10 + 10 + 10 + 2, 10 + 10 + 20 + 10 + 4]


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
        ("hsdp", {"shard": 2, "number": 0}, 0, 0),  # its gathers stay inside a host
    ],
)
def test_bytes_between_two_hosts_of_two_are_those_by_hand(strategy, how, ring, gloo):
    for factors, expected in ((sharding.RING, ring), (sharding.GLOO, gloo)):
        assert sharding.link_bytes(strategy, 1.0, 4, 2, factors, **how) == expected
    assert sharding.link_bytes(strategy, 1.0, 4, 1, sharding.RING, **how) == 0


@pytest.mark.parametrize(
    ("way", "forward", "backward"),
    [("all-gather", 6144, 6144), ("ring", 6144, 14336), ("ulysses", 4608, 4608)],
)
def test_context_parallelism_sends_keys_and_values(way, forward, backward):
    """4 ranks, 64 tokens, 4 heads of queries on 2 of keys, 8 wide: keys and values are 8 KiB."""
    sent = traffic.context_bytes(way, 64, 4, 2, 8, 4)
    assert sent == {"forward": forward, "backward": backward}


def test_computing_takes_longer_than_sending_from_these_ratios_on():
    """F/W tokens in 16 bit, 4/3 of it with gradients in 32; for tensor ranks 14/9 of a width."""
    assert 1 / overlap.fsdp_ratio(1, 4e14, 5e10) == pytest.approx(8000)
    assert 1 / overlap.fsdp_ratio(1, 4e14, 5e10, reduced=4) == pytest.approx(8000 * 4 / 3)
    assert 1 / overlap.fsdp_ratio(1, 4e14, 5e10, recompute=True) == pytest.approx(6000)
    assert 1 / overlap.tensor_ratio(1, 8, 1.0, 1.0) == pytest.approx(14 / 9)
    assert (overlap.share_if_at_once(0.5), overlap.share_if_at_once(3.0)) == (0.5, 1.0)
    for micro_batches in (1, 4, 12):
        spans = pipeline_schedules.timetable("gpipe", 4, micro_batches)
        bubble = pipeline_schedules.bubble_by_formula("gpipe", 4, micro_batches)
        roof = 1 / (1 + pipeline_schedules.bubble(spans))
        assert overlap.share_if_in_turn(1 / bubble) == pytest.approx(roof)


# Collectives, step by step


@pytest.mark.parametrize(("name", "algorithm"), collectives.PLANS)
def test_collective_is_complete_after_the_steps_and_bytes_of_its_formula(name, algorithm):
    for ranks in collectives.RANKS:
        run = collectives.simulate(name, algorithm, ranks)
        wanted = collectives.make_result(name, ranks, run.chunks)
        done = [
            all(wanted[rank].items() <= held[rank].items() for rank in range(ranks))
            for held in run.moments
        ]
        assert done == [False] * len(run.steps) + [True]
        formula, most = collectives.formula(name, algorithm, ranks), max(run.sent(len(run.steps)))
        assert len(run.steps) == formula["steps"][1]
        assert most == pytest.approx(formula["most"][1])
        if algorithm == "ring" and name in sharding.RING:
            assert most == pytest.approx(sharding.ring_bytes(name, 1.0, ranks))
        for sends in run.steps:
            for end in ("source", "target"):
                ends = [getattr(send, end) for send in sends]
                assert len(set(ends)) == len(ends), "a rank sends and gets once in a step"


def test_collective_refuses_what_cannot_be():
    held = collectives.make_start("all-reduce", 2, 2)
    with pytest.raises(ValueError, match="does not have"):
        collectives.apply_sends(held, [collectives.Send(0, 1, 7)])
    once = collectives.apply_sends(held, [collectives.Send(0, 1, 0, adds=True)])
    with pytest.raises(ValueError, match="again"):
        collectives.apply_sends(once, [collectives.Send(0, 1, 0, adds=True)])
    with pytest.raises(ValueError, match="not simulated"):
        collectives.simulate("all-gather", "tree", 4)
    with pytest.raises(ValueError, match="expected 2 to 8"):
        collectives.simulate("all-reduce", "ring", 9)


# A step of DDP


@pytest.mark.parametrize("model", models.NAMES)
@pytest.mark.parametrize("size", ["tiny", "medium"])
def test_layers_by_formula_are_the_models(model, size):
    family = models.FAMILIES[model]
    with torch.device("meta"):
        stages = [make() for _, make in family.stages(**family.SIZES[size])]
    built = [tuple(tuple(p.shape) for p in stage.parameters()) for stage in stages]
    layers = model_shapes.layers(model, size)
    assert [layer.shapes for layer in layers] == built
    flops = models.flops_per_sample(argparse.Namespace(model=model, size=size))
    assert 3 * sum(layer.flops for layer in layers) == flops


GPT2 = model_shapes.layers(model_shapes.GPT2, "small")
GPT2_NUMBERS = [numbers for layer in GPT2 for numbers in layer.numbers]  # in a forward's order
GPT2_SMALL = 124_439_808  # openai/gpt-2, "124M"


@pytest.mark.parametrize("cap", explorers.BUCKET_CAPS.values())
def test_buckets_are_those_of_torchs_rule(cap):
    parameters = [torch.empty(count, device="meta") for count in reversed(GPT2_NUMBERS)]
    caps = (1, 25) if cap is None else (cap, cap)  # MiB
    theirs, _ = dist._compute_bucket_assignment_by_size(
        parameters,
        [int(limit * 2**20) for limit in caps],
        [False] * len(parameters),
        list(range(len(parameters))),
    )
    ours = overlap.fill_buckets([4 * count for count in GPT2_NUMBERS], cap)
    assert [[len(parameters) - 1 - place for place in bucket] for bucket in theirs] == ours


def predict(cap, ranks=8, rate=1e9, latency=1e-5):
    return overlap.predict_step(GPT2, cap, ranks, rate, latency, 0.1)


@pytest.mark.parametrize("cap", explorers.BUCKET_CAPS.values())
def test_predicted_step_reduces_a_bucket_when_it_is_full_and_the_link_is_free(cap):
    step = predict(cap)
    assert step.backward_end == pytest.approx(0.1)
    assert sum(step.sizes) == 4 * GPT2_SMALL
    free = 0.0
    for full, span in zip(step.ready, step.reduces, strict=True):
        assert span.began == max(full, free)
        free = span.ended
    assert step.ended == max(step.backward_end, free)


def test_predicted_step_is_right_at_the_extremes():
    one = predict(explorers.ONE_BUCKET)
    ring = 14 * (1e-5 + 4 * GPT2_SMALL / 8 / 1e9)  # 2(N-1) messages: the latency and an eighth
    assert one.ended == pytest.approx(0.1 + ring), "nothing overlaps"
    assert predict(None, ranks=1).ended == pytest.approx(0.1), "one rank sends nothing"
    assert predict(None, rate=1e30, latency=0).ended == pytest.approx(0.1)
    slow = [predict(cap, latency=1.0) for cap in (0.2, 25)]
    assert slow[0].ended > slow[1].ended, "where messages cost much, few buckets are better"


# Memory of a rank


@pytest.mark.parametrize("precision", memory.PRECISIONS)
def test_state_of_each_strategy_is_that_of_sharding_theory(precision):
    for shape in model_shapes.published_gpts().values():
        rows = memory.by_strategy(shape, 16, 4, precision, 2, "all")
        sharded = {"DDP": (16, 0), "ZeRO-1": (16, 1), "ZeRO-2": (16, 2), "ZeRO-3 = FSDP": (16, 3)}
        for name, (ranks, stage) in {**sharded, "HSDP, rows of 4": (4, 3)}.items():
            each = memory.PRECISIONS[precision]
            state = sharding.rank_bytes(shape.parameters, ranks, stage, each)
            assert {kind: rows[name][kind] for kind in state} == state
        assert rows["one device"] == rows["DDP"], "data parallelism saves no memory"


def test_published_gpts_have_the_numbers_of_parameters_that_they_are_called_by():
    """Equation 2 of arXiv:2104.04473 leaves out the last norm alone."""
    assert sum(GPT2_NUMBERS) == GPT2_SMALL
    known = model_shapes.published_gpts()
    small = known["GPT-2, 124 M"]
    assert small.count_parameters() == GPT2_SMALL - 2 * small.hidden
    for name in (name for name in known if name.endswith(" B")):
        billions = float(name.removeprefix("GPT-2,").split()[0])
        assert known[name].count_parameters() / 1e9 == pytest.approx(billions, rel=0.04)
    assert known["GPT tiny"].parameters == 335_360  # its gradients, 1341440 bytes


def test_splitting_the_model_splits_its_state_and_some_activations():
    shape = model_shapes.published_gpts()["18.4 B"]
    rows = memory.by_strategy(shape, 8, 8, "fp32", 1, "all")
    whole, tensor, pipeline = (
        rows[name] for name in ("one device", "tensor parallel", "pipeline, first stage")
    )
    for kind in sharding.KINDS:
        assert whole[kind] / 8 < tensor[kind] < 1.01 * whole[kind] / 8
        assert whole[kind] / 8 < pipeline[kind] < 1.2 * whole[kind] / 8
    assert pipeline["activations"] == whole["activations"], "1F1B: as many in flight as stages"
    assert tensor["activations"] < whole["activations"]
    alone = memory.by_strategy(shape, 1, 1, "fp32", 1, "all")
    for name, row in alone.items():
        assert row == pytest.approx(alone["one device"]), f"{name} on one rank is one device"
    impossible = memory.by_strategy(shape, 64, 128, "fp32", 1, "all")
    assert impossible["tensor parallel"] == "48 heads do not divide over 64 ranks"
    assert impossible["pipeline, first stage"] == "40 layers do not make 64 stages"
    assert impossible["HSDP, rows of 128"] == "64 ranks make no rows of 128"


# How often many GPUs fail, and how often to save


def test_rates_that_were_published_are_per_gpu():
    """419 in 54 days on 16,384 GPUs are one in 3.1 hours; RSC-1's paper says 1.8 hours for them."""
    assert failures.mtbf_seconds(16384) / HOUR == pytest.approx(54 * 24 / 419)
    assert failures.mtbf_seconds(16384, "RSC-1") / HOUR == pytest.approx(1.8, abs=0.05)
    assert failures.mtbf_seconds(8) == 2048 * failures.mtbf_seconds(16384)
    assert all("arXiv" in row["source"] for row in published.table("failures"))
    with pytest.raises(ValueError, match="expected one of Llama 3 405B, OPT-175B"):
        failures.mtbf_seconds(8, "a run")


CASES = {  # seconds between saves, of a save, between failures, of a restart
    "rare": (1200.0, 60.0, 48 * HOUR, 600.0),
    "Llama 3": (1116.0, 60.0, 3.1 * HOUR, 600.0),
    "frequent, slow to save": (1800.0, 600.0, 0.5 * HOUR, 300.0),
    "never saved before it fails": (4 * HOUR, 60.0, HOUR, 1800.0),
}


@pytest.mark.parametrize("case", CASES)
def test_effective_share_is_what_a_simulated_training_has(case):
    """Which tells Young's first order, right where failures are rare, and no time to restart."""
    interval, *rest = CASES[case]
    simulated = failures.simulate_share(interval, *rest, saves=1000)
    assert failures.effective_share(interval, *rest) == pytest.approx(simulated, rel=0.05)
    first_order = 1 - failures.lost_share(interval + rest[0], *rest)
    if case in ("rare", "frequent, slow to save"):
        assert (simulated == pytest.approx(first_order, rel=0.02)) == (case == "rare")
    if case == "never saved before it fails":
        at_once = failures.effective_share(interval, *rest[:2])
        assert simulated != pytest.approx(at_once, rel=0.3)


@pytest.mark.parametrize(("save", "between"), [(10, 48 * HOUR), (60, 3 * HOUR), (900, HOUR)])
@pytest.mark.parametrize("restart", [0, 1200])
def test_interval_of_daly_is_the_best_one(save, between, restart):
    given = (save, between, restart)
    best = failures.effective_share(failures.daly_interval(save, between), *given)
    others = [between * 10 ** (k / 50 - 3) for k in range(201)]
    assert best >= 0.998 * max(failures.effective_share(each, *given) for each in others)
    half, twice = (failures.daly_interval(save, between) * factor for factor in (0.5, 2))
    assert failures.effective_share(half, *given) < best > failures.effective_share(twice, *given)


def test_interval_of_young_is_dalys_where_failures_are_rare():
    rare = failures.young_interval(10, 1000 * HOUR)
    assert failures.daly_interval(10, 1000 * HOUR) == pytest.approx(rare, rel=0.01)
    assert failures.daly_interval(900, HOUR) < 0.8 * failures.young_interval(900, HOUR)
    assert failures.daly_interval(3 * HOUR, HOUR) == HOUR, "a save takes longer"
    gpus = failures.mtbf_seconds(10**9)
    assert 0 <= failures.effective_share(failures.daly_interval(60, gpus), 60, gpus, 600) < 1
