"""Devices leased by file locks, so that the runs of several people queue instead of colliding.

One folder for all users of a machine has a lock file for each device and for each place in the
queue. Whoever has flock(2) on a device's file has the device. The system takes the lock back when
the process that has it ends, however it ends, so a file that is left blocks nobody. What is written
in a file only says who has it, and which processes must be gone before the next run may have it.

Whoever decides has the lock `order` for that moment. A run takes all its devices or none, and none
that an earlier one waits for: so they come in order, and nobody holds a part and waits for the
rest. The process that has the locks is the supervisor (supervisor.py), which ends its ranks first.

The folder is `bootcamp-leases` among the system's temporary files. BOOTCAMP_LEASES names another
(where users have temporary folders of their own), or says `off`. Standard library only.
"""

import contextlib
import fcntl
import itertools
import json
import os
import pwd
import re
import stat
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from bootcamp.launcher import process_tree

CORE_ASKS = 20  # how often to look for free cores before sharing some
POLL_SECONDS = 0.1
LONGEST_TEXT = 1 << 16
PATIENT_ASKS = 50  # how often another may be deciding before the reader hears of it


class LeaseError(Exception):
    """The folder of the locks can't be used, or a wish can't be met. Its text says what to do."""


def folder() -> Path | None:
    """The folder of the locks, None where leases are off."""
    given = os.environ.get("BOOTCAMP_LEASES")
    if given == "off":
        return None
    return Path(given) if given else Path(tempfile.gettempdir()) / "bootcamp-leases"


def why_not(path: Path) -> str | None:
    """Why leases can't be kept in this folder, None if they can."""
    try:
        with _in_order(path):
            return None
    except LeaseError as error:
        return str(error)


# Which devices there are. Each is a dictionary, for it travels as JSON: `key`, its name in the
# folder; `label`, its name for people; `value`, its name in the ranks' environment.


def fake_devices(count: int) -> list[dict]:
    """Devices that are nothing but their locks: CPU ranks lease them in tests and drills."""
    return [_device(f"fake-{k}", f"fake device {k}", f"fake-{k}") for k in range(count)]


def gpus(visible: str | None, count: int) -> list[dict]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, None for all. count: how many torch sees of them.

    They are named by UUID, which means the same GPU to every process, whatever is visible to it.
    Where nvidia-smi does not tell it, the name is the entry of the variable, or the index.
    """
    uuids = _uuids()
    entries = [str(k) for k in range(len(uuids) or count)]
    if visible is not None:
        entries = [entry.strip() for entry in visible.split(",")]
    found = [_gpu(entry, uuids) for entry in entries]
    found = list(itertools.takewhile(bool, found))  # as CUDA does: the first unknown ends the list
    if found and len(found) == min(len(entries), count):
        return found
    return [_device(f"gpu-{entry}", f"GPU {entry}", entry) for entry in entries[:count]]


def _gpu(entry: str, uuids: tuple[str, ...]) -> dict | None:
    for index, uuid in enumerate(uuids):
        if entry == str(index) or (entry.startswith("GPU-") and uuid.startswith(entry)):
            return _device(uuid, f"GPU {index}", uuid)
    return None


def _device(key: str, label: str, value: str) -> dict:
    return {"key": key, "label": label, "value": value}


@cache
def _uuids() -> tuple[str, ...]:
    """The UUIDs of this machine's GPUs in the order of nvidia-smi; empty without it."""
    query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in answer.stdout.splitlines() if line.startswith("GPU-"))


# Lock files


def _open_folder(path: Path) -> int:
    """The folder as an open file, made if it is missing. Raises LeaseError.

    Everybody may write into it, and nobody may remove another's files (the sticky bit). A link in
    its place is refused: another user could have put it there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _for_everybody(), contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o1777)
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise _useless(path, error.strerror) from None
    mode = os.fstat(handle).st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        os.close(handle)
        raise _useless(path, "others may remove files in it (its sticky bit is not set)")
    return handle


def _useless(what: Path | str, why: str) -> LeaseError:
    return LeaseError(
        f"the folder of the device locks can't be used: {what}: {why}. Let an administrator look "
        "at it, name another folder in BOOTCAMP_LEASES, or say BOOTCAMP_LEASES=off."
    )


@contextlib.contextmanager
def _for_everybody():
    """What is made here may be written by all users from its first moment on."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def _open(place: int, name: str) -> int:
    """A lock file, made if it is missing. Raises LeaseError for what is no plain file.

    Opened without O_CREAT first: Linux may refuse that flag for another user's file in a folder
    that all may write to (fs.protected_regular).
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        handle = os.open(name, flags, dir_fd=place)
    except FileNotFoundError:
        with _for_everybody():
            try:
                handle = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=place)
            except FileExistsError:
                return _open(place, name)
            except OSError as error:
                raise _useless(name, error.strerror) from None
    except OSError as error:
        raise _useless(name, error.strerror) from None
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
        os.close(handle)
        raise _useless(name, "it is no plain file of its own")
    return handle


def _lock(place: int, name: str) -> int | None:
    """The file, locked, until it is closed; None if another has it. Does not wait.

    The handle is not inherited by programs that this process starts (PEP 446).
    """
    handle = _open(place, name)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_ino == os.stat(name, dir_fd=place, follow_symlinks=False).st_ino:
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass  # another has it, or somebody has cleaned the folder up: the next try makes a new one
    os.close(handle)
    return None


def _read(handle: int) -> dict:
    """What the holder has written into a lock file; empty where it says nothing."""
    try:
        said = json.loads(os.pread(handle, LONGEST_TEXT, 0) or b"{}")
    except (OSError, ValueError, RecursionError):  # somebody else's text may be anything
        return {}
    return said if isinstance(said, dict) else {}


def _read_of_another(place: int, name: str) -> dict:
    handle = _open(place, name)
    try:
        return _read(handle)
    finally:
        os.close(handle)


def _write(handle: int, said: dict | None) -> None:
    """Say who has a lock; None empties the file. On a full disk it stays unsaid."""
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        if said:
            os.pwrite(handle, json.dumps(said).encode()[:LONGEST_TEXT], 0)


@contextlib.contextmanager
def _in_order(path: Path | str):
    """The open folder while nobody else decides about leases; None if somebody does right now."""
    place = _open_folder(Path(path))
    order = None
    try:
        order = _lock(place, "order")
        yield place if order is not None else None
    finally:
        for handle in (order, place):
            if handle is not None:
                os.close(handle)


def _file(key: str) -> str:
    return re.sub(r"[^\w.-]", "_", key)[:100]


# Asking, waiting, holding


@dataclass
class _Held:
    """A device that this process has, for one run of its kernel or for several at once."""

    handle: int
    said: dict
    runs: int = 1


_held: dict[str, _Held] = {}


@dataclass
class Request:
    """A run's wish for devices. `ask()` until it is granted, then or before that `withdraw()`.

    folder: of the locks. devices: those that would do. count: how many of them. user, kernel: who
    asks, for the others to read. why: what it waits for, a text for the reader, empty as long as
    that is not known.
    """

    folder: Path | str
    devices: list[dict]
    count: int
    user: str = field(default_factory=lambda: _user())
    kernel: int = field(default_factory=os.getpid)
    why: str = ""
    _place: int | None = None
    _number: float = float("inf")
    _asked: int = 0

    def ask(self) -> "Lease | None":
        """The lease if it can be had now, else a place in the queue. Raises LeaseError."""
        with _in_order(self.folder) as place:
            if place is None:
                self._asked += 1
                if self._asked == PATIENT_ASKS:
                    self.why = "Waiting: another launch has the queue's lock and does not let go."
                return None
            self._asked = 0
            waiting = _waiting(place)
            before = [each for each in waiting if each["number"] < self._number]
            wanted = {key for each in before for key in each["devices"]}
            if (taken := self._take(place, wanted)) is not None:
                return Lease(taken)
            if self._place is None:
                self._queue_up(place, waiting)
            self.why = self._explain(place, before)
            return None

    def withdraw(self) -> None:
        """Leave the queue."""
        if self._place is not None:
            _write(self._place, None)
            os.close(self._place)
            self._place = None

    def _take(self, place: int, wanted: set[str]) -> list[dict] | None:
        """All devices or None. What the same kernel has already does too: it need not wait for
        itself.
        """
        own = [device for device in self.devices if device["key"] in _held]
        new: dict[str, int] = {}
        with contextlib.ExitStack() as given_back:
            for device in self.devices:
                key = device["key"]
                if device in own or key in wanted or len(new) == self.count:
                    continue
                if (handle := _lock(place, _file(key))) is None:
                    continue
                if _still_there(_read(handle)):  # a dead run's: it is as if it still had the device
                    os.close(handle)
                    continue
                new[key] = handle
                given_back.callback(os.close, handle)
            chosen = [device for device in self.devices if device["key"] in new]
            chosen += own[: self.count - len(chosen)]
            if len(chosen) < self.count:
                return None
            given_back.pop_all()
        self._keep(chosen, new)
        return chosen

    def _keep(self, chosen: list[dict], new: dict[str, int]) -> None:
        """Say in the lock files who has the new devices; of the others, that one more run does."""
        said = {"user": self.user, "kernel": self.kernel, "since": time.time()}
        for key in (device["key"] for device in chosen):
            if key in new:
                _held[key] = _Held(new[key], {**said, "processes": {}})
                _write(new[key], said)
            else:
                _held[key].runs += 1

    def _queue_up(self, place: int, waiting: list[dict]) -> None:
        """Take a place in the queue: a lock file of it, with a number higher than the others'."""
        self._number = 1 + max((each["number"] for each in waiting), default=0)
        for k in itertools.count():
            if (handle := _lock(place, f"place-{k}")) is not None:
                self._place = handle
                keys = [device["key"] for device in self.devices]
                _write(handle, {"number": self._number, "user": self.user, "devices": keys})
                return

    def _explain(self, place: int, before: list[dict]) -> str:
        """Who has what, and who is first, in sentences."""
        holders: dict[str, list[str]] = {}
        for device in self.devices:
            if who := _holder(place, device["key"]):
                holders.setdefault(who, []).append(device["label"])
        wish = "1 device" if self.count == 1 else f"{self.count} devices"
        said = [f"{', '.join(labels)}: {who}" for who, labels in holders.items()]
        text = f"Waiting for {wish}. {'; '.join(said)}{'. ' if said else ''}"
        keys = {device["key"] for device in self.devices}
        ahead = sum(not keys.isdisjoint(each["devices"]) for each in before)
        if ahead:
            text += f"{ahead} {'launch is' if ahead == 1 else 'launches are'} ahead of this one. "
        return f"{text}Interrupt the cell to stop waiting."


@dataclass
class Lease:
    """Devices that this process has for one run."""

    devices: list[dict]

    def note(self, pids: list[int]) -> None:
        """Say which processes use the devices: if this one is killed, the next waits for them."""
        started = {}
        for pid in pids:
            with contextlib.suppress(OSError):  # gone already, or no /proc on this system
                started[str(pid)] = process_tree.read(pid).started
        for held in self._mine():
            held.said["processes"] |= started
            _write(held.handle, held.said)

    def release(self) -> None:
        """Give the devices back, unless another run of this kernel has them too."""
        for device, held in zip(self.devices, self._mine(), strict=True):
            held.runs -= 1
            if held.runs == 0:
                if not _still_there(held.said):
                    _write(held.handle, None)
                os.close(held.handle)
                del _held[device["key"]]
        self.devices = []

    def _mine(self) -> list[_Held]:
        return [_held[device["key"]] for device in self.devices]


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"


def _waiting(place: int) -> list[dict]:
    """The requests in the queue, of all processes: {"number", "devices"} of each."""
    found = []
    for name in os.listdir(place):
        if not name.startswith("place-"):
            continue
        if (handle := _lock(place, name)) is not None:
            os.close(handle)  # nobody waits there
            continue
        said = _read_of_another(place, name)
        devices = said.get("devices")
        named = isinstance(devices, list) and all(isinstance(key, str) for key in devices)
        if isinstance(said.get("number"), int) and named:
            found.append(said)
    return found


def _still_there(said: dict) -> list[int]:
    """Which of the processes that used a device have not ended yet."""
    processes = said.get("processes")
    items = processes.items() if isinstance(processes, dict) else ()
    return [int(pid) for pid, start in items if pid.isdecimal() and _lives(int(pid), start)]


def _lives(pid: int, started: int) -> bool:
    """Whether this very process is there. A zombie is not, once all its threads have ended."""
    try:
        process = process_tree.read(pid)
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return False
    return process.started == started and not (process.state in "ZX" and threads < 2)


def _holder(place: int, key: str) -> str:
    """Who has a device; of a dead run, whose processes are still there. Empty if nobody has it."""
    if key in _held:
        return "held by this kernel"
    said = _read_of_another(place, _file(key))
    who = "".join(letter for letter in str(said.get("user", "")) if letter.isprintable())[:40]
    handle = _lock(place, _file(key))
    if handle is not None:
        os.close(handle)
        left = ", ".join(map(str, _still_there(said)))
        return f"{who or 'somebody'}'s run has died, its process {left} is still there" * bool(left)
    if not who:
        return "held by somebody who does not say who it is"
    kernel = said["kernel"] if isinstance(said.get("kernel"), int) else "unknown"
    return f"held by {who}, process {kernel}, since {_clock(said.get('since'))}"


def _clock(seconds) -> str:
    """A time as the reader's clock shows it; with the day, if it was not today."""
    try:
        then = time.localtime(seconds)
    except (TypeError, ValueError, OverflowError, OSError):
        return "some time"
    today = time.localtime()[:3] == then[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", then)


# Cores of CPU ranks: taken if they are free, shared if not, never waited for


@dataclass
class Cores:
    """The place of a run's first rank among the cores, and the locks on those that were free."""

    place: int = 0
    handles: list[int] = field(default_factory=list)

    def note(self, pids: list[int]) -> None:
        """Nobody waits for cores, so nobody has to know who computes on them."""

    def release(self) -> None:
        """Give the cores back."""
        while self.handles:
            os.close(self.handles.pop())


def take_cores(folder: Path | str, cores: list[int], ranks: int, each: int = 1) -> Cores:
    """Cores for CPU ranks that no other run has, if there are such side by side; else the first.

    cores: those that this process may use. each: how many a rank computes with. On a machine where
    nothing else runs that is place 0, as without leases.
    """
    with contextlib.suppress(LeaseError):
        for _ in range(CORE_ASKS):
            with _in_order(folder) as place:
                if place is not None:
                    return _free_cores(place, cores, ranks, each)
            time.sleep(POLL_SECONDS / 10)  # somebody decides just now
    return Cores()


def _free_cores(place: int, cores: list[int], ranks: int, each: int) -> Cores:
    locks: dict[int, int] = {}
    with contextlib.ExitStack() as given_back:
        for core in cores:
            if (handle := _lock(place, f"core-{core}")) is not None:
                locks[core] = handle
                given_back.callback(os.close, handle)
        last = max(0, len(cores) // each - ranks)  # more ranks than cores begin at the first
        parts = {k: cores[k * each : (k + ranks) * each] for k in range(last + 1)}
        free = (k for k, part in parts.items() if locks.keys() >= set(part))
        chosen = Cores(next(free, 0))
        given_back.pop_all()
    for core, handle in locks.items():
        if core in parts[chosen.place]:
            chosen.handles.append(handle)
        else:
            os.close(handle)
    return chosen
