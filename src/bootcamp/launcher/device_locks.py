"""Devices claimed under file locks, so that the runs of several people queue instead of colliding.

One folder serves all users of a machine. Each run has a claim there: a JSON file that says what it
waits for and what it has, and a lock beside it, held by its supervisor. The system frees the lock
when that process ends, however it ends, so a claim that is left blocks nobody, unless processes
that are named in it still live. A run writes its own claim only and reads those of others, one at
a time: the lock `order` sees to it. A run gets all its devices or none, and none that an earlier
one waits for: so runs come in order, and nobody holds a part and waits for the rest.

CPU ranks claim cores in the same way. They share rather than wait, and the claim knows with whom.

The folder is `bootcamp-leases` among the system's temporary files. BOOTCAMP_LEASES names another
(where users have temporary folders of their own), or says `off`.
"""

import contextlib
import json
import os
import pwd
import stat
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from bootcamp.launcher import process_tree

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
        with _deciding(path):
            return None
    except LeaseError as error:
        return str(error)


def _prepare(path: Path) -> None:
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
        raise _useless(path, error.strerror) from None
    if not stat.S_ISDIR(mode):
        raise _useless(path, "it is no folder")
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise _useless(path, "others may remove files in it (its sticky bit is not set)")


def _useless(what: Path | str, why: str) -> LeaseError:
    return LeaseError(
        f"the folder of the device locks can't be used: {what}: {why}. Let an administrator look "
        "at it, name another folder in BOOTCAMP_LEASES, or say BOOTCAMP_LEASES=off."
    )


@contextlib.contextmanager
def _deciding(path: Path):
    """True while nobody else decides about claims, False if somebody does right now."""
    _prepare(path)
    order = FileLock(path / "order.lock", timeout=0, mode=0o666)
    try:
        order.acquire()
    except Timeout:
        yield False
        return
    except OSError as error:
        raise _useless(order.lock_file, error.strerror) from None
    try:
        yield True
    finally:
        order.release()


@dataclass
class Claim:
    """What one run waits for or has, as it stands in the folder.

    wants: keys of the devices that would do, while it waits. has: keys of its devices. cores: those
    that its CPU ranks compute on, from `place` on. number: in the order of arrival. owner: the
    process that holds its lock. processes: those that must be gone before the devices are free, and
    when they began. shared_with: the runs that computed on the same cores.
    """

    folder: Path
    user: str
    kernel: int
    owner: str
    number: int = 0
    since: float = field(default_factory=time.time)
    wants: list[str] = field(default_factory=list)
    has: list[str] = field(default_factory=list)
    cores: list[int] = field(default_factory=list)
    processes: dict[str, float] = field(default_factory=dict)
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    shared_with: set[str] = field(default_factory=set)
    place: int = 0
    lock: FileLock | None = None

    def enter(self, others: list["Claim"]) -> None:
        """Appear in the folder, behind the others. Only while nobody else decides."""
        self.number = 1 + max((each.number for each in others), default=0)
        self.lock = FileLock(self.folder / f"{self.name}.lock", timeout=0, mode=0o666)
        self.lock.acquire()
        self.write()

    def write(self) -> None:
        """Say what it waits for and what it has. Raises LeaseError where it can't."""
        shown = ("user", "kernel", "owner", "number", "since", "wants", "has", "cores", "processes")
        text = json.dumps({name: getattr(self, name) for name in shown})
        beside = self.folder / f".{self.name}.part"
        try:
            beside.write_text(text)
            beside.chmod(0o644)  # all users read it
            os.replace(beside, self.folder / f"{self.name}.json")
        except OSError as error:
            raise _useless(beside, error.strerror) from None

    def note(self, pids: list[int]) -> None:
        """Name the processes that use them: if this one is killed, the next waits for those."""
        if self.lock is None:
            return
        self.processes |= {str(pid): process_tree.started(pid) for pid in pids}
        with contextlib.suppress(LeaseError):  # a full disk: the lock says enough while it is held
            self.write()

    def look_for_sharing(self) -> None:
        """Remember which other runs compute on cores of this one at this moment."""
        known, mine = {self.name, *self.shared_with}, set(self.cores)
        for path in self.folder.glob("*.json") if mine else ():
            other = _read(path) if path.stem not in known else None
            if other and mine & set(other.cores) and other.is_alive():
                self.shared_with.add(other.name)

    def release(self) -> None:
        """Leave the folder, or at least the lock while processes of the run are still there."""
        if self.lock is None:
            return
        self.look_for_sharing()
        if not self.still_there():
            _remove(self.folder, self.name)
        self.lock.release()
        self.lock = None

    def still_there(self) -> list[int]:
        """Which of the processes that used its devices have not ended yet."""
        started = self.processes.items()
        return [int(pid) for pid, when in started if process_tree.is_same(int(pid), when)]

    def is_alive(self) -> bool:
        """Whether its owner holds its lock, or a process of it lives."""
        if self.is_held() or self.still_there():
            return True
        _remove(self.folder, self.name)
        return False

    def is_held(self) -> bool:
        """Whether its owner holds its lock."""
        try:
            with FileLock(self.folder / f"{self.name}.lock", timeout=0, mode=0o666):
                return False
        except (Timeout, OSError):
            return True


def _remove(place: Path, name: str) -> None:
    """Remove a claim's files; another user's stay, and nobody minds them."""
    for end in ("json", "lock"):
        with contextlib.suppress(OSError):
            (place / f"{name}.{end}").unlink()


def _claims(place: Path, besides: str = "") -> list[Claim]:
    """The living claims in the folder but one, in order of arrival."""
    found = []
    for path in place.glob("*.json"):
        if path.stem != besides and (claim := _read(path)) and claim.is_alive():
            found.append(claim)
    return sorted(found, key=lambda claim: claim.number)


def _read(path: Path) -> Claim | None:
    """A claim that another process wrote, None where it is not one: the text may be anything."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle) as file:
            said = json.loads(file.read(LONGEST_TEXT))
        lists = {name: [*map(str, said[name])] for name in ("wants", "has")}
        return Claim(
            path.parent,
            "".join(letter for letter in str(said["user"]) if letter.isprintable())[:40],
            int(said["kernel"]),
            str(said["owner"]),
            int(said["number"]),
            float(said["since"]),
            **lists,
            cores=[*map(int, said["cores"])],
            processes={str(int(pid)): float(when) for pid, when in said["processes"].items()},
            name=path.stem,
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def owner() -> str:
    """This process, told from a later one of the same number."""
    return f"{os.getpid()}-{process_tree.started(os.getpid())}"


def user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"


@dataclass
class Request:
    """A run's wish for devices. `ask()` until it is granted, then or before that `withdraw()`.

    folder: of the locks. devices: those that would do. count: how many of them. user, kernel,
    owner: who asks. why: what it waits for, a text for the reader, empty until that is known.
    """

    folder: Path | str
    devices: list[dict]
    count: int
    user: str = field(default_factory=user)
    kernel: int = field(default_factory=os.getpid)
    owner: str = field(default_factory=owner)
    why: str = ""
    _claim: Claim | None = None
    _asked: int = 0

    def ask(self) -> "Lease | None":
        """The lease if it can be had now, else a place in the queue. Raises LeaseError."""
        with _deciding(Path(self.folder)) as alone:
            if not alone:
                self._asked += 1
                if self._asked == PATIENT_ASKS:
                    self.why = "Waiting: another launch has the queue's lock and does not let go."
                return None
            self._asked = 0
            others = _claims(Path(self.folder), self._claim.name if self._claim else "")
            if self._claim is None:
                self._claim = Claim(Path(self.folder), self.user, self.kernel, self.owner)
                self._claim.wants = [device["key"] for device in self.devices]
                self._claim.enter(others)
            earlier = [each for each in others if each.number < self._claim.number]
            chosen = self._choose(others, earlier)
            if chosen is None:
                self.why = self._explain(others, earlier)
                return None
            claim, self._claim = self._claim, None
            claim.wants, claim.has = [], [device["key"] for device in chosen]
            claim.write()
            return Lease(chosen, claim)

    def withdraw(self) -> None:
        """Leave the queue."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def _choose(self, others: list[Claim], earlier: list[Claim]) -> list[dict] | None:
        """All devices or None. What the same process has already does too: it need not wait for
        itself.
        """
        wanted = {key for each in earlier for key in each.wants}
        own = {key for each in others if each.owner == self.owner for key in each.has}
        taken = {key for each in others for key in each.has} - own
        free = [d for d in self.devices if d["key"] not in wanted | own | taken][: self.count]
        shared = [device for device in self.devices if device["key"] in own]
        chosen = free + shared[: self.count - len(free)]
        return chosen if len(chosen) == self.count else None

    def _explain(self, others: list[Claim], earlier: list[Claim]) -> str:
        """Who has what, and who is first, in sentences."""
        holders: dict[str, list[str]] = {}
        for device in self.devices:
            for each in others:
                if device["key"] in each.has:
                    holders.setdefault(_holder(each, self.owner), []).append(device["label"])
        wish = "1 device" if self.count == 1 else f"{self.count} devices"
        said = [f"{', '.join(labels)}: {who}" for who, labels in holders.items()]
        text = f"Waiting for {wish}. {'; '.join(said)}{'. ' if said else ''}"
        keys = {device["key"] for device in self.devices}
        ahead = sum(not keys.isdisjoint(each.wants) for each in earlier)
        if ahead:
            text += f"{ahead} {'launch is' if ahead == 1 else 'launches are'} ahead of this one. "
        return f"{text}Interrupt the cell to stop waiting."


@dataclass
class Lease:
    """Devices that a run has until its claim is released."""

    devices: list[dict]
    claim: Claim


def _holder(claim: Claim, me: str) -> str:
    """Who has a device; of a dead run, whose processes are still there."""
    if claim.owner == me:
        return "held by this kernel"
    if not claim.is_held():
        left = ", ".join(map(str, claim.still_there()))
        return f"{claim.user}'s run has died, its process {left} is still there"
    return f"held by {claim.user}, process {claim.kernel}, since {_clock(claim.since)}"


def _clock(seconds: float) -> str:
    """A time as the reader's clock shows it; with the day, if it was not today."""
    try:
        then = time.localtime(seconds)
    except (ValueError, OverflowError, OSError):
        return "some time"
    today = time.localtime()[:3] == then[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", then)


def take_cores(folder: Path | str, cores: list[int], ranks: int, each: int = 1) -> Claim | None:
    """Claim cores for CPU ranks; None while another launch decides.

    Those that no other run has, if there are such side by side; else the first, which are shared.
    On a machine where nothing else runs that is place 0, as without leases. Where the folder can't
    be used the claim is empty.

    cores: those that this process may use. each: how many a rank computes with.
    """
    claim = Claim(Path(folder), user(), os.getpid(), owner())
    with contextlib.suppress(LeaseError), _deciding(claim.folder) as alone:
        if not alone:
            return None
        others = _claims(claim.folder)
        busy = {core for other in others for core in other.cores}
        last = max(0, len(cores) // each - ranks)  # more ranks than cores begin at the first
        parts = [cores[k * each : (k + ranks) * each] for k in range(last + 1)]
        claim.place = next((k for k, part in enumerate(parts) if busy.isdisjoint(part)), 0)
        claim.cores = parts[claim.place]
        claim.enter(others)
        claim.look_for_sharing()
    return claim
