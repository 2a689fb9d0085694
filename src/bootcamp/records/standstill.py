"""Say why a run hangs, from the collectives that its ranks have recorded.

Each rank numbers the collectives of a process group, so a number has to be the same collective on
all of them. Where it is not, or where only some ranks have entered it, the ranks diverge.
"""

import ast
import html
import math
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

from bootcamp import units
from bootcamp.table import Table

LIBRARY = re.compile(r"site-packages/|lib/python3|/src/bootcamp/|^<|/_observe\.py")  # no script
FAILED_COLLECTIVE = re.compile(r"gloo|nccl|Dist(Backend|Network)Error", re.I)
PLACE_IN_GLOO = re.compile(r"\[/[^]]*\] ?")
Group = tuple[str, tuple[int, ...]]  # the name of a process group, and its ranks
ANY_SIZE = ("scatter", "gather", "all_to_all")  # their ranks may give different sizes
KINDS = ("order", "shapes", "missing", "late", "network")  # of divergences, the surest cause first


@dataclass(frozen=True)
class Collective:
    """One collective as one rank recorded it."""

    group: Group
    description: str  # torch's, of the group
    number: int  # its place among the group's collectives, from 1
    name: str
    sizes: tuple[tuple[int, ...], ...]  # of its input tensors
    dtypes: tuple[str, ...]
    completed: bool
    entered: float  # in seconds since 1970
    timeout: float  # in seconds
    call_site: str  # the line of the script that called it

    @property
    def signature(self) -> tuple:
        """The count and dtypes of the elements; ranks must agree on both and on the name."""
        return sum(map(math.prod, self.sizes)), self.dtypes

    @property
    def shape_phrase(self) -> str:
        """Such as "of shape [4, 5]"; empty for a barrier."""
        listed = " and ".join(str(list(size)) for size in self.sizes)
        return f"of shape{'s' * (len(self.sizes) > 1)} {listed}" if listed else ""

    @property
    def group_phrase(self) -> str:
        """The group, such as "in the default group", "in group tp (ranks 0 and 1)"."""
        name, ranks = self.group
        if name == "0" or self.description == "default_pg":
            return "in the default group"
        name = name if self.description in ("", "undefined") else self.description
        return f"in group {name} ({units.ranks(ranks)})"

    def __str__(self) -> str:
        return f"{self.name} #{self.number} {self.shape_phrase}".strip()


@dataclass
class Rank:
    """What is known of one rank."""

    host: str | None = None
    collectives: list[Collective] = field(default_factory=list)
    stack: str = ""  # frames as faulthandler writes them
    ending: str | None = None  # such as "was killed"; None if it may still be alive

    @property
    def open_collective(self) -> Collective | None:
        """The first collective that it has entered and that has not completed."""
        return next((each for each in self.collectives if not each.completed), None)

    @property
    def current_line(self) -> str:
        """The line of the script that it is in, such as "train.py:42 in step"; empty if unknown."""
        return _find_script_line(re.findall(r'File "(.+)", line (\d+) in (.+)', self.stack))


def read_stack(run_dir: Path, rank: int) -> str:
    """Read the innermost frames of a rank's main thread when it was last asked, to the script's."""
    path = run_dir / "ranks" / f"{rank}.stack"
    text = path.read_text(errors="replace") if path.exists() else ""
    own = text.rpartition("most recent call first")[2]
    frames = [line for line in own.splitlines()[1:] if line.startswith("  File")]
    mine = next((k for k, frame in enumerate(frames) if not LIBRARY.search(frame)), 0)
    return "\n".join(frames[:12] + frames[max(12, mine) : mine + 1])


def read_rank(dump: dict | None, stack: str, ending: str | None) -> Rank:
    """Read a rank's state from what it left. dump: its flight recorder's; None if there is none."""
    dump = dump or {"pg_config": {}, "entries": []}
    configs = dump["pg_config"].values()
    groups = {config["name"]: ast.literal_eval(config["ranks"]) for config in configs}
    found = [_read_collective(entry, groups) for entry in dump["entries"] if not entry["is_p2p"]]
    raised = dump.get("raised") or ""
    if raised and not ending:
        ending = f"ended with {PLACE_IN_GLOO.sub('', raised.splitlines()[0]).partition('. ')[0]}"
    # gloo's recorder calls a failed collective completed too, and notes a completion late: what a
    # later one of the group has followed is over
    reliable = found[:-1] if FAILED_COLLECTIVE.search(raised) else found
    newest = {each.group: each.number for each in reliable if each.completed}
    found = [replace(each, completed=each.number <= newest.get(each.group, 0)) for each in found]
    return Rank(dump.get("host"), found, stack, ending)


def _read_collective(entry: dict, groups: dict[str, list[int]]) -> Collective:
    group, description = entry["process_group"]
    frames = [(frame["filename"], frame["line"], frame["name"]) for frame in entry["frames"]]
    return Collective(
        group=(group, tuple(groups.get(group, ()))),
        description=description,
        number=entry["collective_seq_id"],
        name=entry["profiling_name"].partition(":")[2].partition(" ")[0],
        sizes=tuple(tuple(size) for size in entry["input_sizes"]),
        dtypes=tuple(entry["input_dtypes"]),
        completed=entry["retired"] or entry["state"] == "completed",
        entered=entry["time_created_ns"] / 1e9,
        timeout=entry["timeout_ms"] / 1e3,
        call_site=_find_script_line(frames),
    )


def _find_script_line(frames: list[tuple]) -> str:
    """Return the innermost (file, line, function) in the script, else of all: "a.py:42 in step"."""
    own = [frame for frame in frames if not LIBRARY.search(frame[0])]
    for path, line, function in own or frames:
        return f"{Path(path).name}:{line} in {function}"
    return ""


@dataclass
class Standstill:
    """Why a run hangs: `sentence` says it, `table` has a row for each rank.

    kind: `missing` (ranks never entered a collective in which others wait), `died` (such a rank has
    ended), `order` (ranks called different collectives, or wait for each other in different
    groups), `shapes` (the same collective with different sizes or dtypes), `late` (a rank came
    after the timeout), `network` (all have entered it, and it does not end), `none` (no collective
    is open). ranks: those to look at first.
    """

    kind: str
    ranks: tuple[int, ...]
    sentence: str
    table: Table

    def __repr__(self) -> str:
        return f"{self.sentence}.\n\n{self.table}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.sentence)}.</p>{self.table._repr_html_()}"


@dataclass
class _Divergence:
    """The first collective of a group that its ranks call differently, or that does not end."""

    kind: str
    present: dict[int, Collective]  # the ranks that entered it, each with the call as recorded
    absent: tuple[int, ...]  # the group's other ranks
    ranks: dict[int, Rank]  # of the run

    def __post_init__(self):
        self.example = next(iter(self.present.values()))
        self.call = f"{self.example} {self.example.group_phrase}"
        self.waiting = tuple(rank for rank, call in self.present.items() if not call.completed)

    def name(self, numbers) -> str:
        """Name ranks: "rank 2 on host1", "ranks 0, 1 and 3"."""
        host = self.ranks[numbers[0]].host if len(numbers) == 1 else None
        return units.ranks(numbers) + (f" on {host}" if host else "")

    def describe(self, culprits: tuple[int, ...]) -> tuple[str, tuple[int, ...], str]:
        """Return the kind of standstill, the ranks to look at first, and a sentence."""
        if self.kind == "missing":
            died = any(self.ranks[rank].ending for rank in culprits)
            return "died" if died else "missing", culprits, self._describe_missing(culprits)
        if self.kind in ("order", "shapes"):
            return self.kind, *self._describe_difference()
        if self.kind == "late":
            first, *_, last = sorted(self.present, key=lambda rank: self.present[rank].entered)
            late = self.present[last].entered - self.present[first].entered
            sentence = (
                f"{self.name([last])} came to {self.call} {late:.1f} s after rank {first}, later "
                f"than the timeout of {self.example.timeout:g} s"
            )
            return self.kind, (last,), sentence
        hosts = dict.fromkeys(self.ranks[rank].host for rank in self.present)
        between = f" between {units.join(hosts)}" if len(hosts) > 1 else ""
        sentence = (
            f"all ranks have entered {self.call}, and it does not end: nobody is missing, look at "
            f"the network{between}"
        )
        return self.kind, self.waiting, sentence

    def _describe_missing(self, culprits: tuple[int, ...]) -> str:
        """Say where each of the ranks that never came stands, or how it ended."""
        ended = [rank for rank in culprits if self.ranks[rank].ending]
        endings = [f"{self.name([rank])} {self.ranks[rank].ending}" for rank in ended]
        subject = f"{units.join(endings)}, and" if ended else self.name(culprits)
        waits = f"{self.name(self.waiting)} wait{'s' * (len(self.waiting) == 1)}"
        sentence = f"{subject} never entered {self.call}, in which {waits}"
        lines = {rank: self.ranks[rank].current_line for rank in culprits if rank not in ended}
        if len(culprits) == len(lines) == 1:
            (line,) = lines.values()
            return sentence + (f"; it stands in {line}" if line else "; it gave no answer")
        where = [f"rank {rank} in {line or '?'}" for rank, line in lines.items()]
        return sentence + (f"; they stand: {', '.join(where[:4])}" if where else "")

    def _describe_difference(self) -> tuple[tuple[int, ...], str]:
        """Say which ranks called what; suspect the minority, or all ranks without a majority."""
        camps = defaultdict(list)  # ranks that called the same
        for rank, call in self.present.items():
            camps[call.name, call.signature].append(rank)
        dtypes_differ = len({call.dtypes for call in self.present.values()}) > 1
        calls = []
        for camp in camps.values():
            call = self.present[camp[0]]
            dtypes = f"({', '.join(call.dtypes)})" if dtypes_differ else ""
            site = f"in {call.call_site}" if call.call_site else ""
            words = (self.name(camp), "called", call.name, call.shape_phrase, dtypes, site)
            calls.append(" ".join(filter(None, words)))
        *_, second, largest = sorted(camps.values(), key=len)
        majority = largest if len(second) < len(largest) else ()
        where = f"{self.example.group_phrase} the ranks diverge at collective"
        sentence = f"{where} #{self.example.number}: {', '.join(calls)}"
        return tuple(sorted(set(self.present) - set(majority))), sentence


def explain(ranks: dict[int, Rank]) -> Standstill:
    """Find the first collective at which ranks diverge, and the ranks that block the others.

    ranks: every rank of the run, also those that left no dump and no stack. A rank that waits in
    one group for a rank that waits in another is not the cause: follow the chain to its end.
    """
    if len({rank.host for rank in ranks.values()} - {None}) < 2:
        ranks = {number: replace(rank, host=None) for number, rank in ranks.items()}
    groups = dict.fromkeys(each.group for rank in ranks.values() for each in rank.collectives)
    divergences = [found for group in groups if (found := _find_divergence(group, ranks))]
    divergences.sort(key=lambda found: (KINDS.index(found.kind), found.example.entered))
    table = _make_table(ranks, divergences)
    waiting = {rank for found in divergences if found.kind == "missing" for rank in found.waiting}
    for divergence in divergences:
        culprits = tuple(rank for rank in divergence.absent if rank not in waiting)
        if culprits or divergence.kind != "missing":
            return Standstill(*divergence.describe(culprits), table)
    if divergences:
        waits = [
            f"{each.name(each.waiting)} in {each.call} for {each.name(each.absent)} "
            f"({each.present[each.waiting[0]].call_site or 'from a line that is not known'})"
            for each in divergences
        ]
        sentence = f"the ranks wait for each other: {', '.join(waits)}"
        return Standstill("order", tuple(sorted(waiting)), sentence, table)
    sentence = (
        "no rank stands in a collective that torch's recorder has: gloo's has no send and recv, "
        "and Horovod's collectives are not torch's"
    )
    return Standstill("none", (), sentence, table)


def _find_divergence(group: Group, ranks: dict[int, Rank]) -> _Divergence | None:
    members = group[1] or sorted(ranks)
    recorded = {
        rank: {each.number: each for each in ranks[rank].collectives if each.group == group}
        for rank in members
    }
    # compare only collectives that every rank's ring buffer still holds
    first_common = max((min(found) for found in recorded.values() if found), default=0)
    for number in sorted({n for found in recorded.values() for n in found if n >= first_common}):
        present = {rank: found[number] for rank, found in recorded.items() if number in found}
        absent = tuple(rank for rank in members if rank not in present)
        if kind := _classify(list(present.values()), absent):
            return _Divergence(kind, present, absent, ranks)
    return None


def _classify(present: list[Collective], absent: tuple[int, ...]) -> str | None:
    """Say what is wrong with one collective, None if nothing is."""
    if len({call.name for call in present}) > 1:
        return "order"
    if len({call.signature for call in present}) > 1 and present[0].name not in ANY_SIZE:
        return "shapes"
    if all(call.completed for call in present):
        return None
    if absent:
        return "missing"
    entered = [call.entered for call in present]
    late = max(entered) - min(entered) >= min(call.timeout for call in present)
    return "late" if late else "network"


def _make_table(ranks: dict[int, Rank], divergences: list[_Divergence]) -> Table:
    absent = {found.example.group: ", ".join(map(str, found.absent)) for found in divergences}
    several_hosts, rows = any(rank.host for rank in ranks.values()), []
    for number, rank in sorted(ranks.items()):
        collective = rank.open_collective
        where = (rank.current_line or (collective.call_site if collective else ""), rank.ending)
        row = {"rank": number} | ({"host": rank.host or "?"} if several_hosts else {})
        completed = [each for each in rank.collectives if each.completed]
        row["last completed"] = str(completed[-1]) if completed else ""
        row["standing in"] = str(collective or "")
        row["waits for"] = absent.get(collective.group, "") if collective else ""
        row["where it is"] = ", ".join(filter(None, where)) or "no answer"
        rows.append(row)
    return Table(rows, "Collectives by rank; # counts those of one process group")
