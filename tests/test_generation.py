"""Lesson 11: the cache of keys and values, a language model that is served, two ways to serve."""

import contextlib
import dataclasses
import types
from argparse import Namespace

import pytest
import torch
from trained import trained

from bootcamp.costs import model_shapes
from bootcamp.paths import SRC
from bootcamp.train import data, models
from bootcamp_lessons import generation
from serve import language_model

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


FEW = {"blocks": language_model.ROOM // 3}
SERVINGS = {
    "static": {"continuous": False},
    "continuous": {},
    "reserved": FEW | {"reserve": language_model.PROMPT + language_model.LONGEST},
    "few blocks": FEW,
    "prefixes": FEW | {"share": True},
    "a draft": FEW | {"draft": 1},
    "a draft that is right": {"draft": 2},
}
HOLD = "block = self.free.popleft()"
WRONG = {  # what a serving does wrong: a line of the program, and what stands in its place
    "static: padding is read": ("<= position[:, None", "<= 1000 + 0 * position[:, None"),
    "continuous: padding overwrites a text": ("slot = slot * own", "slot = slot"),
    "few blocks: a table forgets one": ("[one.table for", "[one.table[1:] + one.table[:1] for"),
    "few blocks: one has two texts": (HOLD, f"{HOLD} // 2 * 2"),
    "few blocks: what was put back counts as read": ("[], 0", "[], request.kept"),
    "prefixes: a hash without what stands before": ("hash((piece, *", "hash((0, *"),
    "prefixes: a block is freed that another text has": ("-= 1", "= 0"),
    "a draft: one byte too many is accepted": ("best[: right + 1]", "best[: right + 2]"),
    "a draft: a wrong guess stays in the cache": ("len(request.ids) - 1", "len(request.ids)"),
}


def serve(way, module=language_model):
    """Serve prompts that begin alike, but every second one's first blocks have another order."""
    large, how = module.build(layers=2), dict(SERVINGS[way])
    requests = module.make_requests()[:16]
    for one in requests[::2]:
        one.prompt = one.prompt[8:16] + one.prompt[:8] + one.prompt[16:]
    if layers := how.pop("draft", None):
        how["draft"] = module.Draft(torch.nn.Sequential(*large[: 1 + layers], large[-1]))
    count = module.serve(large, requests, **how)
    return [module.is_the_models(large, one) for one in requests], count, requests


@pytest.mark.parametrize("way", SERVINGS)
def test_text_is_the_models_alone_byte_for_byte_however_it_is_served(way):
    same, count, requests = serve(way)
    assert all(same)
    assert len({bytes(one.text) for one in requests if one.length > 3}) > 10, "too much alike"
    assert bool(count["put back"]) == (way in ("few blocks", "prefixes", "a draft"))
    read = sum(len(one.prompt) for one in requests)
    assert count["read in prefills"] == read if not count["put back"] else True
    if "draft" in way:
        right = count["bytes of them"] / count["text passes"]
        assert right == 5 if way == "a draft that is right" else 1 < right < 4


@pytest.mark.rejects(*WRONG)
@pytest.mark.parametrize("wrong", WRONG)
def test_proof_of_served_text_rejects_a_server_that(wrong):
    old, new = WRONG[wrong]
    program = (SRC / "serve" / "language_model.py").read_text()
    assert program.count(old) == 1
    module = types.ModuleType("wrong")
    exec(program.replace(old, new), module.__dict__)
    assert not all(serve(wrong.partition(":")[0], module)[0])


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
