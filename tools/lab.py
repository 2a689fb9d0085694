"""python tools/lab.py

Open JupyterLab on the first notebook: on 127.0.0.1 only, with a token of its own.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIRST = "notebooks/00_start_here.ipynb"


def command(*more: str) -> list[str]:
    """JupyterLab's command line. It makes a random token itself; the root user may run it too."""
    options = ["--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={ROOT}"]
    options += ["--ServerApp.allow_root=True", f"--LabApp.default_url=/lab/tree/{FIRST}"]
    return [sys.executable, "-m", "jupyterlab", *options, *more]


if __name__ == "__main__":
    os.chdir(ROOT)
    os.execv(sys.executable, command(*sys.argv[1:]))
