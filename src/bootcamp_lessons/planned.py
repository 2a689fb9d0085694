"""Plans for clusters that are not here: `planned.judge({"tensor": 8, "data": 32}, task)`.

The planner predicts the reader's plan and the fastest one (plan_search.py): the verdict says how
far apart they are, what limits the plan, and which change would help. `planned.enter("me", "slow",
tensor=8, data=32)` puts it on the board of one of TASKS, `planned.board("slow")` ranks them.
Nothing runs. Imports no torch.
"""

import contextlib
from dataclasses import dataclass, replace

from bootcamp.classroom.predict import wait_for_answers
from bootcamp.costs import model_shapes, predict
from bootcamp.costs.hardware import GB, Cluster, gpu
from bootcamp.costs.setting import Plan, check
from bootcamp.files import read_json, update_json
from bootcamp.paths import LOGS
from bootcamp.table import Table
from bootcamp_lessons.plan_search import Task, best, change, described, fits, plan_of, predicted

AGAIN = "activations computed again"
FILE = "planned.json"
COUNTS = 0.1  # a part that takes less of the step does not limit it by itself
SHOWN = 0.01


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
            return ""
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
        said = f"{self.seconds:.2f} s a step, {self.distance}; MFU {self.mfu:.1%}, "
        said += f"{self.peak_bytes / GB:.1f} GB. Limited by {self.limit}."
        return f"{said} {self.knob}".strip()

    __repr__ = __str__


def judge(given: Plan | dict, task: Task) -> Verdict:
    """The verdict on a reader's plan; an impossible one has an `error`, and nothing is raised."""
    words = described(given)
    try:
        plan = plan_of(given, task)
        check(task.shape, task.cluster, plan)
    except ValueError as problem:
        return Verdict(task, words, error=str(problem))
    found = predicted(plan, task)
    fastest = predicted(best(task), task).seconds if fits(plan, task) else None
    verdict = Verdict(
        task,
        words,
        seconds=found.seconds,
        parts=parts(plan, task),
        mfu=found.mfu,
        peak_bytes=found.peak_bytes,
        slower=fastest and found.seconds / fastest,
    )
    return verdict if verdict.accepted else replace(verdict, knob=change(plan, task))


def parts(plan: Plan, task: Task) -> dict[str, float]:
    """{part in words: seconds}; what recomputation adds is apart from the useful compute."""
    found = predicted(plan, task).parts
    once = predicted(replace(plan, recompute="none"), task).parts["compute"]
    again = max(0.0, found["compute"] - once)
    named = {words: found[part] for part, words in predict.WORDS.items()}
    return {"compute": found["compute"] - again, AGAIN: again, **named}


def enter(who: str, task: str, **knobs) -> Verdict:
    """Judge a plan and put it on the board of a task under this name.

    An impossible plan is entered too, with its `error`. Raises KeyError for an unknown task, and
    PredictFirst while a question is open, if the course was started with that option.
    """
    wait_for_answers()
    verdict = judge(knobs, TASKS[task])
    row = {"who": who, "task": task, "knobs": {name: _plain(knobs[name]) for name in knobs}}

    def add(kept: dict) -> None:
        kept["entries"] = [*(old for old in kept.get("entries", []) if old != row), row]

    with contextlib.suppress(OSError):
        update_json(LOGS / FILE, add)
    return verdict


def _plain(value):
    return value if isinstance(value, int | float | str) else repr(value)


def entered(task: str) -> list[tuple[str, Verdict]]:
    """(who, the verdict on the plan) of a task, those that fit first, the fastest first."""
    kept = read_json(LOGS / FILE).get("entries")
    rows = [row for row in kept if row["task"] == task] if isinstance(kept, list) else []
    judged = [(row["who"], judge(row["knobs"], TASKS[task])) for row in rows]
    return sorted(judged, key=lambda pair: pair[1].seconds if pair[1].fits else float("inf"))


def board(task: str) -> Table:
    """All plans that were entered for a task."""
    rows = [
        {
            "place": place if verdict.fits else None,
            "who": who,
            "plan": verdict.given,
            "seconds a step": verdict.seconds if verdict.fits else None,
            "times the fastest": verdict.slower if verdict.fits else None,
            "MFU %": 100 * verdict.mfu if verdict.fits else None,
            "GB on a rank": verdict.peak_bytes and verdict.peak_bytes / GB,
            "limited by": verdict.limit or f"impossible: {verdict.error}",
        }
        for place, (who, verdict) in enumerate(entered(task), start=1)
    ]
    words = TASKS[task].words
    given = f"{words['GPUs']}, {words['network']}, {words['batch']}"
    return Table(rows, f"{task}: {given}; predicted by the planner")
