"""Programs that pip has put beside this Python, whether its environment is activated or not."""

import os
import shutil
import sys


def find(name: str) -> str | None:
    """The path of a program: beside this Python, else on PATH; None where there is none."""
    return shutil.which(name, path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
