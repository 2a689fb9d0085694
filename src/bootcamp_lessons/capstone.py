"""The capstone of lesson 14: a model, four ranks on two hosts, a slow link, a limit of memory.

`capstone.enter("me", "hsdp", shard=2)` runs a plan, proves it equal, looks at the memory of every
rank, and puts it on the local board: `capstone.board()` ranks what is valid by measured tokens per
second. A plan is a script of the family, or the reader's own, with its flags. Imports no torch.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

from bootcamp.classroom.tasks import Wrong, check_syntax, failures_explained
from bootcamp.experiments import equality
from bootcamp.launcher import launch, simulated_hosts
from bootcamp.paths import LOGS
from bootcamp.records.runs import Run
from bootcamp.table import Table
from bootcamp_lessons import boards

MODEL = {"model": "gpt", "size": "tiny", "global_batch": 32}
RANKS, HOSTS, LINK = 4, 2, "20mbit"
STEPS = 8
MOST_BYTES = 16_500_000  # on any rank: parameters, gradients, optimizer state and activations
FIXED = {  # for everybody: what is trained, and how it is launched
    *(*MODEL, "steps", "optimizer", "seed", "dtype", "lr", "cores_per_rank"),
    *("ranks", "args", "device", "start", "hosts", "link", "quiet", "raises", "options"),
}
TASK = {
    **MODEL,
    "ranks": RANKS,
    "hosts": HOSTS,
    "link between the hosts": LINK,
    "most MB on a rank": MOST_BYTES / 1e6,
}
KINDS = ("parameter", "gradient", "optimizer", "activation")
FILE = "capstone.json"


@dataclass(frozen=True)
class Plan:
    """A strategy to run: a script's name or path, and the flags that are the reader's to choose."""

    script: str
    flags: dict = field(default_factory=dict)

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in self.flags.items()]
        return " ".join([Path(str(self.script)).stem, *words])


def plan(given) -> Plan:
    """A plan from a name ("fsdp") or from {"script": "hsdp", "shard": 2}. Raises Wrong."""
    if isinstance(given, str | Path):
        given = {"script": given}
    if not isinstance(given, dict) or "script" not in given:
        raise Wrong('a plan such as {"script": "hsdp", "shard": 2}', f"{given!r}")
    flags = {name: value for name, value in given.items() if name != "script"}
    if fixed := sorted(set(flags) & FIXED):
        raise Wrong(
            "flags that are yours to choose",
            f"{', '.join(fixed)}: given by the task, the same for everybody",
        )
    return Plan(given["script"], flags)


def where() -> dict:
    """Arguments of launch for hosts and link; CPU ranks of this host where none can be made."""
    return {"device": "cpu"} if simulated_hosts.why_not() else {"hosts": HOSTS, "link": LINK}


def held_bytes(run: Run) -> dict[str, int]:
    """Bytes of the fullest rank by kind: parameters, gradients, optimizer state, activations."""
    each = ({kind: rank[f"{kind}_bytes"] or 0 for kind in KINDS} for rank in run.ranks)
    return max(each, key=lambda kinds: sum(kinds.values()))


def rank_bytes(run: Run) -> int:
    """What the fullest rank holds."""
    return sum(held_bytes(run).values())


def fullest(run: Run) -> dict[str, int]:
    """Bytes of states (parameters, gradients, optimizer) and activations of the fullest rank."""
    held = held_bytes(run)
    activations = held.pop("activation")
    return {"states": sum(held.values()), "activations": activations}


def tried(plan: Plan, most_bytes: int = MOST_BYTES) -> Run:
    """Run a plan on the link and prove it with both optimizers; returns the measured run.

    Raises Wrong: it does not run, it trains something else, or a rank holds too much.
    """
    shared = {**MODEL, **where(), "quiet": True}
    script = Path(plan.script)
    if script.is_file():
        check_syntax(script)
    with failures_explained(script):
        run = launch.launch(plan.script, RANKS, steps=STEPS, **shared, **plan.flags)
        equality.same_training(run, equality.baseline(**MODEL, steps=STEPS))
        if rank_bytes(run) > most_bytes:
            kinds = sorted(held_bytes(run).items(), key=lambda pair: -pair[1])
            parts = ", ".join(f"{kind} {size / 1e6:.2f}" for kind, size in kinds)
            most = f"at most {most_bytes / 1e6:.1f} MB on each rank"
            raise Wrong(most, f"{rank_bytes(run) / 1e6:.1f} MB: {parts}")
        proved = {**shared, "link": None} if "link" in shared else shared
        sgd = {"steps": 5, "optimizer": "sgd"}
        other = launch.launch(plan.script, RANKS, **sgd, **proved, **plan.flags)
        equality.same_training(other, equality.baseline(**MODEL, **sgd))
    return run


def link_sizes(run: Run) -> float | None:
    """What a host sends to the other in a step, in sizes of the model; None if nobody counted."""
    if run.config.get("hosts", 1) < 2:
        return None
    sent = [rank["sent_to_other_hosts_bytes_per_step"] for rank in run.ranks[: RANKS // HOSTS]]
    if None in sent:
        return None
    return sum(sent) / equality.baseline(**MODEL, steps=STEPS).ranks[0]["parameter_bytes"]


@dataclass
class Entry:
    """What became of a plan on the board: valid with its figures, or why it is not."""

    row: dict
    wrong: Wrong | None = None

    def __str__(self) -> str:
        if self.wrong:
            return f"Not valid. Expected: {self.wrong.expected}.\nSeen: {self.wrong.seen}"
        speed, held = self.row["tokens_per_second"], self.row["rank_bytes"]
        return f"Valid: {speed:,.0f} tokens/s, {held / 1e6:.1f} MB on the fullest rank."

    __repr__ = __str__


def enter(who: str, script: str | Path, **flags) -> Entry:
    """Try a plan and put it on the board under this name. Raises nothing: see what it returns."""
    row = {"who": who, "plan": str(Plan(script, flags)), "when_unix_seconds": time.time()}
    wrong = None
    try:
        run = tried(plan({"script": script, **flags}))
        row |= {"tokens_per_second": run.tokens_per_second, "rank_bytes": rank_bytes(run)}
        row |= {"link_sizes": link_sizes(run), "link": run.config.get("link") or "none"}
    except Wrong as error:
        wrong = error
        row["why_not"] = wrong.expected
    boards.keep(LOGS / FILE, row)
    return Entry(row, wrong)


def board() -> Table:
    """All entries of this machine, valid ones first, by tokens per second."""
    rows = sorted(boards.entries(LOGS / FILE), key=lambda row: -(row.get("tokens_per_second") or 0))
    columns = {
        "place": lambda row: 1 + rows.index(row) if "rank_bytes" in row else None,
        "who": "who",
        "plan": "plan",
        "tokens/s": "tokens_per_second",
        "MB on a rank": lambda row: row["rank_bytes"] / 1e6 if "rank_bytes" in row else None,
        "link": "link",
        "models on the link": "link_sizes",
        "not valid": lambda row: row.get("why_not", ""),
    }
    return Table.of(rows, columns, f"{RANKS} CPU ranks; measured on this machine")
