"""Ranks that stay: `live.start(ranks=4)`, then cells that begin with `%%ranks` run on all of them.

    %%ranks             the cell runs on every rank
    %%ranks 0,2         on these two

Each rank is an ipyparallel engine (src/_live_rank.py), warm as the ranks of a launch, with a
process group that lives from cell to cell. The supervisor owns them and ipyparallel's controller,
so they end with the kernel. This side never imports torch, and ipyparallel only in `start`.
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

from bootcamp import files
from bootcamp.launcher import connection, follow, run_request
from bootcamp.paths import SRC

SCRIPT = SRC / "_live_rank.py"
START_SECONDS = 180
ATTEMPTS = 5
PORTS = range(20000, 32000, 40)  # below those that the system gives to anybody
RETURN_SECONDS = 10  # for ranks to come out of a cell that was ended, and to meet again
STUCK_SECONDS = 1.0  # so long all ranks that still run must wait in collectives to be freed
MEETING_SECONDS = 15.0  # the same where all are in the same one, and may only be slow
POLL_SECONDS, LOOK_SECONDS = 0.002, 0.1
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
AGAIN = "the live ranks are gone with what they held, and live.start() starts new ones."


class LiveError(Exception):
    """A cell that did not run well on its ranks: a sentence, and the ranks' own tracebacks."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the ranks' story, not the inside of this file."""
        return [f"{type(self).__name__}: {self}"]


class RankRaised(LiveError):
    """A rank raised in the cell, or waited for others that never came. All can be used on."""


class RanksGone(LiveError):
    """A rank has died or did not come back, and all were ended with it."""


def why_not() -> str | None:
    """Why there can't be live ranks on this machine; None if there can."""
    if sys.platform != "linux":
        return "Live ranks need Linux: cells with %%ranks do nothing here."
    if importlib.util.find_spec("ipyparallel") is None:
        return "ipyparallel is not installed: cells with %%ranks do nothing. Run make lab again."
    return None


def in_rank(what: str, *arguments):
    """Call a function of _live_rank.py: ipyparallel sends this one to the rank that shall."""
    return getattr(sys.modules["live_rank"], what)(*arguments)


class LiveRanks:
    """One set of ranks, from its start in the background to its end.

    count: how many; None is every GPU, else every core, as with `launch`.
    device: "cpu", or "auto" for GPUs if there is one for each rank.
    """

    def __init__(self, count: int | None, device: str):
        self.count, self.asked_for, self.device = count, count, device
        self.ready = threading.Event()
        self.why_gone: str | None = None
        self.pids: dict[int, int] = {}
        self.calls: dict[int, int] = {}  # collectives of each rank, as far as it has said
        self._generation = 0
        self._client = None
        self._jobs: dict[str, queue.SimpleQueue] = {}  # run -> the supervisor's events of it
        threading.Thread(target=self._start, daemon=True).start()

    def _start(self) -> None:
        """Start the controller and the ranks, connect with them, let them meet."""
        private = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))  # for this user alone
        try:
            self.connection = connection.connect()
            self.folder = run_request.new_folder("live")
            self._connect(private)
            self._start_ranks(private)
            self._wait_for(lambda: len(self._client.ids) == self.count, "the live ranks")
            self.meet()
        except Exception as error:
            self.end(str(error) or type(error).__name__)
        finally:
            shutil.rmtree(private, ignore_errors=True)  # the key in it: everybody has read it
            self.ready.set()

    def _connect(self, private: Path) -> None:
        """Start ipyparallel's controller and become its client, while torch is being loaded.

        The controller chooses its ports before it takes them. So it may lose one, and end at once:
        then it is started anew.
        """
        import ipyparallel

        for attempt in range(ATTEMPTS):
            self._start_controller(private, attempt)
            file = private / "security" / "ipcontroller-client.json"
            try:
                self._wait_for(
                    lambda file=file: file.exists() and file.read_text().endswith("}"),
                    "the controller",
                )
                told = json.loads(file.read_text())
                while self._client is None:
                    self.check_alive()
                    with contextlib.suppress(TimeoutError):
                        self._client = ipyparallel.Client(connection_info=told, timeout=5)
                return
            except RanksGone:
                if attempt == ATTEMPTS - 1:
                    raise
                self.why_gone = None

    def _start_controller(self, private: Path, attempt: int) -> None:
        folder = self.folder / f"controller-{attempt}"
        (folder / "ranks").mkdir(parents=True)
        shutil.rmtree(private / "security", ignore_errors=True)
        first = random.choice(PORTS)
        command = [sys.executable, "-P", "-m", "ipyparallel.controller", *CONTROLLER]
        command += [f"--ports={first}-{first + PORTS.step - 1}"]
        env = {**os.environ, **run_request.marks(folder), "IPYTHONDIR": str(private)}
        order = {"start": "command", "command": [*command, f"--profile-dir={private}"]}
        self._order(folder, {**order, "ranks": [], "env": env})

    def _start_ranks(self, private: Path) -> None:
        self.connection.wait_until_ready(lambda _: None)
        self.count = self.count or connection.default_ranks()
        enough = (self.connection.gpus or 0) >= self.count and self.device == "auto"
        self.backend = "nccl" if enough else "gloo"
        # waiting ranks then stand where they can be seen, and an abort ends their wait
        environment = {"IPYTHONDIR": private, "TORCH_NCCL_BLOCKING_WAIT": "1"}
        argv = [str(SCRIPT), str(private), self.backend]
        ranks = run_request.rank_requests(self.folder, argv, self.count, "%%ranks", environment)
        start = "warm" if self.connection.warm else "cold"
        self._order(self.folder, {"start": start, "ranks": ranks, "port": 0})

    def _order(self, folder: Path, order: dict) -> None:
        """Have the supervisor start something without hang detection: idle ranks are no hang."""
        order |= {"run": str(folder), "records": False}
        order |= {"hang_seconds": float("inf"), "busy_seconds": float("inf")}
        self._jobs[str(folder)] = self.connection.request(order)

    def _wait_for(self, happened, who: str, seconds: float = START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not happened():
            self.check_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{who} did not answer within {seconds:.0f} s")
            time.sleep(POLL_SECONDS)

    def ask(self, ranks, what: str, *arguments) -> dict:
        """Have ranks call a function; {rank: ipyparallel's AsyncResult}, at once."""
        return {rank: self._client[rank].apply_async(in_rank, what, *arguments) for rank in ranks}

    def meet(self) -> None:
        """Make the process group, anew if there was one. A rank that does not come ends them all.

        All leave the old one before anybody joins the new one: leaving cuts connections.
        """
        self._generation += 1
        seconds = RETURN_SECONDS if self.pids else START_SECONDS
        asked = self.ask(range(self.count), "leave")
        self._wait_for(lambda: all(each.done() for each in asked.values()), "a live rank", seconds)
        asked = self.ask(range(self.count), "join", self._generation)
        self._wait_for(lambda: all(each.done() for each in asked.values()), "a live rank", seconds)
        for rank, each in asked.items():
            self.pids[rank], self.calls[rank] = each.get()

    def check_alive(self) -> None:
        """Raise RanksGone if a process of them has ended, or if they were ended before."""
        for run, events in list(self._jobs.items()):
            with contextlib.suppress(queue.Empty):
                sentence = _sentence_of(events.get_nowait())
                del self._jobs[run]
                self.end(sentence)
        if self.why_gone:
            raise RanksGone(f"{self.why_gone}: {AGAIN}")

    def end(self, why: str) -> None:
        """End all processes of this set and wait until they are gone; `why` is said ever after."""
        self.why_gone = self.why_gone or why.rstrip(".")
        for run in list(self._jobs):
            del self._jobs[run]
            with contextlib.suppress(ValueError):  # this kernel ends just now, and the pipe is shut
                self.connection.stop(run, "interrupted")
            self.connection.forget(run)
        if self._client is not None:
            self._client.close()

    def state(self, rank: int) -> dict:
        """In which collective a rank waits, as it last said: {"in": name, "seconds": how long}."""
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
    if error["kind"] == "killed" and error["rank"] is not None:
        return f"rank {error['rank']} {error['message']}"
    return error["message"]


class Cell:
    """One cell on some ranks: what they were asked, what they have answered, how it ended."""

    def __init__(self, live: LiveRanks, code: str, ranks: list[int]):
        self.live, self.ranks = live, ranks
        self.replies: dict[int, dict] = {}
        self.waited_in: dict[int, str] = {}  # collectives that ranks had to be freed from
        self.began = self._looked = time.monotonic()
        self.pending = live.ask(ranks, "run_cell", code)

    def wait(self) -> None:
        """Until every rank has answered; free those that wait for ranks that do not come."""
        while self.pending:
            self.collect()
            self.live.check_alive()
            now = time.monotonic()
            if self.pending and now - max(self.began + STUCK_SECONDS, self._looked) > LOOK_SECONDS:
                self._looked = now
                self._free_if_stuck()
            time.sleep(POLL_SECONDS)

    def collect(self) -> None:
        """Take the answers that have arrived."""
        for rank in [rank for rank, asked in self.pending.items() if asked.done()]:
            asked = self.pending.pop(rank)
            try:
                self.replies[rank] = asked.get()
            except Exception as error:  # an interrupt between the cell's end and the answer
                self.replies[rank] = {"text": "", "calls": None, "error": _error(error)}
            self.live.calls[rank] = self.replies[rank]["calls"]

    def _free_if_stuck(self) -> None:
        states = {rank: self.live.state(rank) for rank in self.pending}
        where = {(state.get("in"), state.get("calls")) for state in states.values()}
        meet = len(states) == self.live.count and len(where) == 1  # in the same call, however slow
        patience = MEETING_SECONDS if meet else STUCK_SECONDS
        if all(state.get("seconds", 0) > patience for state in states.values()):
            self.waited_in |= {rank: state["in"] for rank, state in states.items()}
            self.live.cut(self.pending)

    def interrupt(self) -> None:
        """Bring every rank out of the cell, out of a collective too."""
        self.waited_in |= dict.fromkeys(self.pending, "the interrupted cell")
        deadline = time.monotonic() + RETURN_SECONDS
        while self.pending and not self.live.why_gone:
            if time.monotonic() > deadline:
                who = _ranks(self.pending)
                self.live.end(f"{who} did not end the interrupted cell in {RETURN_SECONDS} s")
            self.live.cut(self.pending)
            self.live.interrupt(self.pending)
            again = time.monotonic() + 1
            while self.pending and time.monotonic() < again:
                self.collect()
                time.sleep(POLL_SECONDS)

    def mend(self) -> bool:
        """Make the process group anew if the ranks may have lost each other in it; if it did."""
        failed = any(reply["error"] for reply in self.replies.values())
        apart = failed and len(set(self.live.calls.values())) > 1
        if (self.waited_in or apart) and not self.live.why_gone:
            try:
                self.live.meet()
            except TimeoutError as error:
                self.live.end(str(error))
        self.live.check_alive()
        return bool(self.waited_in or apart)

    def text(self) -> str:
        """What the ranks printed and showed, in order of rank."""
        blocks = {rank: self.replies[rank]["text"].rstrip("\n") for rank in sorted(self.replies)}
        return "\n".join(_labelled(rank, text) for rank, text in blocks.items() if text)

    def failure(self, anew: bool) -> RankRaised | None:
        """The error of a cell that a rank did not end well in; None if all did."""
        errors = {r: reply["error"] for r, reply in self.replies.items() if reply["error"]}
        freed = {r: errors[r]["lost"] for r in sorted(errors) if errors[r]["lost"]}
        raised: dict[tuple, list[int]] = {}
        for rank in sorted(set(errors) - set(freed)):
            raised.setdefault((errors[rank]["name"], errors[rank]["message"]), []).append(rank)
        if not errors:
            return None
        parts = [f"{_ranks(who)} raised {name}: {said}" for (name, said), who in raised.items()]
        parts += [self._who_waited(freed, bool(raised))] if freed else []
        parts += ["All ranks met in a new process group; their variables are kept."] if anew else []
        traces = [f"{_ranks(who)}:\n{errors[who[0]]['traceback']}" for who in raised.values()]
        return RankRaised("\n\n".join(["\n".join(parts), *traces]))

    def _who_waited(self, freed: dict[int, str], somebody_raised: bool) -> str:
        calls = {name: [rank for rank in freed if freed[rank] == name] for name in freed.values()}
        where = " and ".join(f"{_ranks(who)} waited in {name}" for name, who in calls.items())
        away = set(range(self.live.count)) - set(freed)
        if len(calls) > 1 or not away:
            return f"{where}. Every rank must call the same collectives in the same order."
        if somebody_raised:
            return f"{where} for what did not come, and had to be freed."
        return f"{where}, but {_ranks(away)} did not come."


def _error(error: BaseException) -> dict:
    name, message = getattr(error, "ename", type(error).__name__), str(error)
    return {"name": name, "message": message, "traceback": message, "lost": None}


def _ranks(ranks) -> str:
    """[0, 2, 3] -> "ranks 0, 2 and 3"."""
    numbers = [str(rank) for rank in sorted(ranks)]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


def _labelled(rank: int, text: str) -> str:
    """The text of a rank after its number, with further lines set in as far."""
    label = f"rank {rank}: "
    return label + text.replace("\n", "\n" + " " * len(label))


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
                cell.mend()
        raise
    with follow.interrupts_wait():
        _show(cell, show)
        anew = cell.mend()
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
