"""Lesson 11 on one and on several devices: the cache of keys and values, and two ways to serve."""

import contextlib
import dataclasses
from argparse import Namespace

import pytest
import torch
from trained import trained

from bootcamp.costs import model_shapes
from bootcamp.paths import SRC
from bootcamp.train import data, models
from bootcamp_lessons import generation

TOKEN_BYTES = 2 * 6 * 64 * 4  # keys and values, layers, width, bytes of a float32


@pytest.fixture(scope="module")
def model():
    return generation.build()


@pytest.mark.parametrize("kv_heads", [None, 1, 2])
@torch.inference_mode()
def test_scores_of_a_cache_are_the_models_at_every_position_however_the_text_is_cut(kv_heads):
    """With heads of keys that several heads of queries share, too: the cache is smaller."""
    model = models.build(
        Namespace(model="gpt", size="tiny", seed=0, dtype="float32", kv_heads=kv_heads)
    )
    ids = torch.randint(256, (3, 64), generator=torch.Generator().manual_seed(0))
    cache = generation.Cache(model, room=64, batch=3)
    scores = [generation.read(model, piece, cache) for piece in ids.split([20, 1, 1, 30, 12], 1)]
    assert (torch.cat(scores, dim=1) - model(ids)).abs().max() < 1e-5
    assert cache.length == 64
    assert cache.bytes == 3 * generation.formula_bytes(model, 64)
    assert 4 * cache.bytes == (kv_heads or 4) * 3 * 64 * TOKEN_BYTES
    shapes = [layer.shapes for layer in model_shapes.layers("gpt", "tiny", kv_heads=kv_heads)]
    assert shapes == [tuple(tuple(p.shape) for p in stage.parameters()) for stage in model]


@pytest.mark.rejects("other bytes", "scores that are no numbers", "a score above the tolerance")
def test_proof_of_generation_rejects_other_bytes_and_scores(model):
    """Of a cache that is read or cut wrongly, too: its scores are not the model's."""
    plain = generation.greedy(model, b"def ", 24, cached=False)
    other = dataclasses.replace(plain, text=b"?" + plain.text[1:])
    with pytest.raises(generation.NotTheSame, match=r"byte 0 .* is b'\?'"):
        generation.prove(other, plain)
    nothing = dataclasses.replace(plain, scores=plain.scores * float("nan"))
    with pytest.raises(generation.NotTheSame, match="byte 0"):
        generation.prove(nothing, plain)
    largest = plain.scores[5].abs().max()
    for share, same in ((0.9e-5, True), (1.1e-5, False)):
        scores = plain.scores.clone()
        scores[5, 0] += share * largest
        rejected = pytest.raises(generation.NotTheSame, match="byte 5 behind the prompt")
        with contextlib.nullcontext() if same else rejected:
            generation.prove(dataclasses.replace(plain, scores=scores), plain)
    with pytest.raises(ValueError, match="behind the same prompt"):
        generation.prove(dataclasses.replace(plain, prompt=b"class "), plain)


def test_token_of_llama_3_70b_takes_320_kibibytes():
    model = model_shapes.served_models()["Llama 3 70B"]
    assert model.width_of_head == 128
    assert model.cache_bytes(length=1) == 2 * 80 * 8 * 128 * 2 == 320 << 10
    assert model.cache_bytes(length=10, batch=3, number_bytes=4) == 60 * model.cache_bytes(1)
    ungrouped = dataclasses.replace(model, key_heads=model.heads)
    assert ungrouped.cache_bytes(1) == 8 * model.cache_bytes(1)
    assert model.requests_that_fit(8192, memory_bytes=80e9) == 0  # its weights have 140 GB
    assert model.requests_that_fit(8192, memory_bytes=160e9) == 7
    shares = [model.cache_bytes(1, tensor_ranks=ranks) for ranks in (1, 2, 8, 16)]
    assert shares == [320 << 10, 160 << 10, 40 << 10, 40 << 10]  # 16 ranks hold each head twice


SERVED = {"steps": 2, "global_batch": 16}


@torch.inference_mode()
def evaluate(seed: int) -> list[float]:
    """The losses of one process that answers the whole batches and trains nothing."""
    args = Namespace(model="gpt", size="tiny", seed=seed, dtype="float32", global_batch=16)
    model, batches = models.build(args).eval(), data.Batches(args, 0, 1)
    given = [batches(step) for step in range(SERVED["steps"])]
    return [models.loss(model(inputs), targets).item() for inputs, targets in given]


@pytest.mark.parametrize("way", ["replicas", "pipeline"])
def test_devices_that_serve_answer_as_one_does_and_change_nothing(way, model):
    """Replicas hold the model each and share the requests; stages the other way round."""
    run = trained(SRC / "snippets" / f"serve_{way}.py", 2, **SERVED)
    assert run.losses == pytest.approx(evaluate(seed=0), abs=1e-5)
    assert run.losses != pytest.approx(evaluate(seed=1), abs=1e-3)
    for rank in run.ranks:
        assert rank["fingerprint_final"] == rank["fingerprint_initial"]
        kept = [rank[f"{kind}_bytes"] for kind in ("gradient", "optimizer", "activation")]
        assert kept == [0, 0, 0]
    forward = sum(layer.flops for layer in model_shapes.layers("gpt", "tiny"))
    assert run.summary["flops_per_sample"] == forward  # and no backward
    whole = sum(parameter.nbytes for parameter in model.parameters())
    held = [rank["parameter_bytes"] for rank in run.ranks]
    first, second = ({*sum(rank["sample_ids"], [])} for rank in run.ranks)
    if way == "replicas":
        assert held == [whole, whole]
        assert (len(first), len(second), first & second) == (16, 16, set())
    else:
        assert sum(held) == whole
        assert held == pytest.approx([whole / 2, whole / 2], rel=0.02)
        assert first == second
