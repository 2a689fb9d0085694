"""End a rank's process: refused flags, exceptions in the run's summary, no hang at the exit."""

import atexit
import contextlib
import os
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

import torch

from bootcamp.records import summary
from bootcamp.train import environment


class ConfigError(Exception):
    """A flag that cannot be met. Its text says what was given, what was expected, what to do."""


def refuse(why: str) -> NoReturn:
    """End with exit code 2; rank 0 prints why: what was given, what was expected, what to do."""
    if environment.rank() == 0:
        sys.stderr.write(f"{Path(sys.argv[0]).name}: {why}\n")
    else:
        time.sleep(5)  # torchrun ends every rank at the first exit: let rank 0 be the first
    sys.stderr.flush()
    sys.exit(2)


def report_exceptions(run_dir: Path) -> None:
    """Write an exception that ends this script into the run's summary; the first failure stays."""
    show = sys.excepthook

    def report(kind, error, trace):
        with contextlib.suppress(OSError):
            show(kind, error, trace)  # on a full disk even this can fail
        if summary.read(run_dir)["status"] in ("running", "ok"):
            text = "".join(traceback.format_exception(error))
            message = f"{kind.__name__}: {error}"
            failure = summary.failure(environment.rank(), "raised", message, text)
            summary.write(run_dir, classify_exception(error), error=failure)

    sys.excepthook = report


def classify_exception(error: BaseException) -> str:
    """Return the status of a run that this exception ended: failed, oom or interrupted."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    out_of_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return "oom" if out_of_memory or "DefaultCPUAllocator" in str(error) else "failed"


def leave_without_freeing() -> None:
    """Leave by os._exit with the exit code: freeing a process group can hang (see the appendix)."""
    codes, plain_exit = [0], sys.exit  # wrapped: atexit functions don't get the exit code

    def exit_keeping_code(code=None):
        codes.append(code if isinstance(code, int) else int(code is not None))
        plain_exit(code)

    def leave():
        sys.stdout.flush()
        sys.stderr.flush()
        failed = getattr(sys, "last_value", None) is not None
        os._exit(1 if failed else codes[-1])

    sys.exit = exit_keeping_code
    atexit.register(leave)
