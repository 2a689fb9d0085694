"""A Python that has torch loaded, for programs whose start is not what a test is about.

tools/test.py keeps one server for a run of the suite (bootcamp/launcher/forkserver.py) and names
its `python` in BOOTCAMP_TEST_PYTHON. Without it, as under plain pytest, a new Python starts each
time and spends seconds on imports.
"""

import json
import os
import sys
from pathlib import Path
from unittest import mock

VARIABLE = "BOOTCAMP_TEST_PYTHON"


def python() -> str:
    """What starts a script by hand."""
    return os.environ.get(VARIABLE, sys.executable)


def supervisor() -> list[str]:
    """What starts a launcher's supervisor warm, without the kernel's process id."""
    file = Path(__file__).with_name("warm_supervisor.py")
    return [sys.executable, "-IS", str(file), str(Path(python()).parent)]


def workers():
    """In here torchrun is itself and starts warm workers: it takes their Python from PYTHON_EXEC.
    So does horovodrun, as the launcher calls it.

    Such a worker is a shim; the process that trains is a fork of the server, in the shim's
    namespaces, and ends with the shim. Not for tests that look for processes left over: the fork
    does not have the run's name in its environment.
    """
    warm = {"PYTHON_EXEC": python()} if VARIABLE in os.environ else {}
    return mock.patch.dict(os.environ, warm)


def kernels(folder):
    """In here a notebook's kernel is warm_kernel.py: warm under tools/test.py, as its launcher is.

    folder: a folder of this worker's, for the description of the kernel that Jupyter reads.
    """
    described = folder / "kernels" / "python3" / "kernel.json"
    described.parent.mkdir(parents=True, exist_ok=True)
    command = [python(), str(Path(__file__).with_name("warm_kernel.py")), "-f"]
    about = {"argv": [*command, "{connection_file}"], "display_name": "", "language": "python"}
    described.write_text(json.dumps(about))
    return mock.patch.dict(os.environ, JUPYTER_PATH=str(folder))
