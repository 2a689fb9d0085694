"""One training loop, in every way that the parts compare: precision, compile, fused optimizer, ...

The model is the course's GPT, the loop that of src/_train_gpu.py. Floating-point operations are
counted as everywhere in the course (costs/model_shapes.py): attention in full, backward twice the
forward.
"""

import contextlib
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bootcamp.costs.model_shapes import VOCABULARY
from bootcamp.train import memory_usage, models
from bootcamp.train.memory_usage import Activations
from bootcamp.train.models import gpt
from gpu_parts.device import Device

BATCHES = 4  # that are drawn beforehand and come in turn


@dataclass(frozen=True)
class Way:
    """How a step is taken. The default is plain float32.

    waits: reads the loss in every step, so the CPU waits for the GPU. attention: a kernel of
    device.KERNELS, None for torch's choice. pinned: whether batches lie where the GPU reads them
    by itself, and are copied while it computes.
    """

    tf32: bool = False
    autocast: str | None = None
    compiled: bool = False
    fused: bool = False
    checkpointed: bool = False
    waits: bool = False
    attention: str | None = None
    pinned: bool = True

    @property
    def arithmetic(self) -> str:
        """The number format of its matrix products: float32, tf32, bfloat16 or float16."""
        return self.autocast or ("tf32" if self.tf32 else "float32")


def flops_per_sample(shape: dict[str, int], vocabulary: int = VOCABULARY) -> int:
    """Forward and backward of one sample through a GPT of any shape (model_shapes._block_flops)."""
    width, context = shape["width"], shape["context"]
    block = context * (24 * width**2 + 4 * context * width)
    return 3 * (shape["layers"] * block + 2 * width * vocabulary * context)


def course_gpt(shape: dict[str, int], vocabulary: int = VOCABULARY) -> nn.Sequential:
    """The course's GPT in any shape; with another vocabulary head and table are one."""
    torch.manual_seed(0)
    model = nn.Sequential()
    for name, stage in gpt.stages(**shape):
        model.add_module(name, stage())
    if vocabulary != VOCABULARY:
        model.head.scores = nn.Linear(shape["width"], vocabulary, bias=False)
        nn.init.normal_(model.head.scores.weight, std=gpt.initial_std(shape["width"]))
        model.embedding.byte = nn.Embedding(vocabulary, shape["width"])
        model.embedding.byte.weight = model.head.scores.weight
    return model


class Trainer:
    """A model, its optimizer and batches, and `step()`.

    shape, vocabulary: of the course's GPT. batch: samples of a step.
    """

    def __init__(self, device: Device, way: Way, batch: int, shape, vocabulary=VOCABULARY):
        self.device, self.way, self.batch, self.shape = device, way, batch, shape
        self.flops = flops_per_sample(shape, vocabulary)
        with torch.device(device.kind):  # drawn there: on one core it would take seconds
            self.model = course_gpt(shape, vocabulary)
        self.scaler = torch.amp.GradScaler(device.kind, enabled=way.autocast == "float16")
        size = batch, shape["context"] + 1
        self._drawn, self._next = [torch.randint(vocabulary, size) for _ in range(BATCHES)], 0
        self.change(way)
        if way.checkpointed:
            for block in self.model[1:-1]:
                block.forward = _recomputed(block.forward)
        self.forward = device.compile(self._forward) if way.compiled else self._forward
        self.loss: torch.Tensor | float | None = None

    def change(self, way: Way) -> None:
        """Go on in another way that needs no other compiled code: waits, fused or pinned."""
        self.way = way
        own = {"lr": 1e-4, "fused": True} if way.fused else {"lr": 1e-4}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **own)
        self._batches = [self.device.pinned(ids) if way.pinned else ids for ids in self._drawn]

    def _forward(self, ids: torch.Tensor) -> torch.Tensor:
        # in here: torch.compile would take the code of another trainer, its attention included
        with self.device.attention(self.way.attention):
            return models.loss(self.model(ids[:, :-1]), ids[:, 1:])

    def _precision(self):
        if not self.way.autocast:
            return contextlib.nullcontext()
        return torch.autocast(self.device.kind, dtype=getattr(torch, self.way.autocast))

    def step(self) -> None:
        """One step of training on the next batch."""
        ids = self._batches[self._next % BATCHES]
        ids = ids.to(self.device.kind, non_blocking=self.way.pinned)
        self._next += 1
        with self.device.tf32(self.way.tf32):
            self.optimizer.zero_grad()
            with self._precision():
                loss = self.forward(ids)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.loss = loss.item() if self.way.waits else loss.detach()

    def speed(self, steps: int, warm: int = 3) -> dict:
        """Seconds of a step and what follows from them, after `warm` steps."""
        seconds = self.device.seconds_each(self.step, steps, warm)
        achieved = self.flops * self.batch / seconds
        peak = self.device.published_peak(self.way.arithmetic)
        return {
            "batch": self.batch,
            "seconds_per_step": seconds,
            "tokens_per_second": self.batch * self.shape["context"] / seconds,
            "achieved_flops_per_second": achieved,
            "mfu": achieved / peak if peak else None,
            "loss": float(self.loss),
        }

    def memory(self) -> dict:
        """Bytes by kind in one more step; activations are not counted inside of compiled code."""
        self.device.reset_peak()
        counted = None
        if not self.way.compiled:
            watched = Activations(self.model)
            watched.start()
            try:
                self.step()
            finally:
                watched.stop()
            counted = watched.bytes
        else:
            self.step()
        return {
            **memory_usage.ModelMemory(self.model, self.optimizer).count(),
            "activation_bytes": counted,
            "peak_bytes": self.device.peak_bytes(),
        }


def _recomputed(forward):
    return lambda x: checkpoint(forward, x, use_reentrant=False)
