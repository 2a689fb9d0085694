"""Ranks that stay: `live.start(ranks=4)`, then cells that begin with `%%ranks` run on all of them.

    %%ranks             the cell runs on every rank
    %%ranks 0,2         on these two

Each rank is an ipyparallel engine (src/_live_rank.py), warm as the ranks of a launch, with a
process group that lives from cell to cell. The supervisor owns them and ipyparallel's controller,
so they end with the kernel. This side never imports torch, and ipyparallel only in `start`.
"""

import contextlib
import importlib.util
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from bootcamp import files
from bootcamp.launcher import follow
from bootcamp.launcher.live_cell import STUCK_SECONDS, Cell
from bootcamp.launcher.live_set import (
    POLL_SECONDS,
    PREFIX,
    LiveError,
    LiveRanks,
    RankRaised,
    RanksGone,
)

__all__ = ["STUCK_SECONDS", "LiveError", "RankRaised", "RanksGone", "run", "start", "stop"]


def why_not() -> str | None:
    """Why there can't be live ranks on this machine; None if there can."""
    if sys.platform != "linux":
        return "Live ranks need Linux: cells with %%ranks do nothing here."
    if importlib.util.find_spec("ipyparallel") is None:
        return "ipyparallel is not installed: cells with %%ranks do nothing. Run make lab again."
    return None


_live: LiveRanks | None = None


def start(ranks: int | None = None, device: str = "auto") -> None:
    """Start live ranks in the background, and the cell magic `%%ranks`. Returns at once.

    ranks: how many; None is as many as before, at first every GPU, else every core.
    device: "cpu", or "auto": GPUs (NCCL) if there is one for each rank, else CPU ranks (gloo).

    Ranks that are there already stay, unless others are asked for. Where there can't be any, a
    sentence says why, and `%%ranks` does nothing.
    """
    global _live
    if ranks is not None and ranks < 1:
        raise ValueError(f"ranks={ranks}: expected at least one, or None for every device")
    if device not in ("auto", "cpu"):
        raise ValueError(f"device={device!r}: expected 'auto' or 'cpu'")
    _register()
    if why := why_not():
        print(why)
        return
    if _live:
        ranks = ranks or _live.asked_for
        same = ranks in (_live.asked_for, _live.count) and device == _live.device
        if same and not _gone(_live):
            return
        stop()
    _remove_abandoned()
    _live = LiveRanks(ranks, device)


def stop() -> None:
    """End the live ranks, if there are any, and wait until they are gone."""
    if _live:
        _wait_until_ready(_live)
        _live.end("they were stopped")


def run(code: str, ranks: list[int] | None = None, show=print) -> dict[int, str]:
    """Run a cell on live ranks and show what each of them said; {rank: its text}.

    ranks: on which; None is all. show: called with the text of all ranks, in order of rank.

    Raises RankRaised when a rank raised or waited in a collective that the others did not call:
    the ranks and their variables can be used on. Raises RanksGone when a rank has died, and
    KeyboardInterrupt when interrupted, with all ranks back and ready for the next cell.
    """
    if _live is None:
        start()
    if why := why_not():
        show(why)
        return {}
    live = _live
    _wait_until_ready(live, show)
    live.check_alive()
    chosen = _chosen(ranks, live.count)
    cell = None
    try:
        with _interrupts_come_later():
            cell = Cell(live, code, chosen)
        cell.wait()
    except KeyboardInterrupt:
        if cell:
            with follow.interrupts_wait():
                cell.interrupt()
                _show(cell, show)
                cell.repair()
        raise
    with follow.interrupts_wait():
        _show(cell, show)
        anew = cell.repair()
    if failure := cell.failure(anew):
        raise failure
    return {rank: cell.replies[rank]["text"] for rank in chosen}


def _show(cell: Cell, show) -> None:
    if text := cell.text():
        show(text)


def _chosen(ranks: list[int] | None, count: int) -> list[int]:
    if ranks is None:
        return list(range(count))
    if not ranks or not set(ranks) <= set(range(count)):
        given = ", ".join(str(rank) for rank in ranks)
        raise LiveError(f"%%ranks {given}: expected numbers of ranks, from 0 to {count - 1}")
    return sorted(set(ranks))


def _gone(live: LiveRanks) -> bool:
    try:
        live.check_alive()
    except RanksGone:
        return True
    return False


def _wait_until_ready(live: LiveRanks, show=lambda _: None) -> None:
    """Wait until the ranks have met: in sleeps, which an interrupt leaves in good order."""
    if not live.ready.is_set():
        show("The live ranks are starting, once for this kernel.")
    while not live.ready.is_set():
        time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def _interrupts_come_later():
    """Hold an interrupt back until a cell is sent to all of its ranks, or to none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def _remove_abandoned() -> None:
    """Folders of kernels that were killed while their ranks started."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if files.abandoned(path.name.removeprefix(PREFIX).partition("-")[0]):
            shutil.rmtree(path, ignore_errors=True)


def _register() -> None:
    """Give the notebook its %%ranks, if this is one."""
    ipython = sys.modules.get("IPython")
    if shell := ipython.get_ipython() if ipython else None:
        shell.register_magic_function(ranks, "cell", "ranks")


def ranks(line: str, cell: str) -> None:
    """`%%ranks` runs the cell on every live rank, `%%ranks 0,2` on these two."""
    numbers = line.replace(",", " ").split()
    if not all(number.isdigit() for number in numbers):
        raise LiveError(f"%%ranks {line}: expected numbers of ranks, such as %%ranks 0,2")
    run(cell, [int(number) for number in numbers] or None)
