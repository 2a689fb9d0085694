"""The collectives that each rank has recorded, from what it has written (flight_recorder.py)."""

import ast
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

NOT_THE_SCRIPT = re.compile(r"site-packages/|lib/python3|/src/bootcamp/|^<")
A_COLLECTIVE_FAILED = re.compile(r"gloo|nccl|Dist(Backend|Network)Error", re.I)
PLACE_IN_GLOO = re.compile(r"\[/[^]]*\] ?")
Group = tuple[str, tuple[int, ...]]  # the name of a process group, and its ranks


@dataclass(frozen=True)
class Collective:
    """One collective as one rank recorded it.

    number: counts the group's collectives, from 1. sizes, types: of the tensors that it was called
    with. entered: seconds since 1970. timeout: in seconds. where: the line of the script.
    """

    group: Group
    number: int
    name: str
    sizes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    ended: bool
    entered: float = 0.0
    timeout: float = math.inf
    where: str = ""

    @property
    def amount(self) -> tuple:
        """What ranks have to agree on beside the name: how many numbers, and of which types."""
        return sum(math.prod(size) for size in self.sizes), self.types

    @property
    def shape(self) -> str:
        """Such as "of shape [4, 5]"; empty for a barrier."""
        listed = " and ".join(str(list(size)) for size in self.sizes)
        return f"of shape{'s' * (len(self.sizes) > 1)} {listed}" if listed else ""

    def __str__(self) -> str:
        return f"{self.name} #{self.number} {self.shape}".strip()


@dataclass
class Rank:
    """What is known of one rank.

    host: its name, None where nobody said. answered: whether it has written its collectives.
    groups: those it is in, each with torch's description. stands: its own line, such as
    "train.py:42 in step". gone: how it ended, such as "was killed"; None of one that may be alive.
    """

    rank: int
    host: str | None = None
    answered: bool = False
    collectives: list[Collective] = field(default_factory=list)
    groups: dict[Group, str] = field(default_factory=dict)
    stands: str = ""
    gone: str | None = None

    @property
    def standing_in(self) -> Collective | None:
        """The first collective that it has entered and that has not ended."""
        return next((one for one in self.collectives if not one.ended), None)

    @property
    def last_ended(self) -> Collective | None:
        return next((one for one in reversed(self.collectives) if one.ended), None)


def rank_of(
    number: int, dump: dict | None, stands: str = "", gone: str | None = None, host=None
) -> Rank:
    """One rank from its dump, None if it has left none. The dump's own host goes first."""
    if dump is None:
        return Rank(number, host, stands=stands, gone=gone)
    described = dump["pg_config"].values()
    groups = {
        (one["name"], tuple(ast.literal_eval(one["ranks"]))): one["desc"] for one in described
    }
    members = {name: (name, ranks) for name, ranks in groups}
    found = [_collective(entry, members) for entry in dump["entries"] if not entry["is_p2p"]]
    raised = dump.get("raised") or ""
    if raised and not gone:
        gone = f"ended with {PLACE_IN_GLOO.sub('', raised.splitlines()[0]).partition('. ')[0]}"
    found = _open_or_ended(found, failed=bool(A_COLLECTIVE_FAILED.search(raised)))
    return Rank(number, dump.get("host") or host, True, found, groups, stands, gone)


def _numbers(text: str) -> tuple[int, ...]:
    """The ranks of a group as torch writes them, "[0, 1]"."""
    return tuple(ast.literal_eval(text))


def _collective(entry: dict, members: dict[str, Group]) -> Collective:
    name = entry["process_group"][0]
    frames = [(frame["filename"], frame["line"], frame["name"]) for frame in entry["frames"]]
    return Collective(
        group=members.get(name, (name, ())),
        number=entry["collective_seq_id"],
        name=entry["profiling_name"].partition(":")[2].partition(" ")[0],
        sizes=tuple(tuple(size) for size in entry["input_sizes"]),
        types=tuple(entry["input_dtypes"]),
        ended=entry["retired"] or entry["state"] == "completed",
        entered=entry["time_created_ns"] / 1e9,
        timeout=entry["timeout_ms"] / 1e3,
        where=own_line(frames),
    )


def _open_or_ended(found: list[Collective], failed: bool) -> list[Collective]:
    """The collectives with two corrections of what gloo's recorder says of their end.

    It notes an end a moment late: one is over if a later one of its group is. And it notes one
    that failed as if it had ended. failed: whether the rank met such an error, in its last one.
    """
    over, checked = set(), []
    for index, one in enumerate(reversed(found)):
        ended = (one.ended or one.group in over) and not (failed and index == 0)
        over |= {one.group} if ended else set()
        checked.append(replace(one, ended=ended))
    return checked[::-1]


def own_line(frames: list[tuple]) -> str:
    """The innermost of (file, line, function) that is no library's, as "file.py:42 in function"."""
    own = [frame for frame in frames if not NOT_THE_SCRIPT.search(frame[0])]
    for path, line, function in (own or frames)[:1]:
        return f"{Path(path).name}:{line} in {function}"
    return ""


def stack_line(stack: str) -> str:
    """As own_line, of frames as faulthandler writes them."""
    return own_line(re.findall(r'File "(.+)", line (\d+) in (.+)', stack))
