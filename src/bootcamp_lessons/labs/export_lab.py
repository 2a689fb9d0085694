"""Show how exporting small modules fails (lesson 11). Each function returns a Table."""

import contextlib
import io
import logging
import textwrap
import warnings

import torch
from torch import nn

from bootcamp.table import Table


class LengthBranch(nn.Module):
    """Map (batch, length) to (batch,): the sum of a short sample, the mean of a long one."""

    def forward(self, x):
        if x.shape[1] > 4:
            return x.mean(dim=1)
        return x.sum(dim=1)


class ContentBranch(nn.Module):
    """Map (batch, length) to the same shape: the input, negated unless its sum is positive."""

    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x


class BatchSlice(nn.Module):
    """Return x unchanged, (batch, width); the batch size becomes a Python int on the way."""

    def forward(self, x):
        return x[: int(x.shape[0])]


@contextlib.contextmanager
def _hide_messages():
    """Hide messages and warnings of torch about an export, and switch gradients off."""
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


@_hide_messages()
def trace_one_branch() -> Table:
    """Trace a branch, and export one on data: jit.trace keeps one side, torch.export refuses."""
    module, short, long = LengthBranch().eval(), torch.ones(2, 3), torch.ones(2, 8)
    with warnings.catch_warnings(record=True, action="always") as caught:
        traced = torch.jit.trace(module, (short,))
    warned = [str(w.message) for w in caught if issubclass(w.category, torch.jit.TracerWarning)]
    graph = _export(ContentBranch().eval(), short, {})
    rows = [
        _make_row("torch.jit.trace, a short example", "a long sample", traced, module, long),
        {"export": "its warning", "asked": "", "itself": "", "exported": _shorten(warned[0])},
        _make_row("torch.export, branch on content", "any", graph, ContentBranch(), -long),
    ]
    return Table(rows, "Control flow")


@_hide_messages()
def freeze_sizes() -> Table:
    """Show which sizes of the example input become constants in an exported or traced graph."""
    module, one, three = nn.Linear(4, 1).eval(), torch.ones(1, 4), torch.ones(3, 4)
    batch, length = torch.export.Dim("batch", max=1024), torch.export.Dim("length", max=16)
    fixed, free = _export(module, one, None), _export(module, three, ({0: batch},))
    keeps, lstm = BatchSlice().eval(), nn.LSTM(4, 4).eval()
    traced = torch.jit.trace(keeps, (one,), check_trace=False)
    unrolled = _export(lstm, torch.ones(8, 2, 4), ({0: length},))
    rows = [
        _make_row("no dynamic_shapes", "batch 3", fixed, module, three),
        _make_row("Dim, an example of 3", "batch 1", free, module, one),
        _make_row("torch.jit.trace, int()", "batch 3", traced, keeps, three),
        _make_row("nn.LSTM, Dim for its length", "length 3", unrolled, lstm, three[:, None]),
    ]
    return Table(rows, "What the example fixes")


@_hide_messages()
def forget_eval() -> Table:
    """Export in training mode: dropout stays on, so equal inputs get different answers."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), torch.ones(1, 4)
    rows = []
    for mode in ("train", "eval"):
        graph = _export(getattr(model, mode)(), x, None)
        answers = torch.stack([graph(x) for _ in range(8)])
        difference = (answers - answers[0]).abs().max().item()
        row = {"exported in mode": mode}
        rows.append(row | {"eight answers to one input are apart by": difference})
    return Table(rows, "Dropout")


def keep_ddp_prefix() -> Table:
    """Load a DDP checkpoint without DDP: its names are refused, or ignored with strict=False."""
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
            happened = _shorten(str(error))
        loaded = torch.equal(fresh.weight, trained.weight)
        rows.append({"load_state_dict": how, "it says": happened, "has the parameters": loaded})
    return Table(rows, "The prefix of DDP")


def _export(module: nn.Module, example: torch.Tensor, dynamic_shapes):
    """Return the exported program, or a function that raises what torch.export raised."""
    try:
        return torch.export.export(module, (example,), dynamic_shapes=dynamic_shapes).module()
    except Exception as error:  # torch raises many kinds
        raised = error

    def fails(_):
        raise raised

    return fails


def _make_row(export: str, asked: str, exported, module: nn.Module, x: torch.Tensor) -> dict:
    row = {"export": export, "asked": asked, "itself": _answer(module, x)}
    return row | {"exported": _answer(exported, x)}


def _answer(function, x: torch.Tensor) -> str:
    try:
        answer = function(x)
    except Exception as error:  # each is shown
        return f"{type(error).__name__}: {_shorten(str(error))}"
    answer = answer[0] if isinstance(answer, tuple) else answer
    return f"{answer.flatten()[0].item():.4g} of {tuple(answer.shape)}"


def _shorten(text: str) -> str:
    return textwrap.shorten(text, 200, placeholder=" ...")
