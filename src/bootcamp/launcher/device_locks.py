"""Locks on GPUs and cores: launches wait for each other's GPUs, and avoid each other's cores.

Each device has a lock file in one folder that serves all users of a machine. The supervisor of a
run holds the locks, and the system releases them when that process ends, however it ends.

The folder is `bootcamp-leases` among the system's temporary files. BOOTCAMP_LEASES names another
(where users have temporary folders of their own), or is `off`.
"""

import asyncio
import contextlib
import os
import re
import stat
import tempfile
from pathlib import Path

from filelock import FileLock, Timeout

from bootcamp import machine
from bootcamp.launcher.requests import RunRequest

POLL_SECONDS = 0.1
SETTLE_SECONDS = 0.5  # in which the ranks of a supervisor that was killed end, after its locks


class LeaseError(Exception):
    """The folder of the locks can't be used. Its text says what to do."""


def folder() -> Path | None:
    """The folder of the locks, None where leases are off."""
    given = os.environ.get("BOOTCAMP_LEASES")
    if given == "off":
        return None
    return Path(given) if given else Path(tempfile.gettempdir()) / "bootcamp-leases"


def why_not(path: Path) -> str | None:
    """Why leases can't be kept in this folder, None if they can."""
    try:
        prepare(path)
        lock = _lock(path, "preflight")
        _acquire(lock)
        lock.release()
        return None
    except LeaseError as error:
        return str(error)


def prepare(path: Path) -> None:
    """Make the folder if it is missing. Raises LeaseError if it can't be used.

    Everybody may write into it, and nobody may remove another's files (the sticky bit). A link in
    its place is refused: another user could have put it there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            path.chmod(0o1777)
        mode = path.lstat().st_mode
    except OSError as error:
        raise _unusable(path, error.strerror) from None
    if not stat.S_ISDIR(mode):
        raise _unusable(path, "it is no folder")
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise _unusable(path, "others may remove files in it (its sticky bit is not set)")


def _unusable(what: Path | str, why: str) -> LeaseError:
    return LeaseError(
        f"the folder of the device locks can't be used: {what}: {why}. Let an administrator look "
        "at it, name another folder in BOOTCAMP_LEASES, or say BOOTCAMP_LEASES=off."
    )


def _lock(path: Path, key: str) -> FileLock:
    """The lock of a device: one object in a process, so that it never waits for itself."""
    name = re.sub(r"[^\w-]", "_", key)
    return FileLock(path / f"{name}.lock", timeout=0, mode=0o666, is_singleton=True)


def _acquire(lock: FileLock) -> bool:
    """Whether this process holds the lock now. Raises LeaseError."""
    try:
        lock.acquire()
    except Timeout:
        return False
    except OSError as error:
        raise _unusable(lock.lock_file, error.strerror) from None
    return True


def _acquire_all(locks: list[FileLock]) -> list[FileLock]:
    """Those of the locks that others hold; if there are any, none is acquired."""
    held, busy = [], []
    for lock in locks:
        (held if _acquire(lock) else busy).append(lock)
    for lock in held if busy else ():
        lock.release()
    return busy


class DeviceLocks:
    """The GPUs and cores of one run: waited for before its start, released after its end.

    request: of the run; the ranks find their devices in its environment. stopped: a
    future, done when the run has to end. tell: tells the kernel.
    """

    def __init__(self, request: RunRequest, stopped: asyncio.Future, tell):
        self.request, self.stopped, self.tell = request, stopped, tell
        self.shared = False  # whether another run computed on the same cores at any time
        self._held: list[FileLock] = []
        self._lacking: list[FileLock] = []  # of cores that another run had first
        self._marks: dict[FileLock, int] = {}

    async def take(self) -> None:
        """Wait for GPUs unless the run is stopped; take cores that are free. Raises LeaseError."""
        if wish := self.request.lease:
            await self._wait_for(**wish)
        if (wish := self.request.cores) and not self.stopped.done():
            with contextlib.suppress(LeaseError):
                self._take_cores(**wish)

    async def _wait_for(self, folder: str, devices: list[dict], count: int, variable: str) -> None:
        """Take all at once or none, until that succeeds; tell the reader which are busy."""
        prepare(Path(folder))
        locks = {device["value"]: _lock(Path(folder), device["key"]) for device in devices}
        before = told = ""
        while True:
            chosen, busy = self._choose(locks, count)
            if len(chosen) == count:
                break
            said = ", ".join(device["label"] for device in devices if device["value"] in busy)
            if said == before != told:  # not what is true for a moment, between two runs
                told = said
                wish = "1 device" if count == 1 else f"{count} devices"
                message = f"Waiting for {wish}. Other launches have {said}. "
                message += "Interrupt the cell to stop waiting."
                self.tell({"run": self.request.run, "event": "waiting", "message": message})
            before = said
            if (await asyncio.wait({self.stopped}, timeout=POLL_SECONDS))[0]:
                return
        if told:
            await asyncio.wait({self.stopped}, timeout=SETTLE_SECONDS)
        self._set(variable, ",".join(chosen))

    def _choose(self, locks: dict[str, FileLock], count: int) -> tuple[list[str], list[str]]:
        """The devices that are taken, none if there are too few; and those that others have.

        A device of another run of this kernel is taken last: ranks that stay alive between cells
        and a launch beside them share.
        """
        chosen, busy = [], []
        for value in sorted(locks, key=lambda value: locks[value].is_locked):
            if len(chosen) < count:
                (chosen if _acquire(locks[value]) else busy).append(value)
        taken = [locks[value] for value in chosen]
        if len(chosen) == count:
            self._held += taken
            return chosen, busy
        for lock in taken:
            lock.release()
        return [], busy

    def _take_cores(self, folder: str, each: int) -> None:
        """Take the first cores side by side that no other run has; share where there are none.

        each: how many a rank computes with. On a machine where nothing else runs, the first.
        """
        prepare(Path(folder))
        cores, ranks = machine.cores(), len(self.request.ranks)
        locks = [_lock(Path(folder), f"core-{core}") for core in cores]
        last = max(0, len(cores) // each - ranks)  # more ranks than cores begin at the first
        for place in range(last + 1):
            part = locks[place * each : (place + ranks) * each]
            if not any(lock.is_locked for lock in part) and not _acquire_all(part):
                self._held += part
                self._marks = {lock: _mark(lock) for lock in part}
                if place:
                    self._set("BOOTCAMP_FIRST_CORE", str(place))
                return
        self.shared = True
        self._lacking = locks[: ranks * each]
        self.look_for_sharing()

    def look_for_sharing(self) -> None:
        """Tell the holders of shared cores so, by the time at which their lock files were read.

        A core that its holder has left is taken, so that a later run sees it.
        """
        for lock in [*self._lacking]:
            with contextlib.suppress(LeaseError, OSError):
                if not lock.is_locked and _acquire(lock):
                    self._lacking.remove(lock)
                    self._held.append(lock)
                else:
                    os.utime(lock.lock_file, follow_symlinks=False)
        self.shared |= any(_mark(lock) != mark for lock, mark in self._marks.items())

    def _set(self, variable: str, value: str) -> None:
        """Set a variable in the environment of all ranks, and of the launcher that starts them."""
        for each in (*self.request.agents, *self.request.ranks):
            each.env[variable] = value

    def release(self) -> None:
        """Let others have the devices."""
        self.look_for_sharing()
        for lock in self._held:
            lock.release()
        self._held.clear()


def _mark(lock: FileLock) -> int:
    """When a lock file was last marked as shared."""
    with contextlib.suppress(OSError):
        return os.stat(lock.lock_file, follow_symlinks=False).st_atime_ns
    return 0
