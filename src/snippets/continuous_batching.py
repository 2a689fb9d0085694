"""python src/snippets/continuous_batching.py

Many requests for text and a batch of eight places. Static batching fills all places together, and
again when the longest text is complete; continuous batching gives a place to the next request as
soon as a text is complete (Orca, OSDI 2022). Prints a line of JSON for each. All requests come at
once. A prompt is read in one pass, alone; a place without a request computes too, as padding does.
"""

import copy
import json
import random
import time
from collections import deque
from dataclasses import dataclass, field

import torch
from torch.nn.functional import gelu, scaled_dot_product_attention

from bootcamp import corpus
from bootcamp_lessons import generation

PLACES, REQUESTS, PROMPT, LONGEST, MEAN = 8, 48, 16, 128, 24


@dataclass
class Request:
    """prompt and text: bytes. seconds: when each byte of the text was there."""

    prompt: list[int]
    length: int
    text: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, scores, began):
        self.text.append(scores.argmax().item())
        self.seconds.append(time.perf_counter() - began)

    def is_done(self):
        return len(self.text) == self.length


def serve(model, requests, continuous):
    """Answer all requests, and return how many decode steps that took."""
    cache = generation.Cache(model, PROMPT + LONGEST, batch=PLACES)
    waiting, running, steps, began = deque(requests), {}, 0, time.perf_counter()
    while waiting or running:
        # 1. Requests take free places: at once, or only when all places are free
        if continuous or not running:
            for place in [each for each in range(PLACES) if each not in running]:
                if waiting:
                    running[place] = waiting.popleft()
                    prefill(model, cache, place, running[place], began)
        # 2. One byte more for every place
        decode(model, cache, running, began)
        steps += 1
        # 3. Complete texts leave
        running = {place: one for place, one in running.items() if not one.is_done()}
    return steps


def prefill(model, cache, place, request, began):
    """Read a prompt into one place of the cache; the answer's first byte follows from it."""
    own = copy.copy(cache)
    own.keys = [keys[place : place + 1] for keys in cache.keys]
    own.values = [values[place : place + 1] for values in cache.values]
    request.add(generation.read(model, torch.tensor([request.prompt]), own)[0, -1], began)


def decode(model, cache, running, began):
    """Read each place's newest byte, at its own position, and add the byte that follows."""
    newest, position = torch.zeros(2, PLACES, dtype=torch.int64)
    for place, one in running.items():
        newest[place], position[place] = one.text[-1], len(one.prompt) + len(one.text) - 1
    embedding, *blocks, head = model
    x = (embedding.byte(newest) + embedding.position(position))[:, None]
    sees = (torch.arange(cache.keys[0].shape[2]) <= position[:, None])[:, None, None]
    places = torch.arange(PLACES)
    for block, keys, values in zip(blocks, cache.keys, cache.values, strict=True):
        attention, normed = block.attention, block.attention_norm(x)
        query, key, value = (
            projection(normed).unflatten(-1, (-1, x.shape[-1] // attention.heads)).transpose(1, 2)
            for projection in (attention.query, attention.key, attention.value)
        )
        keys[places, :, position], values[places, :, position] = key[:, :, 0], value[:, :, 0]
        mixed = scaled_dot_product_attention(query, keys, values, attn_mask=sees)
        x = x + attention.out(mixed.transpose(1, 2).flatten(2))
        x = x + block.down(gelu(block.up(block.mlp_norm(x))))
    scores = head(x)[:, -1]
    for place, one in running.items():
        if not one.is_done():
            one.add(scores[place], began)


def make_requests(seed=0):
    """Make prompts of one length, whose texts are mostly short and sometimes long."""
    draw, text = random.Random(seed), corpus.text()
    lengths = [min(LONGEST, 1 + int(draw.expovariate(1 / MEAN))) for _ in range(REQUESTS)]
    starts = [draw.randrange(len(text) - PROMPT) for _ in lengths]
    return [
        Request(list(text[start : start + PROMPT]), length)
        for start, length in zip(starts, lengths, strict=True)
    ]


def apart(model, one):
    """By how much the chosen bytes' scores miss the best of the model without a cache."""
    ids = torch.tensor([one.prompt + one.text])
    scores = model(ids)[0, len(one.prompt) - 1 : -1]
    chosen = scores.gather(1, torch.tensor(one.text)[:, None])[:, 0]
    return (scores.amax(dim=1) - chosen).max().item()


def percentile(values, percent):
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


@torch.inference_mode()
def main():
    model = generation.build(context=PROMPT + LONGEST)
    serve(model, make_requests(), continuous=True)  # warms up
    for continuous in (False, True):
        requests, began = make_requests(), time.perf_counter()
        steps = serve(model, requests, continuous)
        seconds, count = time.perf_counter() - began, sum(one.length for one in requests)
        first = [one.seconds[0] for one in requests]
        each = [
            (one.seconds[-1] - one.seconds[0]) / (one.length - 1)
            for one in requests
            if one.length > 1
        ]
        row = {"batching": "continuous" if continuous else "static", "requests": len(requests)}
        row |= {"tokens": count, "decode steps": steps, "tokens/s": count / seconds}
        row |= {"first token, ms, p50": 1e3 * percentile(first, 50)}
        row |= {"first token, ms, p99": 1e3 * percentile(first, 99)}
        row |= {"ms for each further token, p50": 1e3 * percentile(each, 50)}
        row |= {"apart": max(apart(model, one) for one in requests)}
        print(json.dumps(row))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
