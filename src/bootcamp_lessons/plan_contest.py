"""Lesson 14's contest of predicted plans: `plan_contest.enter("me", "slow", data=256)`.

A task is a model, a cluster and a batch; the reader chooses the rest of the plan. The planner
predicts it and the fastest plan that a search finds; `plan_contest.board("slow")` ranks all plans.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations
from pathlib import Path

from bootcamp.classroom.predict import check_answered
from bootcamp.costs import fitted_constants, model_shapes, planner
from bootcamp.costs.hardware import GB, Cluster, gpu
from bootcamp.costs.model_shapes import Model
from bootcamp.costs.planner import Answer
from bootcamp.costs.plans import RECOMPUTE, Plan, check
from bootcamp.files import read_json, update_json
from bootcamp.paths import LOGS
from bootcamp.table import Table

AXES = ("tensor", "context", "data", "pipeline")
# fields of a plan that a reader chooses; the task gives the rest, such as the batch
KNOBS = (*AXES, "stage", "shard", "micro_batch", "virtual", "recompute", "keep_gathered")
HELPS = 0.99  # a change helps if it leaves less of the seconds
AGAIN = "activations computed again"
FILE = "planned.json"
LIMITS = 0.1  # of a step: from this share on a part limits it by itself
NAMED = 0.01  # of a step: from this share on a part is named after compute


@dataclass(frozen=True)
class Task:
    """A model, a cluster and a batch; within: how much slower than the fastest is accepted."""

    name: str
    model: str
    shape: Model
    cluster: Cluster
    batch: int
    within: float = 0.05  # the planner is no closer to the truth

    @property
    def description(self) -> dict[str, str]:
        c, shape = self.cluster, self.shape
        return {
            "task": self.name,
            "model": f"{self.model}, {shape.parameters / 1e9:.0f} billion parameters",
            "GPUs": f"{c.gpus} {c.gpu.name}, {c.per_host} a host",
            "network": f"{c.host_bytes / GB:g} GB/s a host",
            "batch": f"{self.batch:,} sequences of {shape.sequence:,} tokens",
        }

    def plan(self, knobs: dict) -> Plan:
        """Make the plan of a reader's choices. Raises ValueError for an impossible one."""
        if not isinstance(knobs, dict):
            raise ValueError(f'{knobs!r}: expected a plan such as {{"tensor": 8, "data": 32}}')
        if others := ", ".join(str(name) for name in knobs if name not in KNOBS):
            raise ValueError(f"{others}: not yours to choose; the knobs: {', '.join(KNOBS)}")
        for name, value in knobs.items():
            usual = getattr(Plan, name)
            if type(value) is not type(usual):
                raise ValueError(f"{name}={value!r}: expected a value such as {usual!r}")
        for name in ("shard", "keep_gathered"):
            if knobs.get(name) and knobs.get("stage") != 3:
                raise ValueError(
                    f"{name}={knobs[name]}: for stage 3 alone, which shards parameters"
                )
        split = knobs.get("tensor", 1) > 1
        plan = Plan(batch=self.batch, compile=True, sequence_parallel=split, **knobs)
        check(self.shape, self.cluster, plan)
        return plan

    def predict(self, plan: Plan) -> Answer:
        return planner.predict(self.shape, self.cluster, plan)

    def peak_bytes(self, plan: Plan) -> float:
        """Return the bytes of the fullest rank at the peak; infinite for an impossible plan."""
        try:
            check(self.shape, self.cluster, plan)
        except ValueError:
            return math.inf
        return self.predict(plan).peak_bytes

    def fits(self, plan: Plan) -> bool:
        """Whether a plan is possible, and its fullest rank has the memory."""
        return self.peak_bytes(plan) <= self.cluster.gpu.memory


MODEL = "Code Llama 34B"
SHAPE = model_shapes.find_model(MODEL)
LONGER = replace(SHAPE, sequence=16 * SHAPE.sequence)
FAST, SLOW = (Cluster(gpu("H100"), 256, host_bytes=rate * GB) for rate in (400, 12.5))
TASKS = {
    "fast": Task("fast", MODEL, SHAPE, FAST, batch=1024),
    "slow": Task("slow", MODEL, SHAPE, SLOW, batch=1024),
    "long": Task("long", MODEL, LONGER, FAST, batch=64),
}


def changed_knobs(plan: Plan) -> dict:
    """Return the knobs of a plan that are not the default: {"data": 256, "stage": 3}."""
    values = {name: getattr(plan, name) for name in KNOBS}
    return {name: value for name, value in values.items() if value != getattr(Plan, name)}


def describe(knobs: dict) -> str:
    """Describe a plan in a few words: "tensor 2, data 128, stage 3"."""
    if not isinstance(knobs, dict):
        return repr(knobs)
    words = [str(name) if value is True else f"{name} {value}" for name, value in knobs.items()]
    return ", ".join(words).replace("_", "-") or "nothing"


def changes(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield (words, plan) of each single change, possible or not: 2 to another axis, or a knob."""
    for less, more in permutations(AXES, 2):
        if getattr(plan, less) % 2 == 0:
            yield _changed(plan, **{less: getattr(plan, less) // 2, more: 2 * getattr(plan, more)})
    for name in ("micro_batch", "virtual"):
        yield _changed(plan, **{name: 2 * getattr(plan, name)})
        if getattr(plan, name) % 2 == 0:
            yield _changed(plan, **{name: getattr(plan, name) // 2})
    for recompute in RECOMPUTE:
        yield _changed(plan, recompute=recompute)
    for stage in range(3):
        yield _changed(plan, stage=stage, shard=0, keep_gathered=False)
    for shard in (0, *(2**i for i in range(1, plan.data.bit_length() - 1))):
        yield _changed(plan, stage=3, shard=shard)
    yield _changed(plan, stage=3, keep_gathered=not plan.keep_gathered)


def _changed(plan: Plan, **new) -> tuple[str, Plan]:
    changed = replace(plan, **new)
    changed = replace(changed, sequence_parallel=changed.tensor > 1)
    pairs = {name: (getattr(plan, name), getattr(changed, name)) for name in KNOBS}
    words = [f"{name} {old} to {now}" for name, (old, now) in pairs.items() if old != now]
    return " with ".join(words).replace("_", "-"), changed


def fitting_changes(plan: Plan, task: Task) -> list[tuple[str, Plan]]:
    """List the single changes that fit, the fastest first."""
    fitting = [(words, one) for words, one in changes(plan) if words and task.fits(one)]
    return sorted(fitting, key=lambda pair: task.predict(pair[1]).seconds)


@cache
def suggest_change(plan: Plan, task: Task) -> str:
    """Name the fastest change that fits, or two; where nothing fits, what saves most memory."""
    fitting = task.fits(plan)
    now = task.predict(plan).seconds if fitting else math.inf
    one = fitting_changes(plan, task)
    two = (
        (f"{a}, and {b}", last)
        for a, first in changes(plan)
        for b, last in fitting_changes(first, task)
    )
    for count, found in (("One change", one), ("Two changes", two)):
        times = ((task.predict(changed).seconds, words) for words, changed in found)
        seconds, words = min(times, default=(now, ""))
        if seconds <= HELPS * now and words:
            return f"{count}: {words}, then {seconds:.2f} s."
    if fitting:
        return "No two changes make it faster: begin with another split of the GPUs."
    least, words = min((task.peak_bytes(changed), words) for words, changed in changes(plan))
    return f"No two changes make it fit. Nearest: {words}, then {least / GB:.1f} GB."


@cache
def find_best(task: Task) -> Plan:
    """Search all plans. Raises ValueError where none fits."""
    found = planner.search(task.shape, task.cluster, task.batch)
    if not found:
        raise ValueError(f"{task.name}: no plan fits {task.cluster.gpu.name}")
    return found[0][0]


def measure_first(plan: Plan, task: Task) -> dict[str, float]:
    """Return {constant: its share of the doubt in a step's seconds}, the largest first.

    As few of the planner's constants as leave an interval of half the width once they are measured.
    Each lies anywhere in its range, and they are independent: variances of the logarithm add up.
    """
    case, doubts = planner.Workload("", task.cluster, plan, task.shape), {}
    known = fitted_constants.find_constants("", task.cluster.gpu.name)
    for name in set(known._fields) & set(fitted_constants.EXPLAINED):
        about = fitted_constants.EXPLAINED[name]
        ends = [known._replace(**{name: about[end]}) for end in ("low", "high")]
        slow, fast = (planner.answer(case, constants).seconds for constants in ends)
        doubts[name] = math.log(slow / fast) ** 2
    total, found = sum(doubts.values()), {}
    for name in sorted(doubts, key=lambda name: -doubts[name]):
        if sum(found.values()) < 1 - 0.5**2:
            found[name] = doubts[name] / total
    return found


@dataclass(frozen=True)
class Verdict:
    """The planner's verdict on one plan.

    given: the plan's description. error: why it is impossible; the rest is None then. seconds: of a
    step. parts: {name: seconds}. mfu: share of the dense peak. peak_bytes: of the fullest rank.
    slower: its seconds over the fastest's, if it fits. knob: the change that helps most.
    """

    task: Task
    given: str
    error: str = ""
    seconds: float | None = None
    parts: dict[str, float] | None = None
    mfu: float | None = None
    peak_bytes: float | None = None
    slower: float | None = None
    knob: str = ""

    @property
    def fits(self) -> bool:
        """Whether it is possible, and the fullest rank has the memory."""
        return not self.error and self.peak_bytes <= self.task.cluster.gpu.memory

    @property
    def accepted(self) -> bool:
        """Whether it fits and is close enough to the fastest."""
        return self.fits and self.slower <= 1 + self.task.within

    @property
    def limit(self) -> str:
        """The memory, else the largest part but compute; behind compute where that is small."""
        if self.error:
            return f"impossible: {self.error}"
        if not self.fits:
            memory = self.task.cluster.gpu.memory
            return f"memory: {self.peak_bytes / GB:.1f} GB do not fit {memory / GB:.0f} GB"
        most = max((name for name in self.parts if name != "compute"), key=self.parts.get)
        compute, share = (self.parts[name] / self.seconds for name in ("compute", most))
        if share >= LIMITS:
            return f"{most}, {share:.0%} of the step"
        then = f"; then {most}, {share:.0%}" if share >= NAMED else ""
        return f"compute, {compute:.0%} of the step{then}"

    @property
    def distance(self) -> str:
        """The distance from the fastest in words."""
        if self.slower >= 2:
            return f"{self.slower:.1f} times as long as the fastest"
        if self.slower < 0.9995:
            return f"{1 - self.slower:.1%} faster than any that the search has found"
        if self.slower < 1.0005:
            return "the fastest that the search has found"
        return f"{self.slower - 1:.1%} slower than the fastest"

    def __str__(self) -> str:
        if self.error:
            return f"Impossible: {self.error}."
        if not self.fits:
            return f"Does not fit, {self.limit}. {self.knob}"
        speed = f"{self.seconds:.2f} s a step, {self.distance}; MFU {self.mfu:.1%}"
        held = f"{self.peak_bytes / GB:.1f} GB"
        return f"{speed}, {held}. Limited by {self.limit}. {self.knob}".strip()

    __repr__ = __str__


def judge(knobs: dict, task: Task) -> Verdict:
    """Judge a reader's plan; the verdict on an impossible one has an `error`."""
    try:
        plan = task.plan(knobs)
    except ValueError as problem:
        return Verdict(task, describe(knobs), error=str(problem))
    found, fits = task.predict(plan), task.fits(plan)
    verdict = Verdict(
        task,
        describe(knobs),
        seconds=found.seconds,
        parts=name_parts(plan, task),
        mfu=found.mfu,
        peak_bytes=found.peak_bytes,
        slower=found.seconds / task.predict(find_best(task)).seconds if fits else None,
    )
    return verdict if verdict.accepted else replace(verdict, knob=suggest_change(plan, task))


def name_parts(plan: Plan, task: Task) -> dict[str, float]:
    """Return the seconds of a step's named parts; recomputation is a part of its own."""
    found = task.predict(plan).parts
    once = task.predict(replace(plan, recompute="none")).parts["compute"]
    again = max(0.0, found["compute"] - once)
    named = {words: found[part] for part, words in planner.WORDS.items()}
    return {"compute": found["compute"] - again, AGAIN: again, **named}


def enter(who: str, task: str, **knobs) -> Verdict:
    """Judge any plan and put it on the task's board. Raises PredictionMissing as a launch does."""
    check_answered()
    verdict = judge(knobs, TASKS[task])
    row = {"who": who, "task": task, "plan": verdict.given, "knobs": knobs}
    add_entry(LOGS / FILE, row)
    return verdict


def list_entries(task: str) -> list[tuple[str, Verdict]]:
    """List (who, verdict) of the plans for a task, those that fit first, the fastest first."""
    rows = [row for row in read_entries(LOGS / FILE) if row["task"] == task]
    judged = [(row["who"], judge(row["knobs"], TASKS[task])) for row in rows]
    return sorted(judged, key=lambda pair: pair[1].seconds if pair[1].fits else math.inf)


def board(task: str) -> Table:
    """Table the plans that were entered for a task."""
    rows = []
    for place, (who, verdict) in enumerate(list_entries(task), start=1):
        fits, held = verdict.fits, verdict.peak_bytes
        row = {"place": place if fits else None, "who": who, "plan": verdict.given}
        row["seconds a step"] = verdict.seconds if fits else None
        row["times the fastest"] = verdict.slower
        row["MFU %"] = 100 * verdict.mfu if fits else None
        rows.append(row | {"GB on a rank": held and held / GB, "limited by": verdict.limit})
    about = TASKS[task].description
    given = f"{about['GPUs']}, {about['network']}, {about['batch']}"
    return Table(rows, f"{task}: {given}; predicted by the planner")


# Boards: plans that readers entered, in files that processes share


def read_entries(path: Path) -> list[dict]:
    """Read all rows of a board, the oldest first."""
    rows = read_json(path).get("entries")
    return rows if isinstance(rows, list) else []


def add_entry(path: Path, row: dict) -> None:
    """Add a row in place of that of the same person, task and plan, if it can be written."""

    def same(old: dict) -> bool:
        return all(old.get(key) == row.get(key) for key in ("who", "task", "plan"))

    def change(kept: dict) -> None:
        kept["entries"] = [*(old for old in kept.get("entries", []) if not same(old)), row]

    with contextlib.suppress(OSError, TypeError):
        update_json(path, change)
