"""The family of training scripts: who is whose parent, and who runs in one process."""

from dataclasses import dataclass
from pathlib import Path

from bootcamp.paths import SRC


@dataclass(frozen=True)
class Script:
    """One training script of the course.

    parent: the script that it differs from by a few lines, None for the baseline.
    most_lines: how many code lines that difference may be (a test measures it).
    one_process: whether it is started by python rather than torchrun.
    """

    name: str
    parent: str | None
    most_lines: int
    one_process: bool = False

    @property
    def path(self) -> Path:
        return SRC / f"_train_{self.name}.py"


SCRIPTS = {
    script.name: script
    for script in (
        Script("cpu", parent=None, most_lines=0, one_process=True),
        Script("gpu", parent="cpu", most_lines=5, one_process=True),
        Script("ddp", parent="gpu", most_lines=15),
        Script("ddp_by_hand", parent="gpu", most_lines=15),
    )
}


def find(script: str | Path) -> Path:
    """The file behind a script's name ("ddp") or path. Raises FileNotFoundError, naming both."""
    if str(script) in SCRIPTS:
        return SCRIPTS[str(script)].path
    path = Path(script)
    if path.suffix == ".py" and path.exists():
        return path.resolve()
    known = ", ".join(SCRIPTS)
    raise FileNotFoundError(
        f"there is no script {str(script)!r}: give one of {known}, or the path of a .py file"
    )
