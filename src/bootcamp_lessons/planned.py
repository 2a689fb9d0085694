"""Plans for clusters that are not here: `planned.judge({"tensor": 8, "data": 32}, task)`.

A task is a model, a cluster and a batch; the reader chooses the rest of the plan. The planner
predicts it and the fastest one: the verdict says how far apart they are, what limits the plan, and
which change would help. `planned.enter("me", "slow", tensor=8, data=32)` puts it on the board of
one of TASKS, `planned.board("slow")` ranks them. Nothing runs. Imports no torch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations

from bootcamp.classroom.predict import wait_for_answers
from bootcamp.costs import model_shapes, planner
from bootcamp.costs.hardware import GB, Cluster, gpu
from bootcamp.costs.model_shapes import Model
from bootcamp.costs.planner import Answer
from bootcamp.costs.plans import RECOMPUTE, Plan, candidates, check
from bootcamp.paths import LOGS
from bootcamp.table import Table
from bootcamp_lessons import boards

AXES = ("tensor", "context", "data", "pipeline")
# what a reader chooses; the task gives the rest, such as the batch
KNOBS = (*AXES, "stage", "shard", "micro_batch", "virtual", "recompute", "keep_gathered")
HELPS = 0.99  # a change that leaves more of the seconds is none
SEEDS = 12  # plans of different meshes from which the search climbs
AGAIN = "activations computed again"
FILE = "planned.json"
COUNTS = 0.1  # a part that takes less of the step does not limit it by itself
SHOWN = 0.01


@dataclass(frozen=True)
class Task:
    """A model to train on a cluster, `batch` samples a step.

    within: how much slower than the fastest an answer may be: the planner is no closer to the
    truth.
    """

    name: str
    model: str
    shape: Model
    cluster: Cluster
    batch: int
    within: float = 0.05

    @property
    def words(self) -> dict[str, str]:
        """What is given, as a row of a table."""
        c, shape = self.cluster, self.shape
        return {
            "task": self.name,
            "model": f"{self.model}, {shape.parameters / 1e9:.0f} billion parameters",
            "GPUs": f"{c.gpus} {c.gpu.name}, {c.per_host} a host",
            "network": f"{c.host_bytes / GB:g} GB/s a host",
            "batch": f"{self.batch:,} sequences of {shape.sequence:,} tokens",
        }

    def plan(self, knobs: dict) -> Plan:
        """The plan that a reader names. Raises ValueError for one that can't be."""
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
                why = "for stage 3 alone, which shards parameters"
                raise ValueError(f"{name}={knobs[name]}: {why}")
        sequence = knobs.get("tensor", 1) > 1
        plan = Plan(batch=self.batch, compiled=True, sequence=sequence, **knobs)
        check(self.shape, self.cluster, plan)
        return plan

    def predicted(self, plan: Plan) -> Answer:
        """The planner's answer to a plan that can be."""
        return planner.unseen(self.shape, self.cluster, plan)

    def held(self, plan: Plan) -> float:
        """Bytes at the peak; infinite for an impossible plan."""
        try:
            check(self.shape, self.cluster, plan)
        except ValueError:
            return math.inf
        return self.predicted(plan).peak_bytes

    def fits(self, plan: Plan) -> bool:
        """Whether a plan is possible, and its fullest rank has the memory."""
        return self.held(plan) <= self.cluster.gpu.memory


def _tasks() -> dict[str, Task]:
    """One model on the same GPUs; a slower network in one, longer sequences in another."""
    model, gpus, batch = "Code Llama 34B", 256, 1024
    shape = model_shapes.named(model)
    fast, slow = (Cluster(gpu("H100"), gpus, host_bytes=each * GB) for each in (400, 12.5))
    longer = model_shapes.at(shape, sequence=16 * shape.sequence)
    tasks = (
        Task("fast", model, shape, fast, batch),
        Task("slow", model, shape, slow, batch),
        Task("long", model, longer, fast, batch // 16),
    )
    return {task.name: task for task in tasks}


TASKS = _tasks()

# The search


def turned(plan: Plan) -> dict:
    """A plan's knobs that are not as usual: {"data": 256, "stage": 3}."""
    values = {name: getattr(plan, name) for name in KNOBS}
    return {name: value for name, value in values.items() if value != getattr(Plan, name)}


def described(knobs: dict) -> str:
    """A plan in a few words: "tensor 2, data 128, stage 3"."""
    if not isinstance(knobs, dict):
        return repr(knobs)
    words = [str(name) if value is True else f"{name} {value}" for name, value in knobs.items()]
    return ", ".join(words).replace("_", "-") or "nothing"


def changes(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """(in words, the plan) for each single change: a factor 2 from an axis to another, or a knob.

    Some of them are impossible.
    """
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
    changed = replace(changed, sequence=changed.tensor > 1)
    pairs = {name: (getattr(plan, name), getattr(changed, name)) for name in KNOBS}
    words = [f"{name} {old} to {now}" for name, (old, now) in pairs.items() if old != now]
    return " with ".join(words).replace("_", "-"), changed


def near(plan: Plan, task: Task) -> list[tuple[str, Plan]]:
    """The single changes that fit, the fastest first."""
    fitting = [(words, one) for words, one in changes(plan) if words and task.fits(one)]
    return sorted(fitting, key=lambda pair: task.predicted(pair[1]).seconds)


@cache
def change(plan: Plan, task: Task) -> str:
    """The change that helps most: the fastest that fits; two, where no single one helps.

    plan: a possible one. Where nothing fits, the change that saves most memory.
    """
    fitting = task.fits(plan)
    now = task.predicted(plan).seconds if fitting else math.inf
    one = near(plan, task)
    two = ((f"{a}, and {b}", last) for a, first in changes(plan) for b, last in near(first, task))
    for count, found in (("One change", one), ("Two changes", two)):
        times = ((task.predicted(changed).seconds, words) for words, changed in found)
        seconds, words = min(times, default=(now, ""))
        if seconds <= HELPS * now and words:
            return f"{count}: {words}, then {seconds:.2f} s."
    if fitting:
        return "No two changes make it faster: begin with another split of the GPUs."
    least, words = min((task.held(changed), words) for words, changed in changes(plan))
    return f"No two changes make it fit. Nearest: {words}, then {least / GB:.1f} GB."


@cache
def best(task: Task) -> Plan:
    """Search for the fastest plan.

    From the fastest candidates of some meshes, follow single changes for as long as one makes the
    plan faster. Raises ValueError where nothing fits.
    """

    def seconds(plan: Plan) -> float:
        return task.predicted(plan).seconds

    plans = candidates(task.shape, task.cluster, task.batch, contexts=True)
    meshes = {}
    for plan in sorted(filter(task.fits, plans), key=seconds):
        meshes.setdefault((plan.tensor, plan.context, plan.pipeline), plan)
    if not meshes:
        raise ValueError(f"{task.name}: no plan fits {task.cluster.gpu.name}")
    climbed = []
    for plan in list(meshes.values())[:SEEDS]:
        while (found := near(plan, task)) and seconds(found[0][1]) < seconds(plan):
            plan = found[0][1]
        climbed.append(plan)
    return min(climbed, key=seconds)


# The verdict


@dataclass(frozen=True)
class Verdict:
    """What the planner says of one plan.

    given: the plan in words. error: why it is impossible; the rest is None then. seconds: a step's.
    parts: {name: seconds}. mfu: share of the GPU's dense peak in 16 bit. peak_bytes: of the fullest
    rank. slower: its seconds over those of the fastest, None where it does not fit. knob: the
    change that would help most.
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
        """What to look at first: the memory, else the largest part that is no useful compute.

        Where that part is small, compute is named before it.
        """
        if self.error:
            return f"impossible: {self.error}"
        if not self.fits:
            memory = self.task.cluster.gpu.memory
            return f"memory: {self.peak_bytes / GB:.1f} GB do not fit {memory / GB:.0f} GB"
        most = max((name for name in self.parts if name != "compute"), key=self.parts.get)
        compute, share = (self.parts[name] / self.seconds for name in ("compute", most))
        if share >= COUNTS:
            return f"{most}, {share:.0%} of the step"
        then = f"; then {most}, {share:.0%}" if share >= SHOWN else ""
        return f"compute, {compute:.0%} of the step{then}"

    @property
    def distance(self) -> str:
        """How far from the fastest, in words."""
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
    """The verdict on a reader's plan; an impossible one has an `error`, and nothing is raised."""
    words = described(knobs)
    try:
        plan = task.plan(knobs)
    except ValueError as problem:
        return Verdict(task, words, error=str(problem))
    found = task.predicted(plan)
    verdict = Verdict(
        task,
        words,
        seconds=found.seconds,
        parts=parts(plan, task),
        mfu=found.mfu,
        peak_bytes=found.peak_bytes,
        slower=found.seconds / task.predicted(best(task)).seconds if task.fits(plan) else None,
    )
    return verdict if verdict.accepted else replace(verdict, knob=change(plan, task))


def parts(plan: Plan, task: Task) -> dict[str, float]:
    """{part in words: seconds}; what recomputation adds is a part of its own."""
    found = task.predicted(plan).parts
    once = task.predicted(replace(plan, recompute="none")).parts["compute"]
    again = max(0.0, found["compute"] - once)
    named = {words: found[part] for part, words in planner.WORDS.items()}
    return {"compute": found["compute"] - again, AGAIN: again, **named}


# The board


def enter(who: str, task: str, **knobs) -> Verdict:
    """Judge a plan and put it on the board of a task under this name.

    An impossible plan is entered too, with its `error`. Raises KeyError for an unknown task, and
    PredictFirst while a question is open, if the course was started with that option.
    """
    wait_for_answers()
    verdict = judge(knobs, TASKS[task])
    boards.keep(LOGS / FILE, {"who": who, "task": task, "plan": verdict.given, "knobs": knobs})
    return verdict


def entered(task: str) -> list[tuple[str, Verdict]]:
    """(who, the verdict on the plan) of a task, those that fit first, the fastest first."""
    rows = [row for row in boards.entries(LOGS / FILE) if row["task"] == task]
    judged = [(row["who"], judge(row["knobs"], TASKS[task])) for row in rows]
    return sorted(judged, key=lambda pair: pair[1].seconds if pair[1].fits else math.inf)


def board(task: str) -> Table:
    """All plans that were entered for a task."""
    rows = [
        {
            "place": place if verdict.fits else None,
            "who": who,
            "plan": verdict.given,
            "seconds a step": verdict.seconds if verdict.fits else None,
            "times the fastest": verdict.slower,
            "MFU %": 100 * verdict.mfu if verdict.fits else None,
            "GB on a rank": verdict.peak_bytes and verdict.peak_bytes / GB,
            "limited by": verdict.limit,
        }
        for place, (who, verdict) in enumerate(entered(task), start=1)
    ]
    words = TASKS[task].words
    given = f"{words['GPUs']}, {words['network']}, {words['batch']}"
    return Table(rows, f"{task}: {given}; predicted by the planner")
