"""Seconds for the next byte by the length of the text before it, with and without a cache.

    speed = generation_speed.measure()
    speed.rows[-1]["again_seconds"] / speed.rows[-1]["decode_seconds"]

Reading all of the text again costs more the longer it is; a decode step reads one byte.
"""

import platform
import time
from collections.abc import Callable

import torch

from bootcamp import corpus, machine
from bootcamp.paths import LOGS
from bootcamp.records.measurement import Measurement
from bootcamp_lessons import generation

LENGTHS = (64, 128, 256, 512, 1024)
ROUNDS, DECODES = 9, 8  # a decode step follows others, as it does in a generation


class Speed(Measurement):
    """What was measured, and where.

    rows: one for each length: `length`, bytes of text that the next byte is chosen by;
    `again_seconds`, to read all of them; `decode_seconds`, to read the last one, with the others in
    the cache; `prefill_seconds`, to read those others into it; `cache_bytes`.
    """

    def __init__(self, config: dict, rows: list[dict]):
        self.folder, self.config, self.rows = LOGS, config, rows


@torch.inference_mode()
def measure(
    lengths: tuple[int, ...] = LENGTHS, size: str = "tiny", device: str = "cpu", cores: int = 1
) -> Speed:
    """Measure on one rank, in this process; each time is that of the fastest of some calls.

    The model has the size's layers and width, and positions for the longest text. Its parameters
    are as drawn: no time depends on their values. Takes a few seconds with the tiny GPT. A round
    makes each call once, so that a slow moment of the machine meets every length.
    """
    about = {
        "device": device,
        "processes": 1,
        "cores_per_rank": cores,
        "size": size,
        "machine": machine.describe(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        model = generation.build(size, context=max(lengths)).to(device)
        caches = [generation.Cache(model, room=length) for length in lengths]
        rounds = [[_seconds(model, cache) for cache in caches] for _ in range(1 + ROUNDS)]
    finally:
        torch.set_num_threads(threads)
    rows = []
    for cache, *seen in zip(caches, *rounds[1:], strict=True):  # the first round warms up
        fastest = {name: min(each[name] for each in seen) for name in seen[0]}
        rows.append({"length": cache.length, **fastest, "cache_bytes": cache.bytes})
    return Speed(about, rows)


def _seconds(model, cache: generation.Cache) -> dict[str, float]:
    """How long each way takes to read a text that fills the cache."""
    room, device = cache.keys[0].shape[2], cache.keys[0].device
    text = torch.tensor([list(corpus.text()[:room])], device=device)

    def prefill():
        cache.length = 0
        return generation.read(model, text[:, :-1], cache)

    def decode():
        cache.length = room - 1
        return generation.read(model, text[:, -1:], cache)

    return {
        "again_seconds": _fastest(lambda: model(text), calls=1),
        "prefill_seconds": _fastest(prefill, calls=1),
        "decode_seconds": _fastest(decode, calls=DECODES),
    }


def _fastest(call: Callable[[], torch.Tensor], calls: int) -> float:
    seconds = []
    for _ in range(calls):
        began = time.perf_counter()
        call()[0, -1, 0].item()  # waits for the device
        seconds.append(time.perf_counter() - began)
    return min(seconds)
