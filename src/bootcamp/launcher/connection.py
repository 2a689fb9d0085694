"""The kernel's end of its supervisor, a process that ends with the kernel."""

import atexit
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time

from bootcamp import machine, quiet
from bootcamp.launcher import supervisor
from bootcamp.launcher.messages import RunRequest
from bootcamp.records import summary

POLL_SECONDS = 0.01
DIED = "the launcher's supervisor process died, and the run with it; launch again"
SUPERVISOR_DIED = {"event": "ended", "error": summary.failure(None, "start", DIED)}


class Connection:
    """Requests out, events in, one queue for each run; see supervisor.py for both.

    An interrupt may come at any moment in the thread that waits. So it waits in calls that hold no
    lock when they are cut short: SimpleQueue.get and sleep, not Queue.get or Event.wait, whose
    inner lock can stay taken.

    command: what starts the supervisor, without this process's id.
    """

    def __init__(self, command: list[str] | None = None):
        command = command or [sys.executable, "-P", supervisor.__file__]
        self.process = subprocess.Popen(
            [*command, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "BOOTCAMP_KERNEL": str(os.getpid())},
            start_new_session=True,  # an interrupt of the cell is the kernel's to pass on
            text=True,
        )
        self.owner = os.getpid()
        self.ready = threading.Event()
        self.gpus: int | None = None
        self._ended = False  # its pipe is closed, which shows before it can be waited for
        self._queues: dict[str, queue.SimpleQueue] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

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
        self._ended = True
        self.ready.set()
        for waiting in list(self._queues.values()):
            waiting.put(SUPERVISOR_DIED)
        self.process.wait()  # it has closed its pipe as it ended

    def wait_until_ready(self, say) -> None:
        """Wait until torch is loaded; `say` tells the reader why, if there is a wait."""
        if not self.ready.is_set():
            say("Loading torch, once for this kernel; later launches start at once.")
        while not self.ready.is_set():
            time.sleep(POLL_SECONDS)

    @property
    def alive(self) -> bool:
        return self.owner == os.getpid() and not self._ended and self.process.poll() is None

    def send(self, do: str, run: str, **more) -> None:
        """Ask for something with a run: "stop" with `why`, or "join" with `host`."""
        with self._lock, contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"do": do, "run": run, **more}) + "\n")
            self.process.stdin.flush()

    def request(self, run: RunRequest) -> queue.SimpleQueue:
        """Ask for a run; its events arrive in the queue that is returned."""
        events = self._queues[run.run] = queue.SimpleQueue()
        self.send("run", run.run, request=run.to_json())
        if not self.alive:
            events.put(SUPERVISOR_DIED)
        return events

    def stop(self, run: str, why: str) -> None:
        """End a run that was asked for, if it was, and wait until the supervisor has ended it."""
        if events := self._queues.get(run):
            self.send("stop", run, why=why)
            with contextlib.suppress(queue.Empty):
                while events.get(timeout=30)["event"] != "ended":
                    pass  # what it said before it heard of this

    def forget(self, run: str) -> None:
        self._queues.pop(run, None)

    def close(self) -> None:
        """End the supervisor and with it every rank; wait until they are gone."""
        if self.owner != os.getpid():
            return
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()


_connection: Connection | None = None
_connection_lock = threading.Lock()


def connect() -> Connection:
    """The kernel's supervisor, started at the first call and again if it has died."""
    global _connection
    with _connection_lock:
        if _connection is None or not _connection.alive:
            _connection = Connection()
            atexit.register(_connection.close)
        return _connection


def current() -> Connection | None:
    """The kernel's supervisor, None if there is none at the moment."""
    return _connection if _connection is not None and _connection.alive else None


def warm_up() -> None:
    """Say how quiet the machine is, then start loading torch for the first launch.

    Returns after a second at most; torch is loaded in the background.
    """
    print(quiet.last() or quiet.measure())
    connect()


def shut_down() -> None:
    """End the supervisor, its fork server and every rank of this kernel."""
    if connection := current():
        connection.close()


def gpu_count() -> int:
    """GPUs that torch sees, counted in a process of its own so that the kernel starts no CUDA."""
    connection = connect()
    connection.wait_until_ready(lambda _: None)
    return connection.gpus if connection.gpus is not None else len(machine.gpu_names())


def default_ranks() -> int:
    """Every GPU if there is more than one, else every core: a lesson about ranks needs two."""
    gpus = gpu_count()
    return gpus if gpus > 1 else len(machine.cores())
