"""Text from the course's GPT, byte by byte, with and without a cache of keys and values.

Without the cache the model reads the whole text again for every byte. With it the prompt is read
once (the prefill), and then each byte alone (a decode step): it attends to the kept keys and values
of those before it. `prove(greedy(..., cached=True), greedy(..., cached=False))` compares them.
"""

import time
import timeit
from argparse import Namespace
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from bootcamp import corpus, machine
from bootcamp.costs.model_shapes import Model
from bootcamp.experiments.equality import NotTheSame
from bootcamp.paths import LOGS
from bootcamp.records.measurement import Measurement
from bootcamp.train import memory_usage, models
from bootcamp.train.models import gpt

TOLERANCE = 1e-5  # of the largest score, in float32: training lets scores grow, and rounding too
ROUNDS, DECODES = 9, 8  # a decode step follows others, as it does in a generation


class Cache:
    """Keys and values of the bytes that the model has read.

    keys, values: a tensor (batch, heads, room, width of a head) for each block, filled to `length`.
    """

    def __init__(self, model: nn.Sequential, room: int, batch: int = 1):
        _, *blocks, _ = model
        attention, width = blocks[0].attention, model.embedding.byte.embedding_dim
        like = attention.key.weight
        shape = batch, attention.kv_heads, room, width // attention.heads
        self.keys = [like.new_zeros(shape) for _ in blocks]
        self.values = [like.new_zeros(shape) for _ in blocks]
        self.length = 0

    @property
    def bytes(self) -> int:
        return memory_usage.count_storage_bytes([*self.keys, *self.values])


def read(model: nn.Sequential, new: torch.Tensor, cache: Cache) -> torch.Tensor:
    """Read new bytes (batch, count) into the cache; return the scores behind each of them."""
    embedding, *blocks, head = model
    begin, end = cache.length, cache.length + new.shape[1]
    x = embedding.byte(new) + embedding.position.weight[begin:end]
    for block, keys, values in zip(blocks, cache.keys, cache.values, strict=True):
        x = x + attend(block.attention, block.attention_norm(x), begin, keys, values)
        x = x + block.down(gelu(block.up(block.mlp_norm(x))))
    cache.length = end
    return head(x)


def attend(attention: gpt.Attention, x, begin: int, keys, values) -> torch.Tensor:
    """Attend from new bytes, x (batch, count, width), to the kept ones and to each other.

    keys, values: a block's part of the cache; those of the new bytes are written from `begin` on.
    """
    query, key, value = (
        projection(x).unflatten(-1, (-1, x.shape[-1] // attention.heads)).transpose(1, 2)
        for projection in (attention.query, attention.key, attention.value)
    )
    count, end = x.shape[1], begin + x.shape[1]
    keys[:, :, begin:end], values[:, :, begin:end] = key, value
    kept, grouped = (keys[:, :, :end], values[:, :, :end]), attention.kv_heads < attention.heads
    if begin == 0:  # the same mask by its name: what it hides is not even computed
        mixed = scaled_dot_product_attention(query, *kept, is_causal=True, enable_gqa=grouped)
    else:
        # a row for each new byte, a column for each that there is: it sees itself and those before
        sees = torch.ones(count, end, dtype=torch.bool, device=x.device).tril(diagonal=begin)
        mixed = scaled_dot_product_attention(query, *kept, attn_mask=sees, enable_gqa=grouped)
    return attention.out(mixed.transpose(1, 2).flatten(2))


@dataclass(frozen=True)
class Generated:
    """A generated text.

    scores: float32 (bytes of text, 256), by which each byte was chosen. seconds: of the forward
    pass of each byte; with a cache the first is the prefill. cache_bytes: 0 without one.
    """

    prompt: bytes
    text: bytes
    scores: torch.Tensor
    seconds: list[float]
    cache_bytes: int


@torch.inference_mode()
def greedy(model: nn.Sequential, prompt: bytes, length: int, cached: bool) -> Generated:
    """Generate the likeliest bytes. Raises ValueError for no prompt, or too few positions."""
    total, context = len(prompt) + length, model.embedding.position.num_embeddings
    if not prompt or length < 1 or total > context:
        given = f"a prompt of {len(prompt)} bytes and {length} more"
        raise ValueError(f"{given}: expected one of each, and {context} together at most")
    device = model.embedding.byte.weight.device
    ids = torch.tensor([list(prompt)], device=device)
    cache = Cache(model, room=total) if cached else None
    scores, seconds = [], []
    for _ in range(length):
        began = time.perf_counter()
        scored = read(model, ids[:, cache.length :], cache) if cached else model(ids)
        last = scored[0, -1]
        following = last.argmax().item()  # waits for the device
        seconds.append(time.perf_counter() - began)
        scores.append(last)
        ids = torch.cat([ids, ids.new_tensor([[following]])], dim=1)
    text = bytes(ids[0, len(prompt) :].tolist())
    return Generated(prompt, text, torch.stack(scores), seconds, cache.bytes if cached else 0)


def prove(generated: Generated, expected: Generated, tolerance: float = TOLERANCE) -> float:
    """Return the largest difference of two generations' scores, as a share of the largest score.

    NotTheSame: beyond the tolerance, or another byte. ValueError: another prompt or length.
    """
    if (generated.prompt, len(generated.text)) != (expected.prompt, len(expected.text)):
        raise ValueError("expected as many bytes behind the same prompt")
    differences = (generated.scores - expected.scores).abs().amax(dim=1)
    shares = (differences / expected.scores.abs().amax(dim=1)).tolist()
    for place, share in enumerate(shares):
        chosen, other = generated.text[place : place + 1], expected.text[place : place + 1]
        if not share <= tolerance or chosen != other:
            raise NotTheSame(
                f"byte {place} behind the prompt is {chosen!r}, expected {other!r}; a score "
                f"differs by {share:.1e} of the largest, allowed {tolerance:.0e}"
            )
    return max(shares)


def build(size: str = "tiny", seed: int = 0, context: int | None = None) -> nn.Sequential:
    """Build the course's GPT before its first step. context: positions, if not its size's."""
    model = models.build(Namespace(model="gpt", size=size, seed=seed, dtype="float32"))
    if context:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model.embedding = gpt.Embedding(gpt.SIZES[size]["width"], context)
    return model.eval()


def formula_bytes(model: nn.Sequential, length: int, batch: int = 1) -> int:
    """Calculate the bytes of this model's cache, in float32."""
    _, *blocks, _ = model
    attention, width = blocks[0].attention, model.embedding.byte.embedding_dim
    sizes = {"layers": len(blocks), "hidden": width, "heads": attention.heads}
    shape = Model(**sizes, sequence=0, vocabulary=0, key_heads=attention.kv_heads)
    return shape.cache_bytes(length, batch, number_bytes=4)


class Speed(Measurement):
    """Seconds for the next byte by the length of the text before it, on one core of this machine.

    rows: one for each length, in bytes: `length`; `again_seconds`, to read all of the text;
    `decode_seconds`, to read its last byte, with the others in the cache; `cache_bytes`.
    """

    def __init__(self, rows: list[dict]):
        self.folder, self.rows = LOGS, rows
        about = {"machine": machine.describe(), "versions": {"torch": torch.__version__}}
        self.config = {"device": "cpu", "processes": 1, "cores_per_rank": 1, **about}


@torch.inference_mode()
def measure(lengths: tuple[int, ...]) -> Speed:
    """Time the tiny GPT; in rounds, so that a slow moment of the machine meets every length."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = build(context=max(lengths))
        caches = [Cache(model, room=length) for length in lengths]
        rounds = [[_time_next_byte(model, cache) for cache in caches] for _ in range(1 + ROUNDS)]
    finally:
        torch.set_num_threads(threads)
    rows = []
    for cache, *seconds in zip(caches, *rounds[1:], strict=True):  # the first round warms up
        again, decode = map(min, zip(*seconds, strict=True))
        row = {"length": cache.length, "again_seconds": again, "decode_seconds": decode}
        rows.append(row | {"cache_bytes": cache.bytes})
    return Speed(rows)


def _time_next_byte(model: nn.Sequential, cache: Cache) -> tuple[float, float]:
    room = cache.keys[0].shape[2]
    text = torch.tensor([list(corpus.text()[:room])])

    def decode() -> torch.Tensor:
        cache.length = room - 1
        return read(model, text[:, -1:], cache)

    again_seconds = timeit.timeit(lambda: model(text), number=1)
    return again_seconds, min(timeit.repeat(decode, number=1, repeat=DECODES))
