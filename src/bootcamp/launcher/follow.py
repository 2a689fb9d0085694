"""A run as the cell sees it that launched it: followed to its end, and its error raised."""

import contextlib
import queue
import signal
import threading
from pathlib import Path

from bootcamp.launcher.connection import SUPERVISOR_DIED, connect
from bootcamp.launcher.messages import RunRequest
from bootcamp.paths import shown
from bootcamp.records import summary
from bootcamp.records.runs import Run
from bootcamp.records.steps import Steps

POLL_SECONDS = 0.1


class LaunchError(Exception):
    """A run that did not end well. `run` is its record, `error` what the supervisor saw."""

    def __init__(self, error: dict, run: Run | None = None):
        self.error, self.run = error, run
        parts = [] if error["rank"] is None else [f"rank {error['rank']}"]
        where = " on ".join(parts + ([error["host"]] if error.get("host") else []))
        sentence = f"{where} {error['message']}" if error["kind"] == "killed" else error["message"]
        details = error.get("traceback") or ""
        if details and error["kind"] in ("raised", "hang", "killed"):
            header = f"{where} said:" if where and error["kind"] != "hang" else ""
            sentence = f"{sentence}\n\n{header}\n{details}".replace("\n\n\n", "\n\n")
        super().__init__(sentence.strip())

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the rank's own traceback, not the launcher's frames."""
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
        """What IPython shows: the sentence, not the place where the launcher waited."""
        return [f"KeyboardInterrupt: {self}"]


def refusal(message: str) -> RunRefused:
    """The exception for a run that the launcher does not begin."""
    return RunRefused(summary.failure(None, "refused", message))


def follow(request: RunRequest, show, raises: bool) -> Run:
    """Send a request to the supervisor and show the run's progress; its record once it has ended.

    Raises a LaunchError for a run that did not end well, if `raises`; Interrupted always.
    """
    connection, folder = connect(), Path(request.run)
    try:
        if request.start == "warm":
            connection.wait_until_ready(show.say)
        event = _wait(connection.request(request), folder, show)
    except BaseException as error:  # an interrupt, or a display that fails: no rank may be left
        interrupted = isinstance(error, KeyboardInterrupt)
        with _interrupts_ignored():
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
    run, error = Run(folder), event["error"]
    show.end(run.summary)
    if error and raises:
        if error["kind"] in ("interrupted", "kernel died"):
            raise Interrupted(run)
        kinds = {"hang": RunHung, "raised": RankFailed, "killed": RankFailed}
        raise kinds.get(error["kind"], RunRefused)(error, run)
    return run


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


def _conclude(folder: Path, kind: str, message: str) -> None:
    """Write the summary of a run if nobody else has: neither its ranks nor the supervisor."""
    if summary.read(folder)["status"] != "running":
        return
    status = "interrupted" if kind == "interrupted" else "failed"
    error = summary.failure(None, kind, message)
    steps = summary.measures_of(folder)
    with contextlib.suppress(OSError):
        summary.write(folder, status, **steps, error=error)


@contextlib.contextmanager
def _interrupts_ignored():
    """Ending ranks takes a moment; a second impatient interrupt must not leave one behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
