"""Ranks that stay: `live.start(ranks=4)`, then cells that begin with `%%ranks` run on all of them.

Each rank is an ipyparallel engine on a CPU core (src/_live_rank.py), warm as the ranks of a launch,
with a process group that lives from cell to cell. The supervisor owns them and ipyparallel's
controller, so they end with the kernel. This side never imports torch, and ipyparallel only in
`start`.
"""

import contextlib
import importlib.util
import json
import os
import queue
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from bootcamp.launcher import connection, run_request
from bootcamp.launcher.messages import COMMAND, Command, RunRequest
from bootcamp.paths import SRC

SCRIPT = SRC / "_live_rank.py"
START_SECONDS = 180
RETURN_SECONDS = 10  # for ranks to come out of a cell that was ended, and to meet again
STUCK_SECONDS = 1.0  # so long all ranks that still run must wait in collectives to be freed
MEETING_SECONDS = 15.0  # the same where all are in the same one, and may only be slow
LOOK_SECONDS, POLL_SECONDS = 0.1, 0.002
PORTS = range(20000, 32000, 40)  # below those that the system gives to anybody
CONTROLLER = [
    "--ip=127.0.0.1",
    "--IPController.location=127.0.0.1",
    "--IPController.use_threads=True",
    "--IPController.broadcast_scheduler_depth=0",
    "--IPController.db_class=NoDB",
    "--HeartMonitor.period=500",  # an engine is known after its first beat
    "--HeartMonitor.max_heartmonitor_misses=1000000",  # the supervisor says which ones are dead
]
PREFIX = "bootcamp-live-"


class LiveError(Exception):
    """A cell that did not run well on its ranks: a sentence, and the ranks' own tracebacks."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the ranks' story, not the inside of this file."""
        return [f"{type(self).__name__}: {self}"]


class RankRaised(LiveError):
    """A rank raised in the cell, or waited for others that never came. All can be used on."""


class RanksGone(LiveError):
    """A rank has died or did not come back, and all were ended with it."""


_live: "LiveRanks | None" = None


def why_not() -> str | None:
    """Why there can't be live ranks on this machine; None if there can."""
    if sys.platform != "linux":
        return "Live ranks need Linux: cells with %%ranks do nothing here."
    if importlib.util.find_spec("ipyparallel") is None:
        return "ipyparallel is not installed: cells with %%ranks do nothing. Run make lab again."
    return None


def start(ranks: int = 4) -> None:
    """Start live ranks in the background, and the cell magic `%%ranks`. Returns at once.

    Ranks that are there already stay, unless another number is asked for. Where there can't be any,
    a sentence says why, and `%%ranks` does nothing.
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
    if _live:
        with contextlib.suppress(RanksGone):
            _live.check_alive()
            if _live.count == ranks:
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

    Raises RankRaised when a rank raised or waited in a collective that the others did not call:
    the ranks and their variables can be used on. Raises RanksGone when a rank has died, and
    KeyboardInterrupt when interrupted, with all ranks back and ready for the next cell.
    """
    if _live is None:
        start()
    if why := why_not():
        show(why)
        return {}
    _live.wait_until_ready(show)
    _live.check_alive()
    with _interrupts_noted() as interrupts:
        cell = Cell(_live, code)
        cell.wait(interrupts)
        if interrupts:
            cell.interrupt()
        if text := cell.text():
            show(text)
        anew = cell.repair()
    if interrupts:
        raise KeyboardInterrupt
    if failure := cell.failure(anew):
        raise failure
    return {rank: cell.replies[rank]["text"] for rank in sorted(cell.replies)}


def _run_magic(line: str, cell: str) -> None:
    """Run a cell that begins with %%ranks, on all of them."""
    if line.strip():
        raise ValueError(f"%%ranks {line}: the cell runs on all ranks; say `if rank == ...` in it")
    run(cell)


@contextlib.contextmanager
def _interrupts_noted():
    """Interrupts become entries of a list: a cell is sent to all ranks, and they all come back."""
    came = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = signal.signal(signal.SIGINT, lambda *_: came.append(True))
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)


class Cell:
    """One cell on the live ranks: sent, awaited, freed where ranks wait for others that don't come.

    replies: of each rank, what run_cell of _live_rank.py returned.
    """

    def __init__(self, live: "LiveRanks", code: str):
        self.live, self.replies = live, {}
        self._was_cut = False
        self.pending = live.ask("run_cell", code)

    def wait(self, interrupts: list) -> None:
        """Until every rank has answered, or an interrupt."""
        look = time.monotonic() + STUCK_SECONDS
        while self.pending and not interrupts:
            self._collect()
            self.live.check_alive()
            if self.pending and time.monotonic() > look:
                look = time.monotonic() + LOOK_SECONDS
                self._free_if_stuck()
            time.sleep(POLL_SECONDS)

    def _collect(self) -> None:
        """Take the answers that have arrived."""
        for rank in [rank for rank, asked in self.pending.items() if asked.done()]:
            try:
                self.replies[rank] = self.pending.pop(rank).get()
            except Exception as error:  # an interrupt between the cell's end and the answer
                name, message = getattr(error, "ename", type(error).__name__), str(error)
                error = {"name": name, "message": message, "traceback": message, "lost": None}
                self.replies[rank] = {"text": "", "calls": None, "error": error}

    def _free_if_stuck(self) -> None:
        states = [self.live.state(rank) for rank in self.pending]
        calls = {(state.get("in"), state.get("calls")) for state in states}
        meet = len(states) == self.live.count and len(calls) == 1  # in the same call, however slow
        patience = MEETING_SECONDS if meet else STUCK_SECONDS
        if all(state.get("seconds", 0) > patience for state in states):
            self._cut()

    def _cut(self) -> None:
        self._was_cut = True
        self.live.cut(self.pending)

    def interrupt(self) -> None:
        """Bring every rank out of the cell, out of a collective too."""
        deadline = time.monotonic() + RETURN_SECONDS
        while self.pending and not self.live.why_gone:
            if time.monotonic() > deadline:
                ranks = _ranks(self.pending)
                self.live.end(f"{ranks} did not end the interrupted cell in {RETURN_SECONDS} s")
            self._cut()
            self.live.interrupt(self.pending)
            again = time.monotonic() + 1
            while self.pending and time.monotonic() < again:
                self._collect()
                time.sleep(POLL_SECONDS)

    def repair(self) -> bool:
        """Make the process group anew if the ranks may have lost each other in it; if it did."""
        replies = self.replies.values()
        failed = any(reply["error"] for reply in replies)
        parted = self._was_cut or failed and len({reply["calls"] for reply in replies}) > 1
        if parted and not self.live.why_gone:
            try:
                self.live.meet()
            except TimeoutError as error:
                self.live.end(str(error))
        self.live.check_alive()
        return parted

    def text(self) -> str:
        """What the ranks printed and showed, each after its number."""
        blocks = []
        for rank, reply in sorted(self.replies.items()):
            label = f"rank {rank}: "
            if text := reply["text"].rstrip("\n"):
                blocks.append(label + text.replace("\n", "\n" + " " * len(label)))
        return "\n".join(blocks)

    def failure(self, anew: bool) -> RankRaised | None:
        """The error of a cell that a rank did not end well in; None if all did."""
        errors = {r: reply["error"] for r, reply in self.replies.items() if reply["error"]}
        freed = {r: errors[r]["lost"] for r in sorted(errors) if errors[r]["lost"]}
        raised: dict[tuple, list[int]] = {}
        for rank in sorted(set(errors) - set(freed)):
            raised.setdefault((errors[rank]["name"], errors[rank]["message"]), []).append(rank)
        if not errors:
            return None
        parts = [f"{_ranks(those)} raised {name}: {said}" for (name, said), those in raised.items()]
        parts += [self._why_freed(freed, bool(raised))] if freed else []
        parts += ["All ranks met in a new process group; their variables are kept."] if anew else []
        traces = [f"{_ranks(ranks)}:\n{errors[ranks[0]]['traceback']}" for ranks in raised.values()]
        return RankRaised("\n\n".join(["\n".join(parts), *traces]))

    def _why_freed(self, freed: dict[int, str], some_raised: bool) -> str:
        """freed: the collective in which each of these ranks waited."""
        calls = {name: [rank for rank in freed if freed[rank] == name] for name in freed.values()}
        where = " and ".join(f"{_ranks(ranks)} waited in {name}" for name, ranks in calls.items())
        away = set(range(self.live.count)) - set(freed)
        if len(calls) > 1 or not away:
            return f"{where}. Every rank must call the same collectives in the same order."
        if some_raised:
            return f"{where} for what did not come, and had to be freed."
        return f"{where}, but {_ranks(away)} did not come."


def _ranks(ranks) -> str:
    """[0, 2, 3] -> "ranks 0, 2 and 3"."""
    *first, last = [str(rank) for rank in sorted(ranks)]
    return f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"


def in_rank(what: str, *arguments):
    """Call a function of _live_rank.py: ipyparallel sends this one to the rank, as code."""
    import sys

    return getattr(sys.modules["live_rank"], what)(*arguments)


in_rank.__module__ = "__main__"  # else each rank would import this file to find it


class LiveRanks:
    """One set of ranks, from its start in the background to its end.

    ready: set once they have met, or could not. why_gone: None as long as they live.
    """

    def __init__(self, count: int):
        self.count = count
        self.ready = threading.Event()
        self.why_gone: str | None = None
        self.pids: dict[int, int] = {}
        self._meetings = 0
        self._client = None
        self._jobs: dict[str, queue.SimpleQueue] = {}  # run -> the supervisor's events of it
        threading.Thread(target=self._start, daemon=True).start()

    def wait_until_ready(self, show) -> None:
        """Wait until the ranks have met: in sleeps, which an interrupt leaves in good order."""
        if not self.ready.is_set():
            show("The live ranks are starting, once for this kernel.")
        while not self.ready.is_set():
            time.sleep(POLL_SECONDS)

    def _start(self) -> None:
        """Start the controller and the ranks, connect with them, let them meet."""
        private = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))  # for this user alone
        try:
            self.connection = connection.connect()
            self.folder = run_request.new_folder("live")
            self._start_controller(private)
            self._start_ranks(private)
            self._wait_for(lambda: len(self._client.ids) == self.count, "the live ranks")
            self.meet()
        except Exception as error:
            self.end(str(error) or type(error).__name__)
        finally:
            shutil.rmtree(private, ignore_errors=True)  # the key in it: everybody has read it
            self.ready.set()

    def _start_controller(self, private: Path) -> None:
        """Start ipyparallel's controller and become its client, while torch is being loaded."""
        import ipyparallel

        folder = self.folder / "controller"
        (folder / "ranks").mkdir(parents=True)
        first = random.choice(PORTS)
        command = [sys.executable, "-P", "-m", "ipyparallel.controller", *CONTROLLER]
        command += [f"--ports={first}-{first + PORTS.step - 1}", f"--profile-dir={private}"]
        env = {**os.environ, **run_request.marks(folder), "IPYTHONDIR": str(private)}
        self._order(RunRequest(str(folder), COMMAND, agents=[Command(command, env)]))
        file = private / "security" / "ipcontroller-client.json"
        self._wait_for(lambda: file.exists() and file.read_text().endswith("}"), "the controller")
        while self._client is None:
            self.check_alive()
            with contextlib.suppress(TimeoutError):
                self._client = ipyparallel.Client(
                    connection_info=json.loads(file.read_text()), timeout=5
                )

    def _start_ranks(self, private: Path) -> None:
        self.connection.wait_until_ready(lambda _: None)
        argv, env = [str(SCRIPT), str(private)], {"IPYTHONDIR": private}
        ranks = run_request.rank_requests(self.folder, argv, self.count, "%%ranks", env)
        self._order(RunRequest(str(self.folder), "warm", ranks))

    def _order(self, order: RunRequest) -> None:
        """Have the supervisor start something without hang detection: idle ranks are no hang."""
        self._jobs[order.run] = self.connection.request(order)

    def _wait_for(self, happened, what: str, seconds: float = START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not happened():
            self.check_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not answer within {seconds:.0f} s")
            time.sleep(POLL_SECONDS)

    def ask(self, what: str, *arguments) -> dict:
        """Have all ranks call a function; {rank: ipyparallel's AsyncResult}, at once."""
        ranks = range(self.count)
        return {rank: self._client[rank].apply_async(in_rank, what, *arguments) for rank in ranks}

    def meet(self) -> None:
        """Make the process group, anew if there was one. A rank that does not come ends them all.

        All leave the old one before anybody joins the new one: leaving cuts connections.
        """
        self._meetings += 1
        seconds = RETURN_SECONDS if self.pids else START_SECONDS
        for what in (("leave",), ("join", self._meetings)):
            asked = self.ask(*what)
            self._wait_for(lambda: all(a.done() for a in asked.values()), "a live rank", seconds)  # noqa: B023
        self.pids = {rank: each.get() for rank, each in asked.items()}

    def check_alive(self) -> None:
        """Raise RanksGone if a process of them has ended, or if they were ended before."""
        for run, events in list(self._jobs.items()):
            with contextlib.suppress(queue.Empty):
                sentence = _sentence_of(events.get_nowait())
                del self._jobs[run]
                self.end(sentence)
        if self.why_gone:
            again = f"live.start({self.count}) starts new ones."
            raise RanksGone(
                f"{self.why_gone}: the live ranks are gone with what they held, {again}"
            )

    def end(self, why: str) -> None:
        """End all processes of this set and wait until they are gone."""
        self.why_gone = self.why_gone or why.rstrip(".")
        for run in list(self._jobs):
            del self._jobs[run]
            with contextlib.suppress(ValueError):  # this kernel ends just now, and the pipe is shut
                self.connection.stop(run, "interrupted")
            self.connection.forget(run)
        if self._client is not None:
            self._client.close()

    def state(self, rank: int) -> dict:
        """In which collective a rank waits: {"in": name, "calls": so many, "seconds": how long}."""
        try:
            return json.loads((self.folder / "ranks" / f"{rank}.state").read_text())
        except (OSError, ValueError):
            return {}

    def cut(self, ranks) -> None:
        """Free ranks from the collectives that they are in, by cutting their connections."""
        for rank in ranks:
            with contextlib.suppress(OSError):  # it has just died: check_alive will say so
                pipe = os.open(self.folder / "ranks" / f"{rank}.cut", os.O_WRONLY | os.O_NONBLOCK)
                os.write(pipe, b"x")
                os.close(pipe)

    def interrupt(self, ranks) -> None:
        """Send SIGINT to ranks: Python code of a cell ends with KeyboardInterrupt."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], signal.SIGINT)


def _sentence_of(event: dict) -> str:
    """Why a process that should live has ended, from the supervisor's last event of it."""
    error = event["error"] or {"rank": None, "kind": "", "message": "a process of them has ended"}
    killed = error["kind"] == "killed" and error["rank"] is not None
    return f"rank {error['rank']} {error['message']}" if killed else error["message"]
