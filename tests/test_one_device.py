"""One device, well used: mixed precision, activation checkpointing, accumulation, DataParallel."""

import math

import pytest
import torch
from trained import PROOF, proved, trained

from bootcamp.experiments import equality
from bootcamp.train import memory_usage, models
from bootcamp.train.models import gpt

CONTEXT, WIDTH, LAYERS, HEADS = (
    gpt.SIZES["tiny"][name] for name in ("context", "width", "layers", "heads")
)


def largest_difference(run, base):
    return max(abs(a - b) for a, b in zip(run.losses, base.losses, strict=True))


@pytest.mark.proves("amp")
@pytest.mark.parametrize(("autocast", "bound"), [("bfloat16", 5e-3), ("float16", 1e-3)])
def test_mixed_precision_stays_near_float32(autocast, bound):
    run = trained("amp", autocast=autocast, **PROOF)
    base = equality.baseline(optimizer="adamw", **PROOF)
    assert 0 < largest_difference(run, base) < bound
    assert run.ranks[0]["parameter_bytes"] == base.ranks[0]["parameter_bytes"]
    assert run.ranks[0]["activation_bytes"] < 0.75 * base.ranks[0]["activation_bytes"]


def kept_bytes(keep):
    """What the tiny GPT keeps, by formula: float32, 4 bytes an element."""
    tokens = PROOF["global_batch"] * CONTEXT
    block = {"inputs": tokens * WIDTH, "products": tokens * 10 * WIDTH}[keep]
    head = tokens * (2 * WIDTH + 2 + gpt.VOCABULARY)  # its input, the norm's output, the scores
    return 4 * (LAYERS * block + head)


@pytest.mark.proves("activation_checkpointing")
def test_keeping_only_inputs_changes_no_loss_and_keeps_what_the_formula_says():
    run = trained("activation_checkpointing", keep="inputs", **PROOF)
    base = equality.baseline(optimizer="adamw", **PROOF)
    assert run.losses == base.losses
    assert run.ranks[0]["fingerprint_final"] == base.ranks[0]["fingerprint_final"]
    assert run.ranks[0]["activation_bytes"] == pytest.approx(kept_bytes("inputs"), rel=0.05)


def test_keeping_matrix_products_lies_between():
    base = equality.baseline(optimizer="adamw", **PROOF)
    run = trained("activation_checkpointing", keep="products", **PROOF)
    inputs = trained("activation_checkpointing", keep="inputs", **PROOF)
    assert run.losses == base.losses
    assert run.ranks[0]["activation_bytes"] == pytest.approx(kept_bytes("products"), rel=0.05)
    sizes = [each.ranks[0]["activation_bytes"] for each in (inputs, run, base)]
    assert sizes == sorted(sizes)


@pytest.mark.proves("activation_checkpointing")
@pytest.mark.parametrize("model", [name for name in models.NAMES if name != "resnet50"])
def test_checkpointing_changes_no_loss_of_any_model(model):
    run = trained(
        "activation_checkpointing", **({} if model == "gpt" else {"model": model}), **PROOF
    )
    assert run.losses == equality.baseline(model=model, optimizer="adamw", **PROOF).losses


@pytest.mark.proves("accumulate")
@pytest.mark.parametrize("micro_batches", [1, 3, 5])
def test_accumulation_trains_what_the_baseline_trains(micro_batches):
    for optimizer in ("adamw", "sgd"):
        own = {"micro_batches": micro_batches, "optimizer": optimizer}
        run = trained("accumulate", **own, **PROOF)
        equality.same_training(run, equality.baseline(optimizer=optimizer, **PROOF))
    whole = equality.baseline(optimizer="sgd", **PROOF).ranks[0]["activation_bytes"]
    batch = PROOF["global_batch"]
    largest = math.ceil(batch / micro_batches)  # 5 parts of 12 samples are four of 3
    expected = whole * largest / batch
    assert run.ranks[0]["activation_bytes"] == pytest.approx(expected, rel=0.01)


@pytest.mark.proves("dp")
def test_data_parallel_says_that_it_splits_nothing():
    proofs = proved("dp", 1)
    assert proofs[0].run.output().count("it runs the bare model and splits nothing") == 1


@pytest.mark.proves("dp_by_hand")
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_replicas_by_hand_train_what_the_baseline_trains(replicas):
    for optimizer in ("adamw", "sgd"):
        run = trained("dp_by_hand", replicas=replicas, optimizer=optimizer, **PROOF)
        equality.same_training(run, equality.baseline(optimizer=optimizer, **PROOF))


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
