"""A Python that has torch loaded, for programs whose start is not what a test is about.

tools/test.py keeps one server for a run of the suite (bootcamp/launcher/warm_python.py) and names
its `python` in BOOTCAMP_TEST_PYTHON. Without it, as under plain pytest, a new Python starts each
time and spends seconds on imports.
"""

import contextlib
import os
import sys

VARIABLE = "BOOTCAMP_TEST_PYTHON"


def python() -> str:
    """What starts a script by hand."""
    return os.environ.get(VARIABLE, sys.executable)


@contextlib.contextmanager
def workers():
    """In here torchrun is itself and starts warm workers: it takes their Python from PYTHON_EXEC.

    Such a worker is a shim; the process that trains is a fork of the server, in the shim's
    namespaces, and ends with the shim. Not for tests that look for processes left over: the fork
    does not have the run's name in its environment.
    """
    if VARIABLE not in os.environ:
        yield
        return
    os.environ["PYTHON_EXEC"] = python()
    try:
        yield
    finally:
        del os.environ["PYTHON_EXEC"]
