"""One set of live ranks: its processes, and what can be asked of them (live_ranks.py)."""

import contextlib
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
from bootcamp.launcher.requests import COMMAND, Command, RunRequest
from bootcamp.paths import SRC

SCRIPT = SRC / "_live_rank.py"
START_SECONDS = 180
ATTEMPTS = 5
PORTS = range(20000, 32000, 40)  # below those that the system gives to anybody
RETURN_SECONDS = 10  # for ranks to come out of a cell that was ended, and to meet again
POLL_SECONDS = 0.002
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


def in_rank(what: str, *arguments):
    """Call a function of _live_rank.py: ipyparallel sends this one to the rank that has to."""
    import sys  # it arrives there as code

    return getattr(sys.modules["live_rank"], what)(*arguments)


in_rank.__module__ = "__main__"  # else each rank would import this file to find it


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
        agent = Command([*command, f"--profile-dir={private}"], env)
        self._order(RunRequest(str(folder), COMMAND, agents=[agent]))

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
        self._order(RunRequest(str(self.folder), start, ranks))

    def _order(self, order: RunRequest) -> None:
        """Have the supervisor start something without hang detection: idle ranks are no hang."""
        self._jobs[order.run] = self.connection.request(order)

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
