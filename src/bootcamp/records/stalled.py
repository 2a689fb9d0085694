"""Explain why a run stands still, from the collectives that its ranks have recorded.

The collectives of a process group are numbered on every rank alike, so a number has to be the same
collective everywhere. Where it is not, or where only some ranks have come to it, the ranks parted.
"""

import ast
import html
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from bootcamp.table import Table

NOT_THE_SCRIPT = re.compile(r"site-packages/|lib/python3|/src/bootcamp/|^<")
A_COLLECTIVE_FAILED = re.compile(r"gloo|nccl|Dist(Backend|Network)Error", re.I)
PLACE_IN_GLOO = re.compile(r"\[/[^]]*\] ?")
Group = tuple[str, tuple[int, ...]]  # the name of a process group, and its ranks
ANY_SIZE = ("scatter", "gather", "all_to_all")  # their ranks may give different sizes
FEW = 4  # ranks whose lines a sentence names


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

    groups: those it is in, each with torch's description. stands: its own line, such as
    "train.py:42 in step". gone: how it ended, such as "was killed"; None of one that may be alive.
    """

    host: str | None = None
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


def rank_of(dump: dict | None, stands: str = "", gone: str | None = None) -> Rank:
    """Read one rank from its dump, None if it has left none."""
    if dump is None:
        return Rank(stands=stands, gone=gone)
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
    return Rank(dump.get("host"), found, groups, stands, gone)


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


@dataclass
class Standstill:
    """What was found. `sentence` says it, `table` has a row for each rank.

    kind: `missing` (ranks never entered a collective in which others wait), `died` (such a rank is
    gone), `order` (ranks called different collectives, or wait for each other in different groups),
    `shapes` (the same collective with different sizes or types), `late` (a rank came after the
    time-out), `network` (all have entered it, and it does not end), `none` (no collective is open).
    ranks: those to look at first.
    """

    kind: str
    ranks: tuple[int, ...]
    sentence: str
    table: Table
    collective: Collective | None = None

    def __str__(self) -> str:
        return f"{self.sentence}.\n\n{self.table}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.sentence)}.</p>{self.table._repr_html_()}"


@dataclass
class _Parting:
    """The first number of a group at which its ranks do not do the same, or do not come together.

    present: of the ranks that have entered it, how each has recorded it. absent: the others.
    """

    kind: str
    group: Group
    present: dict[int, Collective]
    absent: tuple[int, ...]

    @property
    def waiting(self) -> list[int]:
        return [rank for rank, one in self.present.items() if not one.ended]

    @property
    def one(self) -> Collective:
        return next(iter(self.present.values()))


def explain(ranks: dict[int, Rank]) -> Standstill:
    """Find the collective at which ranks parted, and the ranks because of which they do not get on.

    ranks: every rank of the run, with or without an answer. A rank that waits in one group for
    somebody who waits in another is not the cause: the chain is followed to its end.
    """
    groups = dict.fromkeys(group for rank in ranks.values() for group in rank.groups)
    groups |= dict.fromkeys(one.group for rank in ranks.values() for one in rank.collectives)
    partings = [found for group in groups if (found := _parting(group, ranks))]
    table = _table(ranks, partings)
    missing = [one for one in partings if one.kind == "missing"]
    waiting = {rank for one in missing for rank in one.waiting}
    for kind, sentence_of in SENTENCES.items():
        for parting in (one for one in partings if one.kind == kind):
            causes = tuple(rank for rank in parting.absent if rank not in waiting)
            if kind == "missing" and not causes:
                continue
            died = kind == "missing" and any(ranks[rank].gone for rank in causes)
            sentence, looked_at = sentence_of(parting, ranks, causes)
            kind = "died" if died else kind
            return Standstill(kind, looked_at, sentence, table, parting.one)
    if missing:
        return Standstill("order", tuple(sorted(waiting)), _circle(missing, ranks), table)
    sentence = (
        "no rank stands in a collective that torch's recorder has: gloo's has no send and recv, "
        "and Horovod's collectives are not torch's"
    )
    return Standstill("none", (), sentence, table)


def _parting(group: Group, ranks: dict[int, Rank]) -> _Parting | None:
    """Where the ranks of a group part; None where they do not."""
    members = group[1] or sorted(ranks)
    recorded = {
        rank: {one.number: one for one in ranks[rank].collectives if one.group == group}
        for rank in members
    }
    begin = max((min(found) for found in recorded.values() if found), default=0)
    for number in sorted({n for found in recorded.values() for n in found if n >= begin}):
        present = {rank: found[number] for rank, found in recorded.items() if number in found}
        absent = tuple(rank for rank in members if rank not in present)
        if kind := _kind(list(present.values()), absent):
            return _Parting(kind, group, present, absent)
    return None


def _kind(present: list[Collective], absent: tuple[int, ...]) -> str | None:
    """What is wrong with one collective, None if nothing is."""
    if len({one.name for one in present}) > 1:
        return "order"
    if len({one.amount for one in present}) > 1 and present[0].name not in ANY_SIZE:
        return "shapes"
    if all(one.ended for one in present):
        return None
    if absent:
        return "missing"
    entered = [one.entered for one in present]
    late = max(entered) - min(entered) >= min(one.timeout for one in present)
    return "late" if late else "network"


def _different(parting: _Parting, ranks: dict[int, Rank], _):
    """Who called what, and the ranks of the smaller camp; all of them where none is smaller."""
    camps: dict[tuple, list[int]] = {}
    for rank, one in parting.present.items():
        camps.setdefault((one.name, one.amount), []).append(rank)
    types_differ = len({one.types for one in parting.present.values()}) > 1
    calls = []
    for camp in camps.values():
        one = parting.present[camp[0]]
        types = f"({', '.join(one.types)})" if types_differ else ""
        place = f"in {one.where}" if one.where else ""
        words = (_names(camp, ranks), "called", one.name, one.shape, types, place)
        calls.append(" ".join(filter(None, words)))
    sentence = f"{_in(parting.group, ranks)} the ranks part at collective #{parting.one.number}: "
    largest = max(camps.values(), key=len)
    others = [rank for camp in camps.values() for rank in camp if camp is not largest]
    alone = [len(camp) for camp in camps.values()].count(len(largest)) == 1
    return sentence + ", ".join(calls), tuple(sorted(others if alone else parting.present))


def _never_entered(parting: _Parting, ranks: dict[int, Rank], causes: tuple[int, ...]):
    """Who never came, and for each of them where it stands or how it ended."""
    ended = [f"{_name(rank, ranks)} {ranks[rank].gone}" for rank in causes if ranks[rank].gone]
    alive = {rank: ranks[rank].stands for rank in causes if not ranks[rank].gone}
    sentence = f"{_and(ended)}, and" if ended else _names(causes, ranks)
    sentence += f" never entered {parting.one} {_in(parting.group, ranks)}, in which "
    sentence += f"{_names(parting.waiting, ranks)} wait{'s' * (len(parting.waiting) == 1)}"
    if len(causes) == len(alive) == 1:
        (place,) = alive.values()
        sentence += f"; it stands in {place}" if place else "; it gave no answer"
    elif alive:
        at = [f"rank {rank} in {place or '?'}" for rank, place in alive.items()]
        sentence += f"; they stand: {', '.join(at[:FEW])}"
    return sentence, causes


def _late(parting: _Parting, ranks: dict[int, Rank], _):
    entered = {rank: one.entered for rank, one in parting.present.items()}
    first, last = min(entered, key=entered.get), max(entered, key=entered.get)
    return (
        f"{_name(last, ranks)} came to {parting.one} {_in(parting.group, ranks)} "
        f"{entered[last] - entered[first]:.1f} s after rank {first}, later than the time-out of "
        f"{parting.one.timeout:g} s"
    ), (last,)


def _network(parting: _Parting, ranks: dict[int, Rank], _):
    hosts = list(dict.fromkeys(str(ranks[rank].host) for rank in parting.present))
    between = f" between {_and(hosts)}" if len(hosts) > 1 else ""
    return (
        f"all ranks have entered {parting.one} {_in(parting.group, ranks)}, and it does not end: "
        f"nobody is missing, look at the network{between}"
    ), tuple(parting.waiting)


SENTENCES = {  # (sentence, ranks to look at first) of each kind, the surest first
    "order": _different,
    "shapes": _different,
    "missing": _never_entered,
    "late": _late,
    "network": _network,
}


def _circle(partings: list[_Parting], ranks: dict[int, Rank]) -> str:
    """Sentence for ranks that wait for each other in collectives of different groups."""
    links = []
    for one in partings:
        where = one.present[one.waiting[0]].where
        links.append(
            f"{_names(one.waiting, ranks)} in {one.one} {_in(one.group, ranks)} for "
            f"{_names(one.absent, ranks)}" + (f" ({where})" if where else "")
        )
    return f"the ranks wait for each other: {', '.join(links)}"


def _table(ranks: dict[int, Rank], partings: list[_Parting]) -> Table:
    rows = []
    for number, rank in sorted(ranks.items()):
        stands = rank.standing_in
        absent = [one.absent for one in partings if stands and one.group == stands.group]
        where = (rank.stands or (stands.where if stands else ""), rank.gone)
        rows.append({"rank": number})
        if _several_hosts(ranks):
            rows[-1]["host"] = rank.host or "?"
        rows[-1] |= {
            "last completed": str(rank.last_ended or ""),
            "standing in": str(stands or ""),
            "waits for": ", ".join(map(str, absent[0])) if absent else "",
            "where it is": ", ".join(filter(None, where)) or "no answer",
        }
    return Table(rows, "Collectives by rank; # counts those of one process group")


def _in(group: Group, ranks: dict[int, Rank]) -> str:
    """Such as "in the default group", "in group tp (ranks 0 and 1)"."""
    name, members = group
    described = {rank.groups.get(group) for rank in ranks.values()} - {None, "", "undefined"}
    described = next(iter(described), name)
    if described == "default_pg" or name == "0":
        return "in the default group"
    return f"in group {described} (ranks {_and(members)})"


def _several_hosts(ranks: dict[int, Rank]) -> bool:
    return len({rank.host for rank in ranks.values()} - {None}) > 1


def _name(number: int, ranks: dict[int, Rank]) -> str:
    host = ranks[number].host if _several_hosts(ranks) else None
    return f"rank {number} on {host}" if host else f"rank {number}"


def _names(numbers, ranks: dict[int, Rank]) -> str:
    """Such as "rank 2 on host1", "ranks 0, 1 and 3"."""
    return _name(numbers[0], ranks) if len(numbers) == 1 else f"ranks {_and(numbers)}"


def _and(things) -> str:
    *first, last = map(str, things)
    return f"{', '.join(first)} and {last}" if first else last
