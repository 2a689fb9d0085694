"""Reading and writing files that other processes see whole or not at all."""

import contextlib
import glob
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock


def read_json(path: Path) -> dict:
    """Read a file's JSON object; empty without the file, or with only a part of one."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: dict) -> None:
    """Write a JSON file so that no reader sees a part of it."""
    with replacing(path) as beside:
        beside.write_text(json.dumps(content, indent=1) + "\n")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a file beside `path`, which takes its place if the block ends well."""
    beside = path.with_name(f".{path.name}.{threading.get_ident()}.{os.getpid()}.part")
    try:
        yield beside
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def update_json(path: Path, change: Callable[[dict], None]) -> dict:
    """Change a JSON file that several processes share, and return its new content.

    change: called with the content, at first {}, while no other process can change the file. A lock
    file, .NAME.lock, stays beside it. Raises OSError where it can't be written, filelock.Timeout if
    another process holds the lock for a minute.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock"), timeout=60):
        content = read_json(path)
        change(content)
        write_json(path, content)
    return content


def write_whole(path: Path, write) -> None:
    """Write a file so that a kill or a power cut leaves the old one or the new one.

    write: called with a binary file beside `path`, which is synced and renamed when it returns.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        if is_abandoned(left.name.removesuffix(".part").rpartition(".")[2]):
            left.unlink(missing_ok=True)
    with replacing(path) as beside, open(beside, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Write the names in a folder to the disk."""
    with contextlib.suppress(OSError):  # some network file systems can't sync a folder
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def is_abandoned(process_id: str) -> bool:
    """Whether a half-written file, with this process id in its name, has no writer any more."""
    import psutil  # which most ranks don't need

    alive = not process_id.isdecimal() or psutil.pid_exists(int(process_id))
    return not alive or int(process_id) == os.getpid()
