"""python tools/lab.py

Open JupyterLab on the first notebook: on 127.0.0.1 only, with a token of its own. With
PREDICT_FIRST=1 in the environment no notebook launches a run while a prediction is open.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "tools" / "jupyter"
FIRST = "notebooks/00_start_here.ipynb"


def command(*more: str) -> list[str]:
    """JupyterLab's command line. It makes a random token itself; the root user may run it too."""
    options = {
        "--ServerApp.ip": "127.0.0.1",
        "--ServerApp.root_dir": str(ROOT),
        "--ServerApp.allow_root": "True",
        "--LabApp.default_url": f"/lab/tree/{FIRST}",
    }
    given = {option.split("=")[0] for option in more}
    ours = [f"{name}={value}" for name, value in options.items() if name not in given]
    return [sys.executable, "-m", "jupyterlab", *ours, *more]


def environment() -> dict[str, str]:
    """This process's environment, with the configuration that keeps JupyterLab off the network.

    It would ask whether it may fetch news. The folder is the course's own, since an environment
    that serves many people is read-only.
    """
    others = os.environ.get("JUPYTER_CONFIG_PATH")
    folders = [str(CONFIG), *([others] if others else [])]
    ours = {"JUPYTER_CONFIG_PATH": os.pathsep.join(folders)}
    if first := os.environ.get("PREDICT_FIRST"):  # kernels have the server's environment
        ours["BOOTCAMP_PREDICT_FIRST"] = first
    return {**os.environ, **ours}


if __name__ == "__main__":
    os.chdir(ROOT)
    os.execve(sys.executable, command(*sys.argv[1:]), environment())
