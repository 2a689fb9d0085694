"""Data that depends on (seed, step) alone, models that can be cut into stages."""

import argparse

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bootcamp import config, data, models, optimizers, record


def flags(**changes):
    given = {"model": "gpt", "size": "tiny", "seed": 0, "dtype": "float32", "global_batch": 12}
    return argparse.Namespace(**{**given, "optimizer": "adamw", "lr": 0.1, **changes})


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("step", [0, 7, 100_000])
def test_shares_add_up_to_the_same_global_batch(world, step):
    ranks = [data.Batches(flags(), rank, world) for rank in range(world)]
    inputs = torch.cat([batches(step)[0] for batches in ranks])
    ids = [i for batches in ranks for i in batches.sample_ids]
    assert torch.equal(inputs, data.Batches(flags(), 0, 1)(step)[0])
    assert len(set(ids)) == 12


def test_a_batch_depends_on_seed_and_step_only():
    batches = data.Batches(flags(), 0, 1)
    first = batches(3)[0]
    batches(50_000)  # another epoch in between
    assert torch.equal(batches(3)[0], first)
    assert not torch.equal(batches(4)[0], first)
    assert not torch.equal(data.Batches(flags(seed=1), 0, 1)(3)[0], first)


def test_an_epoch_visits_every_sample_once():
    batches = data.Batches(flags(global_batch=500), 0, 1)
    ids = torch.cat([batches.global_ids(step) for step in range(batches.steps_per_epoch)])
    assert len(ids.unique()) == len(ids)
    assert len(batches.dataset) - len(ids) < 500


def test_targets_are_the_next_bytes():
    inputs, targets = data.Corpus(context=64)[10]
    assert torch.equal(inputs[1:], targets[:-1])
    assert bytes(inputs.tolist()) in data.corpus_bytes()
    last = data.Corpus(context=16, next_byte_only=True)[10]
    assert last[1].shape == ()


def test_the_corpus_is_python_source():
    assert b"def " in data.corpus_bytes()
    assert len(data.corpus_bytes()) > 1_000_000


@pytest.mark.parametrize("model", models.NAMES)
def test_flops_formula_matches_torchs_counter(model):
    args = flags(model=model)
    network = models.build(args)
    inputs, targets = data.Batches(args, 0, 1)(0)
    # the counter does not know the fused attention kernel of the CPU: count the plain one
    with (
        FlopCounterMode(display=False) as counter,
        nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH),
    ):
        models.loss(network(inputs), targets).backward()
    formula = models.flops_per_sample(args) * 12
    # the first layer's inputs need no gradient, which the formula does not subtract for the MLP
    assert formula == pytest.approx(counter.get_total_flops(), rel=0.16 if model == "mlp" else 0.01)


@pytest.mark.parametrize("model", models.NAMES)
def test_stages_are_named_and_can_be_cut(model):
    whole = models.build(flags(model=model))
    first, second = whole[:3], whole[3:]
    names = [name for name, _ in first.named_parameters()]
    names += [name for name, _ in second.named_parameters()]
    assert names == [name for name, _ in whole.named_parameters()]
    inputs, _ = data.Batches(flags(model=model), 0, 1)(0)
    assert torch.equal(second(first(inputs)), whole(inputs))


def test_gpt_tiny_can_be_cut_for_the_later_lessons():
    assert len(models.build(flags())) >= 8
    assert models.gpt.SIZES["tiny"]["heads"] == 4


@pytest.mark.parametrize(
    ("size", "millions"), [("small", 124), ("medium", 355), ("large", 774), ("xl", 1558)]
)
def test_sizes_are_gpt2s_without_its_vocabulary(size, millions):
    """GPT-2's published sizes less its 50,257 tokens, plus our head and bytes."""
    with torch.device("meta"):
        stages = [stage() for _, stage in models.gpt.stages(**models.gpt.SIZES[size])]
    count = sum(p.numel() for stage in stages for p in stage.parameters())
    width = models.gpt.SIZES[size]["width"]
    assert (count + (50_257 - 2 * 256) * width) / 1e6 == pytest.approx(millions, rel=0.01)


def test_a_stage_has_the_same_parameters_whoever_builds_it():
    a, b = models.build(flags()), models.build(flags())
    assert record.fingerprint(a) == record.fingerprint(b)
    assert record.fingerprint(a) != record.fingerprint(models.build(flags(seed=1)))
    spread = a.block0.up.weight.std().item()
    assert spread == pytest.approx(models.gpt.initial_std(64), rel=0.05)


def test_no_parameter_has_a_gradient_that_is_only_noise():
    """Each gradient of a whole tensor is far above float32's rounding of it."""
    args = flags(dtype="float64")
    network = models.build(args)
    models.loss(network(data.Batches(args, 0, 1)(0)[0]), data.Batches(args, 0, 1)(0)[1]).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad.norm() > 1e-4, name


def test_optimizers_are_torchs_own():
    parameters = [torch.nn.Parameter(torch.ones(2))]
    assert isinstance(optimizers.build(flags(), parameters), torch.optim.AdamW)
    sgd = optimizers.build(flags(optimizer="sgd"), parameters)
    assert sgd.defaults["momentum"] == 0.9


def test_dtype_reaches_the_parameters():
    for name, dtype in config.DTYPES.items():
        assert next(models.build(flags(model="mlp", dtype=name)).parameters()).dtype == dtype
