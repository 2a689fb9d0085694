"""One device, well used: mixed precision, and what checkpointing and accumulation keep.

That they train what the baseline trains: test_equality.py.
"""

import math

import pytest
import torch
from trained import PROOF, trained

from bootcamp.experiments import equality
from bootcamp.train import memory_usage
from bootcamp.train.models import gpt

CONTEXT, WIDTH, LAYERS = (gpt.SIZES["tiny"][name] for name in ("context", "width", "layers"))


@pytest.mark.proves("amp")
@pytest.mark.parametrize(("autocast", "bound"), [("bfloat16", 5e-3), ("float16", 1e-3)])
def test_mixed_precision_stays_near_float32(autocast, bound):
    run = trained("amp", autocast=autocast, **PROOF)
    base = equality.baseline(optimizer="adamw", **PROOF)
    assert 0 < max(abs(a - b) for a, b in zip(run.losses, base.losses, strict=True)) < bound
    assert run.ranks[0]["parameter_bytes"] == base.ranks[0]["parameter_bytes"]
    assert run.ranks[0]["activation_bytes"] < 0.75 * base.ranks[0]["activation_bytes"]


@pytest.mark.parametrize("keep", ["inputs", "products"])
def test_checkpointing_keeps_what_the_formula_says(keep):
    """Of the tiny GPT, in float32, 4 bytes an element; products lie between inputs and all."""
    tokens = PROOF["global_batch"] * CONTEXT
    block = {"inputs": tokens * WIDTH, "products": tokens * 10 * WIDTH}[keep]
    head = tokens * (2 * WIDTH + 2 + gpt.VOCABULARY)  # its input, the norm's output, the scores
    run = trained("activation_checkpointing", keep=keep, **PROOF)
    kept = run.ranks[0]["activation_bytes"]
    assert kept == pytest.approx(4 * (LAYERS * block + head), rel=0.05)
    assert kept < equality.baseline(optimizer="adamw", **PROOF).ranks[0]["activation_bytes"]


@pytest.mark.parametrize("micro_batches", [3, 5])
def test_accumulation_keeps_the_activations_of_the_largest_part(micro_batches):
    run = trained("accumulate", micro_batches=micro_batches, optimizer="sgd", **PROOF)
    whole = equality.baseline(optimizer="sgd", **PROOF).ranks[0]["activation_bytes"]
    batch = PROOF["global_batch"]
    largest = math.ceil(batch / micro_batches)  # 5 parts of 12 samples are four of 3
    assert run.ranks[0]["activation_bytes"] == pytest.approx(whole * largest / batch, rel=0.01)


def test_data_parallel_says_that_it_splits_nothing():
    run = trained("dp", 1, optimizer="sgd", **PROOF)
    assert run.output().count("it runs the bare model and splits nothing") == 1


def counted(forward, *parameters):
    """Bytes that Activations counts for a forward and backward of a function's sum."""
    model = torch.nn.ParameterList(parameters)
    watch = memory_usage.Activations(model)
    watch.start()
    forward().sum().backward()
    watch.stop()
    return watch.bytes


def test_activations_counts_what_the_forward_made_and_nothing_else():
    weight = torch.ones(100, requires_grad=True)
    data = torch.ones(10, 100)
    scalars = 8  # bytes of the sum and of the gradient that the backward begins with
    assert counted(lambda: data * weight, weight) == scalars
    assert counted(lambda: (data * weight).exp(), weight) == 4 * 1000 + scalars
    assert counted(lambda: (data * weight).exp().view(1000).exp(), weight) == 8 * 1000 + scalars
    assert counted(lambda: data[:5].t() * weight[:1].exp(), weight) == 4 + scalars


def test_activations_sees_what_checkpointing_gives_up():
    weight = torch.ones(100, requires_grad=True)

    def twice(x):
        return (x * weight).exp().exp()

    kept = counted(lambda: twice(torch.ones(10, 100)), weight)
    given_up = counted(
        lambda: torch.utils.checkpoint.checkpoint(
            twice, torch.ones(10, 100), use_reentrant=False, preserve_rng_state=False
        ),
        weight,
    )
    assert kept == 4 * 3 * 1000 + 8  # the input, and what each exp returned
    assert given_up == 4 * 1000 + 8  # the input alone
