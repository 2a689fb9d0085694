"""python tools/lab.py

Open JupyterLab on the first notebook: on 127.0.0.1 only, with a token of its own.
"""

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
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


def ask_for_no_news() -> None:
    """Keep JupyterLab from asking whether it may fetch news from the network."""
    path = Path(sys.prefix) / "etc" / "jupyter" / "labconfig" / "page_config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    config = json.loads(path.read_text()) if path.exists() else {}
    disabled = config.setdefault("disabledExtensions", {})
    disabled["@jupyterlab/apputils-extension:announcements"] = True
    path.write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    ask_for_no_news()
    os.chdir(ROOT)
    os.execv(sys.executable, command(*sys.argv[1:]))
