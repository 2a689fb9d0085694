"""Files that are complete at every moment: written beside their place and renamed."""

import contextlib
import glob
import json
import os
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def read_json(path: Path) -> dict:
    """A file's JSON object; empty where there is none, or only a part of one."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: dict) -> None:
    """Write a JSON file so that no reader sees a part of it."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(json.dumps(content, indent=1) + "\n")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def update_json(path: Path, change: Callable[[dict], None]) -> dict:
    """Change a JSON file that several processes share; returns its new content.

    change: called with the content, {} if there is none yet, while no other process can change the
    file. A lock file beside it, .NAME.lock, is left there. Raises OSError where it can't be
    written, filelock.Timeout if another process holds the lock for a minute.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock"), timeout=60):
        content = read_json(path)
        change(content)
        write_json(path, content)
    return content


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
