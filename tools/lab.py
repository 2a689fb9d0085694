"""python tools/lab.py

Open JupyterLab on the first notebook, or on that of LESSON=04 in the environment: on 127.0.0.1
only, with a token of its own. With PREDICT_FIRST=1 in the environment no notebook launches a run
while a prediction is open.

Where this user may not write into the clone, copies of the notebooks are opened, in ~/bootcamp.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import interrupts
import lessons

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "tools" / "jupyter"


def notebook() -> str:
    """The notebook to open, from the root. Raises LessonError for a LESSON that is not there."""
    lesson = lessons.find(os.environ.get("LESSON") or "00")
    return lesson.notebook.relative_to(ROOT).as_posix()


def command(*more: str, folder: Path = ROOT) -> list[str]:
    """JupyterLab's command line. It makes a random token itself; the root user may run it too.

    folder: the one that it shows.
    """
    options = {
        "--ServerApp.ip": "127.0.0.1",
        "--ServerApp.root_dir": str(folder),
        "--ServerApp.allow_root": "True",
        "--LabApp.default_url": f"/lab/tree/{notebook()}",
    }
    given = {option.split("=")[0] for option in more}
    ours = [f"{name}={value}" for name, value in options.items() if name not in given]
    return [sys.executable, "-m", "jupyterlab", *ours, *more]


def environment() -> dict[str, str]:
    """This process's environment, with the configuration that keeps JupyterLab off the network.

    It would ask whether it may fetch news. The folder is the course's own, since an environment
    that serves many people is read-only. Jupyter, torch and others keep files in the home folder: a
    user who has none that can be written, as in some containers, gets one among temporary files.
    """
    others = os.environ.get("JUPYTER_CONFIG_PATH")
    folders = [str(CONFIG), *([others] if others else [])]
    ours = {"JUPYTER_CONFIG_PATH": os.pathsep.join(folders)}
    if first := os.environ.get("PREDICT_FIRST"):  # kernels have the server's environment
        ours["BOOTCAMP_PREDICT_FIRST"] = first
    if not os.access(os.path.expanduser("~"), os.W_OK, effective_ids=True):
        ours["HOME"] = tempfile.mkdtemp(prefix="bootcamp-home-")
        print(f"Your home folder can't be written: {ours['HOME']} stands in.", file=sys.stderr)
    return {**os.environ, **ours}


def own_copies(own: Path) -> None:
    """Copy the notebooks to a folder of the reader's. A copy that is there stays."""
    (own / "notebooks").mkdir(parents=True, exist_ok=True)
    for notebook in ROOT.glob("notebooks/*.ipynb"):
        copy = own / "notebooks" / notebook.name
        if not copy.exists():
            beside = shutil.copyfile(notebook, copy.with_suffix(".part"))  # the disk may be full
            os.replace(beside, copy)
    (own / "src").mkdir(exist_ok=True)
    snippets = own / "src" / "snippets"  # notebooks have links there
    if not snippets.exists():
        snippets.unlink(missing_ok=True)  # it may lead to where a clone has been
        snippets.symlink_to(ROOT / "src" / "snippets")
    print(f"{ROOT} can't be written: notebooks, runs and scripts go to {own}.", file=sys.stderr)


if __name__ == "__main__":
    interrupts.accept()
    os.environ |= environment()
    os.chdir(ROOT)
    from bootcamp.paths import OWN  # by the home folder that it has now

    try:
        started = command(*sys.argv[1:], folder=OWN)
    except lessons.LessonError as problem:
        sys.exit(str(problem))
    if OWN != ROOT:
        try:
            own_copies(OWN)
        except OSError as problem:
            why = f"The notebooks can't be copied to {OWN}: {problem.strerror}."
            sys.exit(f"{why} Free some space there, or make a clone of your own.")
    os.chdir(OWN)
    os.execve(sys.executable, started, os.environ)
