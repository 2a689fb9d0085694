"""What explorers simulate and predict is true: collectives, DDP's buckets, the memory of a rank."""

import argparse
import dataclasses

import pytest
import torch
import torch.distributed as dist

from bootcamp.costs import collectives, memory, model_shapes, overlap, sharding
from bootcamp.train import models
from bootcamp_lessons import explorers

EVERY = [
    (name, algorithm, ranks) for name, algorithm in collectives.PLANS for ranks in collectives.RANKS
]

# Collectives, step by step


@pytest.mark.parametrize(("name", "algorithm", "ranks"), EVERY)
def test_collective_is_complete_after_the_steps_and_bytes_of_its_formula(name, algorithm, ranks):
    run = collectives.simulate(name, algorithm, ranks)
    wanted = collectives.make_result(name, ranks, run.chunks)
    done = [
        all(wanted[rank].items() <= held[rank].items() for rank in range(ranks))
        for held in run.moments
    ]
    assert done == [False] * len(run.steps) + [True]
    formula = collectives.formula(name, algorithm, ranks)
    most = max(run.sent(len(run.steps)))
    assert len(run.steps) == formula["steps"][1]
    assert most == pytest.approx(formula["most"][1])
    if algorithm == "ring" and name in sharding.RING:
        assert most == pytest.approx(sharding.ring_bytes(name, 1.0, ranks))
    for sends in run.steps:
        assert len({send.source for send in sends}) == len(sends), "a rank sends once in a step"
        assert len({send.target for send in sends}) == len(sends), "and gets once"


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


@pytest.mark.parametrize("model", ["gpt", "mlp", "striped-lstm", "resnet50"])
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


def count_gpt2(size: str) -> list[int]:
    """The numbers of GPT-2's parameters, in the order of its forward pass."""
    layers = model_shapes.layers(model_shapes.GPT2, size)
    return [numbers for layer in layers for numbers in layer.numbers]


GPT2_SMALL = 124_439_808  # openai/gpt-2, "124M"


@pytest.mark.parametrize("cap", explorers.BUCKET_CAPS.values())
def test_buckets_are_those_of_torchs_rule(cap):
    numbers = count_gpt2("small")
    parameters = [torch.empty(count, device="meta") for count in reversed(numbers)]
    caps = (1, 25) if cap is None else (cap, cap)  # MiB
    theirs, _ = dist._compute_bucket_assignment_by_size(
        parameters,
        [int(limit * 2**20) for limit in caps],
        [False] * len(parameters),
        list(range(len(parameters))),
    )
    ours = overlap.fill_buckets([4 * count for count in numbers], cap)
    assert [[len(numbers) - 1 - place for place in bucket] for bucket in theirs] == ours


def predict(cap, ranks=8, rate=1e9, latency=1e-5, seconds=0.1):
    layers = model_shapes.layers(model_shapes.GPT2, "small")
    return overlap.predict_step(layers, cap, ranks, rate, latency, seconds)


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
    assert one.reduces[0].began == one.backward_end
    assert predict(None, ranks=1).ended == pytest.approx(0.1), "one rank sends nothing"
    assert predict(None, rate=1e30, latency=0).ended == pytest.approx(0.1)
    slow = [predict(cap, latency=1.0) for cap in (0.2, 25)]
    assert slow[0].ended > slow[1].ended, "where messages cost much, few buckets are better"


# Memory of a rank


@pytest.mark.parametrize("precision", memory.PRECISIONS)
@pytest.mark.parametrize("model", model_shapes.published_gpts())
def test_state_of_each_strategy_is_that_of_sharding_theory(model, precision):
    shape, each = model_shapes.published_gpts()[model], memory.PRECISIONS[precision]
    rows = memory.by_strategy(shape, 16, 4, precision, 2, "all")
    sharded = {"DDP": (16, 0), "ZeRO-1": (16, 1), "ZeRO-2": (16, 2), "ZeRO-3 = FSDP": (16, 3)}
    for name, (ranks, stage) in {**sharded, "HSDP, rows of 4": (4, 3)}.items():
        state = sharding.rank_bytes(shape.parameters, ranks, stage, each)
        assert {kind: rows[name][kind] for kind in state} == state
    assert rows["one device"] == rows["DDP"], "data parallelism saves no memory"


def test_activations_are_those_of_the_paper():
    """arXiv:2205.05198, table 2, as multiples of s b h for one layer of the 175 B model."""
    model = model_shapes.published_gpts()["175 B"]
    sbh = 3 * model.sequence * model.hidden

    def count_for_layer(kept, tensor=1):
        one, two = (
            memory.activation_bytes(
                dataclasses.replace(model, layers=deep), 3, "bf16 mixed", kept, tensor
            )
            for deep in (1, 2)
        )
        return (two - one) / sbh

    everything, no_matrix, inputs = memory.KEPT
    assert count_for_layer(everything) == 114
    assert count_for_layer(everything, 8) == 23
    assert count_for_layer(no_matrix, 8) == 13
    assert count_for_layer(inputs) == 2


def test_published_gpts_have_the_numbers_of_parameters_that_they_are_called_by():
    """Equation 2 of arXiv:2104.04473 leaves out the last norm alone."""
    assert sum(count_gpt2("small")) == GPT2_SMALL
    with pytest.raises(ValueError, match="no such size"):
        model_shapes.layers(model_shapes.GPT2, "tiny")
    known = model_shapes.published_gpts()
    for name, size in (("GPT-2, 124 M", "small"), ("GPT-2, 1.5 B", "xl")):
        assert known[name].count_parameters() == sum(count_gpt2(size)) - 2 * known[name].hidden
    for name, shape in known.items():
        if name.endswith(" B"):
            billions = float(name.removeprefix("GPT-2,").split()[0])
            assert shape.count_parameters() / 1e9 == pytest.approx(billions, rel=0.04)
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


def test_impossible_splits_say_why():
    rows = memory.by_strategy(model_shapes.published_gpts()["7.5 B"], 64, 128, "fp32", 1, "all")
    assert rows["tensor parallel"] == "32 heads do not divide over 64 ranks"
    assert rows["pipeline, first stage"] == "36 layers do not make 64 stages"
    assert rows["HSDP, rows of 128"] == "64 ranks make no rows of 128"
