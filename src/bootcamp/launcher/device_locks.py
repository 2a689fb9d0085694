"""Locks on GPUs and cores: launches wait for each other's GPUs, and avoid each other's cores.

Each device has a lock file in one folder for all users of a machine: `bootcamp-leases` among the
temporary files, or where BOOTCAMP_LEASES says. The supervisor of a run holds the locks, and the
system releases them when that process ends, however it ends.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import TextIO

from filelock import FileLock, Timeout

from bootcamp import machine
from bootcamp.launcher.run_request import RunRequest

VARIABLE = "CUDA_VISIBLE_DEVICES"
POLL_SECONDS = 0.1
SETTLE_SECONDS = 0.5  # in which the ranks of a supervisor that was killed end, after its locks


class LeaseError(Exception):
    """The folder of the locks can't be used."""

    def __init__(self, folder: Path | str, error: OSError):
        super().__init__(
            "the folder of the device locks can't be used: "
            f"{error.filename or folder}: {error.strerror}. Let an administrator look at it, name "
            "another folder in BOOTCAMP_LEASES, or say BOOTCAMP_LEASES=off."
        )


def choose_folder() -> Path | None:
    """Return the folder of the locks, None where leases are off."""
    given = os.environ.get("BOOTCAMP_LEASES") or Path(tempfile.gettempdir()) / "bootcamp-leases"
    return None if given == "off" else Path(given)


def list_gpus(visible: str | None, count: int) -> dict[str, str]:
    """Return {label: name} of the GPUs that CUDA_VISIBLE_DEVICES leaves, None for all.

    The name is the UUID, else the variable's entry, or the index. count: of those that torch sees.
    """
    found = machine.visible_gpus(visible)
    entries = visible.replace(" ", "").split(",") if visible else list(map(str, range(count)))
    if found and len(found) == min(len(entries), count):
        return {f"GPU {gpu.index}": gpu.uuid for gpu in found}
    return {f"GPU {entry}": entry for entry in entries[:count]}


def why_not(path: Path) -> str | None:
    """Say why leases can't be kept in this folder, None if they can."""
    try:
        (lock,) = _make_locks(path, ["preflight"])
        _try_to_acquire(lock)
        lock.release()
    except OSError as error:
        return str(LeaseError(path, error))
    return None


def _make_locks(path: Path, devices: list[str]) -> list[FileLock]:
    """Return a lock for each device; the folder is made if it is missing. Raises OSError.

    Everybody may write into it, and nobody may remove another's files (the sticky bit). A link in
    its place is refused: another user could have put it there. A process never waits for itself.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir()
        path.chmod(0o1777)
    mode = path.lstat().st_mode
    if not stat.S_ISDIR(mode):
        raise OSError(errno.ENOTDIR, "it is no folder", path)
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise OSError(errno.EPERM, "others may remove its files (the sticky bit is not set)", path)
    files = [re.sub(r"[^\w-]", "_", device) + ".lock" for device in devices]
    return [FileLock(path / file, timeout=0, mode=0o666, is_singleton=True) for file in files]


def _try_to_acquire(lock: FileLock) -> bool:
    """Acquire a lock unless another process holds it; return whether. Raises OSError."""
    try:
        lock.acquire()
    except Timeout:
        return False
    return True


class DeviceLocks:
    """The GPUs and cores of one run: waited for before its start, released after its end.

    A GPU's lock is exclusive; a core's only for a moment, to see whether it is free, then shared.
    """

    def __init__(self, request: RunRequest, tell):
        self.request, self.tell = request, tell
        self.shared = False  # whether another run computed on the same cores at any time
        self._cores: list = []
        self._held = contextlib.ExitStack()

    async def take(self) -> None:
        """Wait for GPUs; take cores that are free. Raises LeaseError."""
        if lease := self.request.lease:
            try:
                await self._take_gpus(**lease)
            except OSError as error:
                raise LeaseError(lease["folder"], error) from None
        if self.request.cores:
            try:
                self._take_cores(**self.request.cores)
            except OSError:  # ranks share cores then, unmarked
                self._cores = []

    async def _take_gpus(self, folder: str, devices: dict[str, str], count: int) -> None:
        """Take all at once or none, until that succeeds; tell the reader which are busy.

        devices: {label: value of VARIABLE}. Runs of one kernel may share: those devices come last.
        """
        labels = dict(zip(_make_locks(Path(folder), list(devices.values())), devices, strict=True))
        before = announced = ""
        while True:
            held, busy = [], []
            for lock in sorted(labels, key=lambda lock: lock.is_locked):
                if len(held) < count:
                    (held if _try_to_acquire(lock) else busy).append(lock)
            if len(held) == count:
                break
            for lock in held:
                lock.release()
            now = ", ".join(label for lock, label in labels.items() if lock in busy)
            if now == before != announced:  # not what is true for a moment, between two runs
                announced = now
                message = f"Waiting for {count} device{'s' * (count > 1)}. Other launches have "
                message += f"{now}. Interrupt the cell to stop waiting."
                self.tell({"run": self.request.run, "event": "waiting", "message": message})
            before = now
            await asyncio.sleep(POLL_SECONDS)
        for lock in held:
            self._held.callback(lock.release)
        if announced:
            await asyncio.sleep(SETTLE_SECONDS)
        self._set(VARIABLE, ",".join(devices[labels[lock]] for lock in held))

    def _take_cores(self, folder: str, each: int) -> None:
        """Take the first free cores side by side, `each` for a rank; else the first, and share."""
        cores, ranks, files = machine.cores(), len(self.request.ranks), []
        locks = _make_locks(Path(folder), [f"core-{core}" for core in cores])
        last = max(0, len(cores) // each - ranks)  # more ranks than cores: 0
        for place in range(last + 1):
            for lock in locks[len(files) : (place + ranks) * each]:
                if _try_to_acquire(lock):  # so there is a file
                    lock.release()
                # NFS locks only files that are open for writing
                files.append(self._held.enter_context(open(lock.lock_file, "r+")))  # noqa: SIM115
            self._cores = files[place * each :]
            if all(_try_to_lock(file, fcntl.LOCK_EX) for file in self._cores):
                break
            for file in self._cores:
                _try_to_lock(file, fcntl.LOCK_UN)
        else:
            place, self.shared, self._cores = 0, True, files[: ranks * each]
        for file in self._cores:
            _try_to_lock(file, fcntl.LOCK_SH)
        if place:
            self._set("BOOTCAMP_FIRST_CORE", str(place))

    def look_for_sharing(self) -> None:
        """Note whether another run computes on the same cores by now."""
        for file in self._cores:
            self.shared |= not _try_to_lock(file, fcntl.LOCK_EX)
            _try_to_lock(file, fcntl.LOCK_SH)

    def _set(self, variable: str, value: str) -> None:
        """Set a variable in the environment of all ranks, and of the launcher that starts them."""
        for each in (*self.request.agents, *self.request.ranks):
            each.env[variable] = value

    def release(self) -> None:
        """Let others have the devices."""
        self.look_for_sharing()
        self._cores.clear()
        self._held.close()


def _try_to_lock(file: TextIO, kind: int) -> bool:
    """Change the lock that this process has on an open file, and return whether it has it now."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
