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
from bootcamp.launcher.messages import RunRequest

VARIABLE = "CUDA_VISIBLE_DEVICES"
POLL_SECONDS = 0.1
SETTLE_SECONDS = 0.5  # in which the ranks of a supervisor that was killed end, after its locks


class LeaseError(Exception):
    """The folder of the locks can't be used."""

    def __init__(self, what: Path | str, why: str):
        super().__init__(
            f"the folder of the device locks can't be used: {what}: {why}. Let an administrator "
            "look at it, name another folder in BOOTCAMP_LEASES, or say BOOTCAMP_LEASES=off."
        )


def folder() -> Path | None:
    """The folder of the locks, None where leases are off."""
    given = os.environ.get("BOOTCAMP_LEASES")
    if given == "off":
        return None
    return Path(given) if given else Path(tempfile.gettempdir()) / "bootcamp-leases"


def why_not(path: Path) -> str | None:
    """Why leases can't be kept in this folder, None if they can."""
    try:
        (lock,) = _locks(path, ["preflight"])
        _acquire(lock)
        lock.release()
        return None
    except LeaseError as error:
        return str(error)


def _locks(path: Path, names: list[str]) -> list[FileLock]:
    """The locks of these devices; the folder is made if it is missing. Raises LeaseError.

    Everybody may write into it, and nobody may remove another's files (the sticky bit). A link in
    its place is refused: another user could have put it there. A process has one object for each
    lock, so that it never waits for itself.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            path.chmod(0o1777)
        mode = path.lstat().st_mode
    except OSError as error:
        raise LeaseError(path, error.strerror) from None
    if not stat.S_ISDIR(mode):
        raise LeaseError(path, "it is no folder")
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise LeaseError(path, "others may remove files in it (its sticky bit is not set)")
    files = [re.sub(r"[^\w-]", "_", name) + ".lock" for name in names]
    return [FileLock(path / file, timeout=0, mode=0o666, is_singleton=True) for file in files]


def _acquire(lock: FileLock) -> bool:
    """Whether this process holds the lock now. Raises LeaseError."""
    try:
        lock.acquire()
    except Timeout:
        return False
    except OSError as error:
        raise LeaseError(lock.lock_file, error.strerror) from None
    return True


def _acquire_some(locks: list[FileLock], count: int) -> tuple[list[FileLock], list[FileLock]]:
    """(the first so many locks that are free, none if there are fewer; those that others hold)."""
    held, busy = [], []
    for lock in locks:
        if len(held) < count:
            (held if _acquire(lock) else busy).append(lock)
    if len(held) < count:
        for lock in held:
            lock.release()
        held = []
    return held, busy


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
        if self.request.lease:
            await self._take_gpus(**self.request.lease)
        if self.request.cores and not self.stopped.done():
            with contextlib.suppress(LeaseError):
                self._take_cores(**self.request.cores)

    async def _take_gpus(self, folder: str, devices: dict[str, str], count: int) -> None:
        """Take all at once or none, until that succeeds; tell the reader which are busy.

        devices: {label: value of VARIABLE}. A device of another run of this kernel is taken last:
        ranks that stay alive between cells and a launch beside them share.
        """
        labels = dict(zip(_locks(Path(folder), list(devices.values())), devices, strict=True))
        before = told = ""
        while True:
            held, busy = _acquire_some(sorted(labels, key=lambda lock: lock.is_locked), count)
            if held or not count:
                break
            now = ", ".join(label for lock, label in labels.items() if lock in busy)
            if now == before != told:  # not what is true for a moment, between two runs
                told = now
                wish = "1 device" if count == 1 else f"{count} devices"
                message = f"Waiting for {wish}. Other launches have {now}. "
                message += "Interrupt the cell to stop waiting."
                self.tell({"run": self.request.run, "event": "waiting", "message": message})
            before = now
            if (await asyncio.wait({self.stopped}, timeout=POLL_SECONDS))[0]:
                return
        self._held += held
        if told:
            await asyncio.wait({self.stopped}, timeout=SETTLE_SECONDS)
        self._set(VARIABLE, ",".join(devices[labels[lock]] for lock in held))

    def _take_cores(self, folder: str, each: int) -> None:
        """Take the first cores side by side that no other run has; share where there are none.

        each: how many a rank computes with. On a machine where nothing else runs, the first.
        """
        cores, ranks = machine.cores(), len(self.request.ranks)
        locks = _locks(Path(folder), [f"core-{core}" for core in cores])
        last = max(0, len(cores) // each - ranks)  # more ranks than cores begin at the first
        for place in range(last + 1):
            part = locks[place * each : (place + ranks) * each]
            if not any(lock.is_locked for lock in part) and _acquire_some(part, len(part))[0]:
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
