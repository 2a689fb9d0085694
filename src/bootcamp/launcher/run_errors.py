"""How a run that did not end well is told to the cell that launched it."""

from bootcamp.paths import shown
from bootcamp.records import summary
from bootcamp.records.runs import Run


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


def from_record(error: dict, run: Run) -> BaseException:
    """The exception for a summary's `error`."""
    if error["kind"] in ("interrupted", "kernel died"):
        return Interrupted(run)
    kinds = {"hang": RunHung, "raised": RankFailed, "killed": RankFailed}
    return kinds.get(error["kind"], RunRefused)(error, run)


def refusal(message: str, folder=None) -> RunRefused:
    """The exception for a run that the launcher does not begin; noted in its folder, if any."""
    error = summary.failure(None, "refused", message)
    if folder is None:
        return RunRefused(error)
    summary.write(folder, "failed", steps=0, error=error)
    return RunRefused(error, Run(folder))
