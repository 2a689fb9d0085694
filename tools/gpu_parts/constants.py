"""Part `constants`: what a planner needs to know of this GPU, and generation with a cache.

How much of the peak matrix products of each shape reach, how fast the memory copies, what a
kernel's launch costs, how fast attention is.
"""

import time
from functools import partial
from statistics import median

import torch
from torch.nn.functional import scaled_dot_product_attention as attention

from bootcamp.train import benchmark
from bootcamp_lessons import generation
from gpu_parts.session import Session

WIDTHS, ROWS = (768, 1024, 2048, 4096), (256, 2048, 16384)
CONTEXTS = (512, 1024, 2048, 4096, 8192)
HEADS, HEAD_WIDTH, ATTENDED = 16, 64, 1 << 15  # tokens of each measurement of attention


def run(session: Session) -> None:
    """Constants, each by shape or size, and tokens per second of generation."""
    session.measure("matrix products", partial(_products, session), 60)
    session.measure("memory", partial(_memory, session), 20)
    session.measure("launch", partial(_launch, session), 10)
    session.measure("attention", partial(_attention, session), 60)
    for size in session.device.choose(("small", "medium"), ("tiny",)):
        session.measure(f"generation, {size}", partial(_generated, session, size), 60)


def _products(session: Session) -> list[dict]:
    """(rows, width) x (width, 4 width) and back, as a block's two layers: FLOP/s in bfloat16."""
    device, rows = session.device, []
    best = benchmark.measure_flops_per_second(device.kind, "bfloat16")
    for width in device.choose(WIDTHS, (32,)):
        for count in device.choose(ROWS, (16,)):
            for inputs, outputs in ((width, width), (width, 4 * width), (4 * width, width)):
                kind = {"dtype": torch.bfloat16, "device": device.kind}
                left, right = (
                    torch.randn(count, inputs, **kind),
                    torch.randn(inputs, outputs, **kind),
                )
                each = device.seconds_each(
                    partial(torch.matmul, left, right), device.choose(50, 2), 5
                )
                reached = 2 * count * inputs * outputs / each
                row = {"rows": count, "inputs": inputs, "outputs": outputs}
                rows.append(row | {"flops_per_second": reached, "of the best": reached / best})
    return rows


def _memory(session: Session) -> list[dict]:
    """Bytes per second, read and written, of a copy and of a sum, by size."""
    device, rows = session.device, []
    for exponent in device.choose((20, 22, 24, 26, 28, 30), (16,)):
        a = torch.ones((1 << exponent) // 4, device=device.kind)
        b, c = torch.ones_like(a), torch.empty_like(a)
        copied = device.seconds_each(partial(c.copy_, a), device.choose(30, 2))
        added = device.seconds_each(partial(torch.add, a, b, out=c), device.choose(30, 2))
        row = {"bytes": a.nbytes, "copy": 2 * a.nbytes / copied, "sum": 3 * a.nbytes / added}
        rows.append(row)
    return rows


def _launch(session: Session) -> dict:
    """Seconds of a kernel that does next to nothing: one behind another, and waited for."""
    device = session.device
    one = torch.ones(1, device=device.kind)
    times = device.choose(2000, 20)
    device.wait()
    began = time.perf_counter()
    for _ in range(times):
        one.mul_(1.0)
    returned = (time.perf_counter() - began) / times
    device.wait()
    done = device.seconds_each(partial(one.mul_, 1.0), times)
    alone = device.median_seconds(partial(one.mul_, 1.0), device.choose(50, 3))
    return {
        "call_returns_after_seconds": returned,
        "one_behind_another_seconds": done,
        "launched_and_waited_for_seconds": alone,
    }


def _attention(session: Session) -> list[dict]:
    """Causal attention by context, as many tokens each time: FLOP/s, half of the square counted."""
    device, rows = session.device, []
    for context in device.choose(CONTEXTS, (32,)):
        batch = max(1, device.choose(ATTENDED, 64) // context)
        kind = {"dtype": torch.bfloat16, "device": device.kind, "requires_grad": True}
        shape = batch, device.choose(HEADS, 2), context, HEAD_WIDTH
        q, k, v = (torch.randn(shape, **kind) for _ in range(3))
        made = torch.randn(shape, dtype=torch.bfloat16, device=device.kind)

        def both(q=q, k=k, v=v, made=made):
            attention(q, k, v, is_causal=True).backward(made)

        with torch.no_grad():
            forward = partial(attention, q, k, v, is_causal=True)
            ahead = device.seconds_each(forward, device.choose(20, 1), 3)
        each = device.seconds_each(both, device.choose(20, 1), 3)
        flops = 2 * batch * shape[1] * context**2 * HEAD_WIDTH  # two products, of each the half
        row = {"context": context, "batch": batch, "forward_flops_per_second": flops / ahead}
        rows.append(row | {"forward_and_backward_flops_per_second": 3.5 * flops / each})
    return rows


def _generated(session: Session, size: str) -> dict:
    """Greedy, from the course's GPT as it begins, with and without a cache of keys and values."""
    device = session.device
    prompt, length = device.choose((b"def " * 64, 256), (b"def ", 6))
    with torch.random.fork_rng(devices=[]):
        model = generation.build(size).to(device.kind)
    generation.greedy(model, prompt, 4, cached=True)  # warms up
    cached = generation.greedy(model, prompt, length, cached=True)
    plain = generation.greedy(model, prompt, length, cached=False)
    first, *others = cached.seconds
    return {
        "prompt_bytes": len(prompt),
        "generated_bytes": length,
        "first_seconds": first,
        "tokens_per_second, cached": 1 / median(others),
        "tokens_per_second, whole text again": 1 / median(plain.seconds[1:]),
        "cache_bytes": cached.cache_bytes,
        "formula_bytes": generation.formula_bytes(model, len(prompt) + length),
        "largest difference of a score": generation.prove(cached, plain, tolerance=1e-3),
    }
