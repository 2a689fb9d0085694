"""How a rank's process ends: an exception reaches the summary, and nothing hangs at the exit."""

import atexit
import contextlib
import os
import sys
import traceback
from pathlib import Path

import torch

from bootcamp.records import summary
from bootcamp.train import environment


def report_exceptions(run_dir: Path) -> None:
    """Write an exception that ends this script into the run's summary; the first failure stays."""
    show = sys.excepthook

    def report(kind, error, trace):
        with contextlib.suppress(OSError):
            show(kind, error, trace)  # on a full disk even this can fail
        if summary.read(run_dir)["status"] not in ("running", "ok"):
            return
        summary.write(
            run_dir,
            status_of(error),
            **summary.measures_of(run_dir),
            error={
                "rank": environment.rank(),
                "message": f"{kind.__name__}: {error}",
                "traceback": "".join(traceback.format_exception(kind, error, trace)),
            },
        )

    sys.excepthook = report


def status_of(error: BaseException) -> str:
    """The status of a run that this exception ended: failed, oom or interrupted."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    out_of_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return "oom" if out_of_memory or "DefaultCPUAllocator" in str(error) else "failed"


def leave_without_freeing() -> None:
    """Leave by os._exit when the script ends: freeing a process group can hang (see the appendix).

    atexit functions don't get the exit code, so sys.exit notes it.
    """
    codes, plain = [0], sys.exit

    def noting_exit(code=None):
        codes.append(code if isinstance(code, int) else int(code is not None))
        plain(code)

    def leave():
        sys.stdout.flush()
        sys.stderr.flush()
        failed = getattr(sys, "last_value", None) is not None
        os._exit(1 if failed else codes[-1])

    sys.exit = noting_exit
    atexit.register(leave)
