"""Parts `mfu_small` and `mfu_medium`: GPT-2 as fast as this course trains it, beside a plain loop.

Both train GPT-2's shape with its vocabulary in bfloat16 with torch.compile, in turn in one process,
so that a GPU whose clock changes slows both. Then one thing after another is taken away.
"""

from dataclasses import replace
from functools import partial
from statistics import median

import torch
from torch.nn.functional import scaled_dot_product_attention as attention

from bootcamp.costs.model_shapes import GPT2_VOCABULARY
from gpu_parts.bare_gpt2 import PlainLoop
from gpu_parts.device import KERNELS
from gpu_parts.loops import Trainer, Way, flops_per_sample
from gpu_parts.session import Session

FAST = Way(autocast="bfloat16", compiled=True, fused=True)
PADDED = 64 * -(
    -GPT2_VOCABULARY // 64
)  # whole tiles of a matrix product; the rest is never a target
PLAIN_BATCH = {"small": 12, "medium": 12}
BATCH = {"small": 32, "medium": 24}
TARGET = 1.05


def small(session: Session) -> None:
    """GPT-2, 124 M parameters."""
    _compare(session, "small")


def medium(session: Session) -> None:
    """GPT-2 medium, 350 M parameters."""
    _compare(session, "medium")


def _compare(session: Session, size: str) -> None:
    """The two loops in turn, then what each of the faster one's choices is worth."""
    device = session.device
    compiling = 90 if size == "small" else 150
    kernel = session.measure("attention kernels", partial(_kernels, session, size), 30)
    for chosen in dict.fromkeys((kernel and kernel["fastest"], None)):
        fast = replace(FAST, attention=chosen)
        loops = _Loops(session, size, fast)
        if session.measure("in turn", loops.in_turn, 2 * compiling):
            break  # a kernel that compiled code cannot use is an error, and torch's choice is next
    else:
        return
    for name, way in {
        "waits in every step": replace(fast, waits=True),
        "optimizer not fused": replace(fast, fused=False),
        "batches from pageable memory": replace(fast, pinned=False),
    }.items():
        session.measure(f"without: {name}", partial(loops.without, way), 20)
    batch = device.choose(PLAIN_BATCH[size], 1)
    other = partial(loops.without_compiled, fast, batch, loops.vocabulary)
    session.measure("without: larger batch", other, compiling)
    if size == "medium":
        return  # what is left would be compiled once more, which takes minutes
    other = partial(loops.without_compiled, replace(fast, attention=None))
    session.measure("without: chosen attention kernel", other, compiling)
    other = partial(loops.without_compiled, fast, loops.batch, loops.plain_vocabulary)
    session.measure("without: padded vocabulary", other, compiling)


class _Loops:
    """The fast loop, which stays, and what it is compared with."""

    def __init__(self, session: Session, size: str, way: Way):
        self.session, self.device, self.way = session, session.device, way
        self.shape = self.device.shape(size)
        self.batch = self.device.choose(BATCH[size], 2)
        self.plain_batch = self.device.choose(PLAIN_BATCH[size], 1)
        self.steps, self.rounds = self.device.choose((10, 5), (1, 2))
        self.vocabulary, self.plain_vocabulary = self.device.choose(
            (PADDED, GPT2_VOCABULARY), (320, 319)
        )
        self.fast: Trainer | None = None

    def _trainer(self, way: Way, batch: int, vocabulary: int) -> Trainer:
        trainer = Trainer(self.device, way, batch, self.shape, vocabulary)
        # what pads a vocabulary is no work: it counts as GPT-2's own
        trainer.flops = flops_per_sample(self.shape, self.plain_vocabulary)
        return trainer

    def _mfu(self, step, batch: int, steps: int) -> float:
        """Floating-point operations per second of one loop."""
        seconds = self.device.seconds_each(step, steps, warm=1)
        return flops_per_sample(self.shape, self.plain_vocabulary) * batch / seconds

    def in_turn(self) -> dict:
        """Both loops, round by round."""
        plain = PlainLoop(self.device, self.shape, self.plain_batch, self.plain_vocabulary)
        self.fast = self._trainer(self.way, self.batch, self.vocabulary)
        for warm in (plain.step, self.fast.step):  # compiles
            self.device.seconds_each(warm, 2)
        rounds = [
            {
                "plain": self._mfu(plain.step, self.plain_batch, self.steps),
                "course": self._mfu(self.fast.step, self.batch, self.steps),
            }
            for _ in range(self.rounds)
        ]
        peak = self.device.published_peak("bfloat16")
        ratio = median(each["course"] / each["plain"] for each in rounds)
        found = {
            "plain batch": self.plain_batch,
            "course batch": self.batch,
            "attention": self.way.attention,
            "vocabulary": self.vocabulary,
            "rounds, FLOP/s": rounds,
            "ratio": ratio,
            "target": TARGET,
            "reached": ratio >= TARGET,
        }
        for name in ("plain", "course"):
            reached = median(each[name] for each in rounds)
            found[f"{name} mfu"] = reached / peak if peak else None
        return found

    def without(self, way: Way) -> dict:
        """The fast loop against itself gone on with in another way, round by round."""
        ratios = []
        for _ in range(self.rounds):
            before = self._mfu(self.fast.step, self.batch, self.steps)
            self.fast.change(way)
            ratios.append(self._mfu(self.fast.step, self.batch, self.steps) / before)
            self.fast.change(self.way)
        return {"ratio to the fast loop": median(ratios), "rounds": ratios}

    def without_compiled(self, way: Way, batch: int = 0, vocabulary: int = 0) -> dict:
        """The fast loop against another that has to be compiled, round by round."""
        batch = batch or self.batch
        other = self._trainer(way, batch, vocabulary or self.vocabulary)
        self.device.seconds_each(other.step, 2)
        ratios = [
            self._mfu(other.step, batch, self.steps)
            / self._mfu(self.fast.step, self.batch, self.steps)
            for _ in range(self.rounds)
        ]
        return {"ratio to the fast loop": median(ratios), "rounds": ratios}


def _kernels(session: Session, size: str) -> dict:
    """A block's attention, forward and backward, by each kernel that can; the fastest one."""
    device, shape = session.device, session.device.shape(size)
    heads, width = shape["heads"], shape["width"] // shape["heads"]
    places = device.choose(BATCH[size], 2), heads, shape["context"], width
    kind = {"dtype": torch.bfloat16, "device": device.kind, "requires_grad": True}
    q, k, v = (torch.randn(places, **kind) for _ in range(3))

    def run():
        attention(q, k, v, is_causal=True).sum().backward()

    seconds, refused = {}, {}
    for kernel in KERNELS:
        try:
            with device.attention(kernel):
                seconds[kernel] = device.seconds_each(run, device.choose(20, 1), 3)
        except RuntimeError as error:
            refused[kernel] = str(error).partition("\n")[0]
    fastest = min(seconds, key=seconds.get) if seconds else None
    return {"seconds": seconds, "refused": refused, "fastest": fastest}
