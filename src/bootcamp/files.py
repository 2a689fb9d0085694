"""Files and folders that are whole at every moment. Standard library only."""

import contextlib
import glob
import os
from pathlib import Path


def write_whole(path: Path, write) -> None:
    """Write a file so that it is the old one or the new one, whenever this process is killed.

    write: called with a binary file beside `path`, which is synced and renamed when it returns;
    the folder is synced last, so that the new name too survives a power cut.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        if abandoned(left.name.removesuffix(".part").rpartition(".")[2]):
            left.unlink(missing_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk."""
    with contextlib.suppress(OSError):  # some network file systems can't sync a folder
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def abandoned(process_id: str) -> bool:
    """Whether a half-written file is nobody's: its name has the id of a process that is gone."""
    if not process_id.isdigit():
        return False
    try:
        os.kill(int(process_id), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return int(process_id) == os.getpid()
