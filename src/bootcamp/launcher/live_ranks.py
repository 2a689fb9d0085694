"""Ranks that stay: `live.start(ranks=4)`, then cells that begin with `%%ranks` run on all of them.

Each rank is a process on a CPU core (train/live_rank.py), started as the ranks of a launch are, so
it ends with the kernel. Its process group lives from cell to cell. A Unix socket joins it with this
process: orders go out; replies, and where the rank waits, come back.
"""

import contextlib
import importlib.util
import os
import queue
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import defaultdict
from multiprocessing.connection import Connection, wait

from bootcamp import units
from bootcamp.launcher import launch
from bootcamp.launcher.connection import LaunchError, connect, hold_interrupts
from bootcamp.launcher.run_request import RunRequest
from bootcamp.paths import PACKAGE

SCRIPT = PACKAGE / "train" / "live_rank.py"
START_SECONDS = 180
RETURN_SECONDS = 10  # for ranks to come out of a cell that was ended, and to meet again
STUCK_SECONDS = 1.0  # so long all ranks that still run must wait in collectives to be freed
MEETING_SECONDS = 15.0  # the same where all are in the same one, and may only be slow
LOOK_SECONDS = 0.1
PREFIX = "bootcamp-live-"
LONGEST_PLACE = 70  # a Unix socket's path has at most 107 bytes


class LiveError(Exception):
    """A cell that did not run well on its ranks: a sentence, and the ranks' own tracebacks."""

    def _render_traceback_(self) -> list[str]:
        """Show the ranks' story in IPython, not the inside of this file."""
        return [f"{type(self).__name__}: {self}"]


class RankRaised(LiveError):
    """A rank raised in the cell, or waited for others that never came. All can be used on."""


class RanksGone(LiveError):
    """A rank has died or did not come back, and all were ended with it."""


_live: "LiveRanks | None" = None


def why_not() -> str | None:
    """Say why there can't be live ranks on this machine; None if there can."""
    if sys.platform != "linux":
        return "Live ranks need Linux: cells with %%ranks do nothing here."
    if importlib.util.find_spec("IPython") is None:
        return "IPython is not installed: cells with %%ranks do nothing. Run make lab again."
    return None


def start(ranks: int = 4) -> None:
    """Start live ranks in the background, and the cell magic `%%ranks`. Returns at once.

    Ranks of that number stay as they are. Where there can't be any, a sentence says why.
    """
    global _live
    if ranks < 1:
        raise ValueError(f"ranks={ranks}: expected at least one")
    ipython = sys.modules.get("IPython")
    if shell := ipython.get_ipython() if ipython else None:
        shell.register_magic_function(_run_magic, "cell", "ranks")
    if why := why_not():
        print(why)
        return
    if _live and _live.count == ranks:
        with contextlib.suppress(RanksGone):
            _live.check_alive()
            return
    stop()
    _live = LiveRanks(ranks)


def stop() -> None:
    """End the live ranks, if there are any, and wait until they are gone."""
    if _live:
        _live.wait_until_ready(lambda _: None)
        _live.end("they were stopped")


def run(code: str, show=print) -> dict[int, str]:
    """Run a cell on all live ranks; {rank: what it printed, and the values that it showed}.

    show: called with the text of all ranks, in order of rank.

    Raises RankRaised, RanksGone, or KeyboardInterrupt, with all ranks ready for the next cell.
    """
    if _live is None:
        start()
    if why := why_not():
        show(why)
        return {}
    _live.wait_until_ready(show)
    with hold_interrupts() as interrupts:  # a cell is sent to all ranks, and they all come back
        replies, regrouped = _live.run_cell(code, interrupts, show)
    if interrupts:
        raise KeyboardInterrupt
    if any(reply["error"] for reply in replies.values()):
        raise RankRaised(_describe_failure(replies, regrouped))
    return {rank: reply["text"] for rank, reply in replies.items()}


def _run_magic(line: str, cell: str) -> None:
    """Run a cell that begins with %%ranks, on all of them."""
    if line.strip():
        raise ValueError(f"%%ranks {line}: the cell runs on all ranks; say `if rank == ...` in it")
    run(cell)


class LiveRanks:
    """One set of ranks, from its start in the background to its end.

    replies: what functions of live_rank.py returned, by rank. states: where ranks wait, how long.
    """

    def __init__(self, count: int):
        self.count = count
        self.why_gone = ""
        self.pids: dict[int, int] = {}
        self.replies: dict[int, dict | None] = {}
        self.states: dict[int, dict] = {}
        self.supervisor, self.folder = connect(), launch.new_folder("live")
        self._connections: dict[int, Connection] = {}
        self._events = queue.SimpleQueue()  # what the supervisor says of them
        self._meetings = 0
        self._starting = threading.Thread(target=self._start, daemon=True)
        self._starting.start()

    def wait_until_ready(self, show) -> None:
        """Wait until the ranks have met: in sleeps, which an interrupt leaves in good order."""
        if self._starting.is_alive():
            show("The live ranks are starting, once for this kernel.")
        while self._starting.is_alive():
            time.sleep(0.002)

    def _start(self) -> None:
        """Start the ranks, without hang detection since idle ones are no hang; let them meet."""
        short = len(os.fsencode(tempfile.gettempdir())) < LONGEST_PLACE
        place = {"prefix": f"{PREFIX}{os.getpid()}-", "dir": None if short else "/tmp"}
        try:
            with (
                tempfile.TemporaryDirectory(**place, ignore_cleanup_errors=True) as private,
                socket.socket(socket.AF_UNIX) as door,
            ):
                door.bind(f"{private}/door")
                door.listen(self.count)
                door.settimeout(LOOK_SECONDS)
                argv, env = [str(SCRIPT), door.getsockname()], {"IPYTHONDIR": private}
                ranks = launch.make_ranks(self.folder, argv, self.count, "%%ranks", env)
                self._events = self.supervisor.request(RunRequest(str(self.folder), "warm", ranks))
                self._accept_ranks(door)
                self._meet(START_SECONDS)
        except Exception as error:
            self.end(str(error) or type(error).__name__)

    def _accept_ranks(self, door: socket.socket) -> None:
        deadline = time.monotonic() + START_SECONDS
        while len(self._connections) < self.count:
            self._check_in_time(deadline)
            with contextlib.suppress(TimeoutError):
                connection = Connection(door.accept()[0].detach())
                rank, self.pids[rank] = connection.recv()
                self._connections[rank] = connection

    def _check_in_time(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            self.end("a live rank did not answer in time")
        self.check_alive()

    def _order(self, *order) -> None:
        """Have all ranks call a function of live_rank.py."""
        self.replies, self.states = {}, {}
        self._send(*order)

    def _send(self, *order) -> None:
        """Send an order to the ranks that have not replied yet."""
        for rank in self._pending():
            with contextlib.suppress(OSError):  # it has just died: _collect will see it
                self._connections[rank].send(order)

    def _pending(self) -> list[int]:
        return [rank for rank in self._connections if rank not in self.replies]

    def _collect(self) -> None:
        """Take what has arrived, or wait a moment for it. Raises RanksGone if a rank has ended."""
        pending: dict = {self._connections[rank]: rank for rank in self._pending()}
        ready: list = wait(pending, LOOK_SECONDS)
        for connection in ready:
            rank = pending[connection]
            try:
                kind, content = connection.recv()
            except (EOFError, OSError):  # the supervisor says how it ended, unless with code 0
                self.check_alive(RETURN_SECONDS)
                self.end(f"rank {rank} has ended")
                break
            found: dict = self.replies if kind == "reply" else self.states
            found[rank] = content
        self.check_alive()

    def _meet(self, seconds: float = RETURN_SECONDS) -> None:
        """Make a process group, anew if there was one. Raises RanksGone if a rank is too late."""
        self._meetings += 1
        for order in (("leave",), ("join", self._meetings)):  # leaving cuts connections
            self._order(*order)
            deadline = time.monotonic() + seconds
            while self._pending():
                self._collect()
                self._check_in_time(deadline)

    def run_cell(self, code: str, interrupts: list, show) -> tuple[dict[int, dict], bool]:
        """Run a cell, show what the ranks printed; {rank: reply}, and whether they met anew."""
        self.check_alive()
        self._order("run_cell", code)
        was_cut = self._wait_for_cell(interrupts)
        replies, blocks = dict(sorted(self.replies.items())), []
        for rank, reply in replies.items():
            label = f"rank {rank}: "
            if text := reply["text"].rstrip("\n"):
                blocks.append(label + text.replace("\n", "\n" + " " * len(label)))
        if blocks:
            show("\n".join(blocks))
        self.check_alive()
        failed = any(reply["error"] for reply in replies.values())
        parted = was_cut or (failed and len({reply["calls"] for reply in replies.values()}) > 1)
        if parted:
            self._meet()
        return replies, parted

    def _wait_for_cell(self, interrupts: list) -> bool:
        """Wait until every rank has replied; return whether any was brought out of the cell.

        Ranks that wait for others in vain are cut off. After an interrupt all are, and interrupted
        too, each second anew: it may come before a rank has begun the cell.
        """
        was_cut, again, deadline = False, time.monotonic() + STUCK_SECONDS, None
        while pending := self._pending():
            now = time.monotonic()
            if interrupts and deadline is None:
                again, deadline = now, now + RETURN_SECONDS
            if deadline and now > deadline:
                late = f"{units.ranks(pending)} did not end the interrupted cell"
                self.end(f"{late} in {RETURN_SECONDS} s")
                break
            if now >= again and (deadline or self._are_stuck()):
                self._send("cut_connections")
                for rank in pending if deadline else ():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self.pids[rank], signal.SIGINT)
                was_cut, again = True, now + STUCK_SECONDS
            self._collect()
        return was_cut

    def _are_stuck(self) -> bool:
        """Whether all ranks that have not replied have waited in collectives for too long."""
        states = [self.states.get(rank) for rank in self._pending()]
        if not all(states):
            return False
        calls = {(state["in"], state["calls"]) for state in states}
        meet = len(states) == self.count and len(calls) == 1  # in the same call, however slow
        patience = MEETING_SECONDS if meet else STUCK_SECONDS
        return min(state["seconds"] for state in states) > patience

    def check_alive(self, seconds: float = 0) -> None:
        """Raise RanksGone if the ranks have ended, or do so within these seconds."""
        with contextlib.suppress(queue.Empty):
            error = self._events.get(timeout=seconds)["error"]
            self.supervisor.forget(str(self.folder))
            ended = LaunchError(error | {"traceback": ""}) if error else "the ranks have ended"
            self.end(str(ended))
        if self.why_gone:
            gone = f"{self.why_gone}: the live ranks are gone with what they held"
            raise RanksGone(f"{gone}, live.start({self.count}) starts new ones.")

    def end(self, why: str) -> None:
        """End all processes of this set and wait until they are gone."""
        if self.why_gone:
            return
        self.why_gone = why.rstrip(".")
        self.supervisor.stop(str(self.folder), "interrupted")
        self.supervisor.forget(str(self.folder))
        for connection in self._connections.values():
            connection.close()


def _describe_failure(replies: dict[int, dict], regrouped: bool) -> str:
    """Tell the errors of a cell, equal ones once, with one traceback of each."""
    raised, freed = defaultdict(list), defaultdict(list)  # error or collective -> its ranks
    for rank, reply in replies.items():
        if error := reply["error"]:
            (freed[error["lost"]] if error["lost"] else raised[error["message"]]).append(rank)
    parts = [f"{units.ranks(ranks)} raised {message}" for message, ranks in raised.items()]
    if freed:
        where = " and ".join(f"{units.ranks(own)} waited in {name}" for name, own in freed.items())
        away = replies.keys() - {rank for ranks in freed.values() for rank in ranks}
        if len(freed) > 1 or not away:
            where += ". Every rank must call the same collectives in the same order."
        elif raised:
            where += " for what did not come, and had to be freed."
        else:
            where += f", but {units.ranks(away)} did not come."
        parts.append(where)
    if regrouped:
        parts.append("All ranks met in a new process group; their variables are kept.")
    traces = [
        f"{units.ranks(ranks)}:\n{replies[ranks[0]]['error']['traceback']}"
        for ranks in raised.values()
    ]
    return "\n\n".join(["\n".join(parts), *traces])
