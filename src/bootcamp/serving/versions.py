"""A served model's folder of versions, gpt/1/model.onnx, gpt/2/model.onnx: Triton's layout.

A version gets its name when all of it is on the disk, so a server never loads half a file. It never
changes and stays there, so that it can be served again.
"""

import shutil
import tempfile
from functools import partial
from pathlib import Path

from bootcamp.files import sync_folder, write_whole

NAME = "model"  # of the file, before its ending


def list_versions(folder: Path | str) -> list[int]:
    """List the numbers of a folder's versions, the oldest first."""
    return sorted(int(path.name) for path in Path(folder).glob("*") if path.name.isdigit())


def find_file(folder: Path | str, version: int | None = None) -> Path:
    """Find the exported file of a version, by default the newest. Raises FileNotFoundError."""
    there = list_versions(folder)
    number = max(there, default=1) if version is None else version
    for path in (Path(folder) / str(number)).glob(f"{NAME}.*"):
        if path.suffix != ".py":
            return path
    raise FileNotFoundError(f"{folder} has no version {number}: it has {there}")


def publish(folder: Path | str, exported: Path | str, program: Path | None = None) -> int:
    """Copy an exported file into the folder as its next version, and return the version's number.

    program: the file that runs it in Triton. Nothing serves the version yet. Raises OSError, such
    as for a full disk; there is no new version then.
    """
    folder, exported = Path(folder), Path(exported)
    number = max(list_versions(folder), default=0) + 1
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{number}.", dir=folder) as scratch:
        beside = Path(scratch) / "version"
        # the first dot ends the name: gpt.aoti.pt2 becomes model.aoti.pt2
        _copy(exported, beside / f"{NAME}.{exported.name.split('.', 1)[1]}")
        if program:
            _copy(program, beside / f"{NAME}.py")
        beside.rename(folder / str(number))
    sync_folder(folder)
    return number


def _copy(source: Path, target: Path) -> None:
    with open(source, "rb") as file:
        write_whole(target, partial(shutil.copyfileobj, file))
