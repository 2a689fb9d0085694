"""A served model's folder of versions, gpt/1/model.onnx, gpt/2/model.onnx: Triton's layout.

A version gets its name when all of it is on the disk, so a server never loads half a file. What was
served once never changes and stays there: the way back is to serve its number again.
"""

import os
import shutil
import tempfile
from pathlib import Path

from bootcamp.files import sync_folder

NAME = "model"  # of the file, before its ending


def numbers(folder: Path | str) -> list[int]:
    """List the versions that are there, the oldest first."""
    return sorted(int(path.name) for path in Path(folder).glob("*") if path.name.isdigit())


def file(folder: Path | str, version: int | None = None) -> Path:
    """Find the exported file of a version, by default the newest. Raises FileNotFoundError."""
    there = numbers(folder)
    number = max(there, default=1) if version is None else version
    found = (Path(folder) / str(number)).glob(f"{NAME}.*")
    exported = next((path for path in found if path.suffix != ".py"), None)
    if exported is None:
        raise FileNotFoundError(f"{folder} has no version {number}: it has {there}")
    return exported


def publish(folder: Path | str, exported: Path | str, program: Path | None = None) -> int:
    """Copy an exported file into the folder as its next version; returns the version's number.

    program: what runs it in Triton. Nothing serves the version yet. Raises OSError, such as for a
    full disk; there is no new version then.
    """
    folder, exported = Path(folder), Path(exported)
    number = max(numbers(folder), default=0) + 1
    folder.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{number}.", suffix=".part", dir=folder))
    try:
        # the first dot ends the name: gpt.aoti.pt2 becomes model.aoti.pt2
        _copy(exported, beside / f"{NAME}.{exported.name.split('.', 1)[1]}")
        if program:
            _copy(program, beside / f"{NAME}.py")
        sync_folder(beside)
        beside.rename(folder / str(number))
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    sync_folder(folder)
    return number


def _copy(source: Path, target: Path) -> None:
    with open(source, "rb") as read, open(target, "xb") as written:
        shutil.copyfileobj(read, written)
        written.flush()
        os.fsync(written.fileno())
