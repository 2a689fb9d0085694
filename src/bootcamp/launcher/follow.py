"""Follow a run in the cell that launched it, until none of its ranks is left."""

import contextlib
import queue
import signal
import threading
from pathlib import Path

from bootcamp.launcher.connection import SUPERVISOR_DIED, connect
from bootcamp.launcher.requests import RunRequest
from bootcamp.launcher.run_errors import Interrupted, from_record
from bootcamp.records import summary
from bootcamp.records.runs import Run
from bootcamp.records.steps import Steps

POLL_SECONDS = 0.1


def follow(request: RunRequest, show, raises: bool) -> Run:
    """Send a request to the supervisor and show the run's progress; its record once it has ended.

    Raises what run_errors makes of a run that did not end well, if `raises`; Interrupted always.
    """
    connection, folder = connect(), Path(request.run)
    try:
        if request.start == "warm":
            connection.wait_until_ready(show.say)
        event = _wait(connection.request(request), folder, show)
    except BaseException as error:  # an interrupt, or a display that fails: no rank may be left
        interrupted = isinstance(error, KeyboardInterrupt)
        with interrupts_wait():
            why = "interrupted" if interrupted else "launcher failed"
            connection.stop(request.run, why)
            _conclude(folder, why, f"{type(error).__name__} in the process that launched")
            with contextlib.suppress(Exception):
                show.end(summary.read(folder))
        if interrupted:
            raise Interrupted(Run(folder)) from None
        raise
    finally:
        connection.forget(request.run)
    if event is SUPERVISOR_DIED:
        _conclude(folder, "start", event["error"]["message"])
    run = Run(folder)
    show.end(run.summary)
    if event["error"] and raises:
        raise from_record(event["error"], run)
    return run


def _conclude(folder: Path, kind: str, message: str) -> None:
    """Write the summary of a run if nobody else has: neither its ranks nor the supervisor."""
    if summary.read(folder)["status"] != "running":
        return
    status = "interrupted" if kind == "interrupted" else "failed"
    error = summary.failure(None, kind, message)
    steps = summary.measures_of(folder)
    with contextlib.suppress(OSError):
        summary.write(folder, status, **steps, error=error)


def _wait(events: queue.SimpleQueue, folder: Path, show) -> dict:
    """Show rows of steps.jsonl as they come until the run's last event."""
    steps = Steps(folder)
    while True:
        try:
            event = events.get(timeout=POLL_SECONDS)
        except queue.Empty:
            event = None
        for row in steps.new():
            show.step(row)
        if event and event["event"] == "waiting":  # it is worth a line that stays, also if quiet
            print(event["message"], flush=True)
        if event and event["event"] == "ended":
            return event


@contextlib.contextmanager
def interrupts_wait():
    """Ending ranks takes a moment; a second impatient interrupt must not leave one behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
