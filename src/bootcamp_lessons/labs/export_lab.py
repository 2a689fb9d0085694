"""Lesson 11's broken exports: four small modules, exported for real, and what is lost each time.

Each function returns a Table: what the module itself does, and what its export does instead.
"""

import contextlib
import io
import logging
import textwrap
import warnings

import torch
from torch import nn

from bootcamp.table import Table


class LongOrShort(nn.Module):
    """(batch, length) float -> (batch,): the sum of a short sample, the mean of a long one."""

    def forward(self, x):
        if x.shape[1] > 4:
            return x.mean(dim=1)
        return x.sum(dim=1)


class ByContent(nn.Module):
    """(batch, length) float -> the same shape: another branch for another content."""

    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x


class KeepsBatch(nn.Module):
    """(batch, width) -> the same: its batch becomes a number of Python on the way."""

    def forward(self, x):
        return x[: int(x.shape[0])]


@contextlib.contextmanager
def _quiet():
    """Without what torch writes about an export beside its error: the graph so far, for one."""
    logging.disable(logging.WARNING)
    output = io.StringIO()
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
            torch.no_grad(),
        ):
            yield
    finally:
        logging.disable(logging.NOTSET)


@_quiet()
def branch_traced_away() -> Table:
    """torch.jit.trace keeps the branch that its example took, and warns; torch.export won't.

    A branch on a shape becomes a condition on shapes in torch.export: the other side is refused.
    """
    module, short, long = LongOrShort().eval(), torch.ones(2, 3), torch.ones(2, 8)
    with warnings.catch_warnings(record=True, action="always") as caught:
        traced = torch.jit.trace(module, (short,))
    warned = [str(w.message) for w in caught if issubclass(w.category, torch.jit.TracerWarning)]
    graph = _exported(ByContent().eval(), short, {})
    rows = [
        _row("torch.jit.trace, a short example", "a long sample", traced, module, long),
        {"export": "its warning", "asked": "", "itself": "", "exported": _short(warned[0])},
        _row("torch.export, branch on content", "any", graph, ByContent(), -long),
    ]
    return Table(rows, "Control flow")


@_quiet()
def batch_fixed() -> Table:
    """Without dynamic shapes the example's batch is part of the graph; a batch of 1 always is."""
    module, one, three = nn.Linear(4, 1).eval(), torch.ones(1, 4), torch.ones(3, 4)
    batch, length = torch.export.Dim("batch", max=1024), torch.export.Dim("length", max=16)
    fixed, free = _exported(module, one, None), _exported(module, three, ({0: batch},))
    keeps, lstm = KeepsBatch().eval(), nn.LSTM(4, 4).eval()
    traced = torch.jit.trace(keeps, (one,), check_trace=False)
    unrolled = _exported(lstm, torch.ones(8, 2, 4), ({0: length},))
    rows = [
        _row("no dynamic_shapes", "batch 3", fixed, module, three),
        _row("Dim, an example of 3", "batch 1", free, module, one),
        _row("torch.jit.trace, int()", "batch 3", traced, keeps, three),
        _row("nn.LSTM, Dim for its length", "length 3", unrolled, lstm, three[:, None]),
    ]
    return Table(rows, "What the example fixes")


@_quiet()
def eval_forgotten() -> Table:
    """A model exported in training mode drops units for ever: no two answers are the same."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), torch.ones(1, 4)
    rows = []
    for mode in ("train", "eval"):
        graph = _exported(getattr(model, mode)(), x, None)
        answers = torch.stack([graph(x) for _ in range(8)])
        difference = (answers - answers[0]).abs().max().item()
        rows.append(
            {"exported in mode": mode, "eight answers to one input are apart by": difference}
        )
    return Table(rows, "Dropout")


def prefix_left() -> Table:
    """Names of a DDP checkpoint in a model without DDP: refused, or with strict=False ignored."""
    torch.manual_seed(0)
    trained, rows = nn.Linear(2, 2), []
    plain = trained.state_dict()
    state = {f"module.{name}": value for name, value in plain.items()}
    for how, names, strict in (
        ("module. left, strict=True", state, True),
        ("module. left, strict=False", state, False),
        ("module. removed, strict=True", plain, True),
    ):
        fresh, happened = nn.Linear(2, 2), "no error"
        try:
            fresh.load_state_dict(names, strict=strict)
        except RuntimeError as error:
            happened = _short(str(error))
        loaded = torch.equal(fresh.weight, trained.weight)
        rows.append({"load_state_dict": how, "it says": happened, "has the parameters": loaded})
    return Table(rows, "The prefix of DDP")


def _exported(module: nn.Module, example: torch.Tensor, dynamic_shapes):
    """The exported program as a function; what torch.export raises is raised when it is called."""
    try:
        return torch.export.export(module, (example,), dynamic_shapes=dynamic_shapes).module()
    except Exception as error:  # torch raises many kinds
        raised = error

    def fails(_):
        raise raised

    return fails


def _row(export: str, asked: str, exported, module: nn.Module, x: torch.Tensor) -> dict:
    row = {"export": export, "asked": asked, "itself": _answer(module, x)}
    return row | {"exported": _answer(exported, x)}


def _answer(function, x: torch.Tensor) -> str:
    try:
        answer = function(x)
    except Exception as error:  # each is shown
        return f"{type(error).__name__}: {_short(str(error))}"
    answer = answer[0] if isinstance(answer, tuple) else answer
    return f"{answer.flatten()[0].item():.4g} of {tuple(answer.shape)}"


def _short(text: str) -> str:
    """Its beginning, in one line."""
    return textwrap.shorten(text, 200, placeholder=" ...")
