"""Talk with the kernel's supervisor: ask for a run, follow it, raise its error."""

import atexit
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

from bootcamp import machine, quietness
from bootcamp.launcher import supervisor
from bootcamp.launcher.run_request import RunRequest
from bootcamp.paths import shown
from bootcamp.records import summary
from bootcamp.records.runs import Run
from bootcamp.records.steps import Steps

POLL_SECONDS = 0.01
EVENT_SECONDS = 0.1
DIED = "the launcher's supervisor process died, and the run with it; launch again"
SUPERVISOR_DIED = {"event": "ended", "error": summary.failure(None, "start", DIED)}


class LaunchError(Exception):
    """A run that did not end well. `run` is its record, `error` what the supervisor saw."""

    def __init__(self, error: dict, run: Run | None = None):
        self.error, self.run = error, run
        rank = None if error["rank"] is None else f"rank {error['rank']}"
        where = " on ".join(filter(None, [rank, error.get("host")]))
        sentence = f"{where} {error['message']}" if error["kind"] == "killed" else error["message"]
        if details := error["traceback"]:
            header = f"{where} said:\n" if where and error["kind"] != "hang" else ""
            sentence += f"\n\n{header}{details}"
        super().__init__(sentence.strip())

    def _render_traceback_(self) -> list[str]:
        """Show the rank's own traceback in IPython, not the launcher's frames."""
        folder = f"\nThe record is in {shown(self.run.folder)}." if self.run else ""
        hint = "\nWhat it may mean: from bootcamp import errors; errors.explain()"
        return [f"{type(self).__name__}: {self}{folder}{hint}"]


class RunRefused(LaunchError):
    """The script refused its flags, or the launcher the request: one sentence says why."""


class RankFailed(LaunchError):
    """A rank raised, or was killed. The others were ended."""


class RunHung(LaunchError):
    """No rank finished a step for `hang_seconds`. Every rank's stack is in the message."""


class Interrupted(KeyboardInterrupt):
    """The reader stopped the cell, and its run has ended. `run` is its record, None before it."""

    def __init__(self, run: Run | None = None):
        self.run = run
        ended = f"its ranks have ended, and the record is in {shown(run.folder)}" if run else ""
        super().__init__(f"the run was interrupted: {ended or 'it had not begun'}.")

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


def refusal(message: str) -> RunRefused:
    """Make the exception for a run that the launcher does not begin."""
    return RunRefused(summary.failure(None, "refused", message))


class Connection:
    """The kernel's end of its supervisor: requests out, events in, one queue for each run.

    It waits in SimpleQueue.get and sleep: an interrupt can leave the inner lock of Queue.get taken.
    """

    command = (sys.executable, "-P", supervisor.__file__)  # and this process's id

    def __init__(self):
        command, env = [*self.command, str(os.getpid())], {"BOOTCAMP_KERNEL": str(os.getpid())}
        how: dict = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": os.environ | env}
        # an interrupt of the cell is the kernel's to pass on
        self.process = subprocess.Popen(command, text=True, start_new_session=True, **how)
        self.ready = threading.Event()
        self.gpus: int | None = None
        self._queues: dict[str, queue.SimpleQueue] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()
        atexit.register(self.close)

    def _listen(self) -> None:
        for line in self.process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # printed by something that Python loads at its start
            if "ready" in event:
                self.gpus = event["gpus"]
                self.ready.set()
            elif waiting := self._queues.get(event["run"]):
                waiting.put(event)
        self.process.wait()  # it has closed its pipe as it ended: from here on it is not alive
        self.ready.set()
        for waiting in list(self._queues.values()):
            waiting.put(SUPERVISOR_DIED)

    def wait_until_ready(self, quiet: bool = True) -> None:
        """Wait until torch is loaded; print so if there is a wait, unless quiet."""
        if not (quiet or self.ready.is_set()):
            print("Loading torch, once for this kernel; later launches start at once.", flush=True)
        while not self.ready.is_set():
            time.sleep(POLL_SECONDS)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def send(self, do: str, run: str, **more) -> None:
        """Send a line about a run: "run", "stop" with `why`, or "join" with `host`."""
        # a broken pipe, or one that is shut as the kernel ends: the supervisor ends its runs then
        with self._lock, contextlib.suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(json.dumps({"do": do, "run": run, **more}) + "\n")
            self.process.stdin.flush()

    def request(self, run: RunRequest) -> queue.SimpleQueue:
        """Ask for a run; return the queue in which its events arrive."""
        events = self._queues[run.run] = queue.SimpleQueue()
        self.send("run", run.run, request=asdict(run))
        if not self.alive:
            events.put(SUPERVISOR_DIED)
        return events

    def stop(self, run: str, why: str) -> None:
        """End a run if it was asked for, and wait until the supervisor has ended it."""
        if events := self._queues.get(run):
            self.send("stop", run, why=why)
            with contextlib.suppress(queue.Empty):
                while events.get(timeout=30)["event"] != "ended":
                    pass  # what it said before it heard of this

    def forget(self, run: str) -> None:
        self._queues.pop(run, None)

    def close(self) -> None:
        """End the supervisor and with it every rank; wait until they are gone."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()


_connection: Connection | None = None
_connection_lock = threading.Lock()


def connect() -> Connection:
    """Return the kernel's supervisor; start it at the first call and again if it has died."""
    global _connection
    with _connection_lock:
        if _connection is None or not _connection.alive:
            _connection = Connection()
        return _connection


def warm_up() -> None:
    """Say how quiet the machine is, within a second, and load torch in the background."""
    print(quietness.read_last() or quietness.measure())
    connect()


def shut_down() -> None:
    """End the supervisor, its fork server and every rank of this kernel."""
    if _connection:
        _connection.close()


def gpu_count() -> int:
    """Count the GPUs that torch sees, in the fork server: the kernel starts no CUDA."""
    connection = connect()
    connection.wait_until_ready()
    return connection.gpus if connection.gpus is not None else len(machine.gpu_names())


def default_ranks() -> int:
    """Count the GPUs if there is more than one, else the cores: a lesson on ranks needs two."""
    gpus = gpu_count()
    return gpus if gpus > 1 else len(machine.cores())


def follow(request: RunRequest, show, raises: bool) -> Run:
    """Send a request, show its progress, return its record. Raises LaunchError, Interrupted."""
    connection, folder = connect(), Path(request.run)
    try:
        error = _wait(connection.request(request), folder, show)
    except BaseException as raised:  # an interrupt, or a display that fails: no rank may be left
        interrupted = isinstance(raised, KeyboardInterrupt)
        with hold_interrupts():  # a second impatient one must not leave a rank behind
            why = "interrupted" if interrupted else "launcher failed"
            connection.stop(request.run, why)
            what = f"{type(raised).__name__} in the process that launched"
            _conclude(folder, summary.failure(None, why, what))
            with contextlib.suppress(Exception):
                show.end(summary.read(folder))
        if interrupted:
            raise Interrupted(Run(folder)) from None
        raise
    finally:
        connection.forget(request.run)
    if error:
        _conclude(folder, error)
    run = Run(folder)
    show.end(run.summary)
    if error and raises:
        if error["kind"] in ("interrupted", "kernel died"):
            raise Interrupted(run)
        kinds = {"hang": RunHung, "raised": RankFailed, "killed": RankFailed}
        raise kinds.get(error["kind"], RunRefused)(error, run)
    return run


def _wait(events: queue.SimpleQueue, folder: Path, show) -> dict | None:
    """Show rows of steps.jsonl as they come until the run ends; return what went wrong."""
    steps = Steps(folder)
    while True:
        event = {"event": None}
        with contextlib.suppress(queue.Empty):
            event = events.get(timeout=EVENT_SECONDS)
        for row in steps.read_new():
            show.step(row)
        if event["event"] == "waiting":  # it is worth a line that stays, also if quiet
            print(event["message"], flush=True)
        elif event["event"] == "ended":
            return event["error"]


def _conclude(folder: Path, error: dict) -> None:
    """Write the summary of a run if neither its ranks nor the supervisor have."""
    if summary.read(folder)["status"] == "running":
        status = "interrupted" if error["kind"] == "interrupted" else "failed"
        summary.write(folder, status, error=error)


@contextlib.contextmanager
def hold_interrupts():
    """Collect interrupts of the main thread in a list instead of raising them."""
    held = []
    if threading.current_thread() is not threading.main_thread():
        yield held
        return
    before = signal.signal(signal.SIGINT, lambda *_: held.append(True))
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, before)
