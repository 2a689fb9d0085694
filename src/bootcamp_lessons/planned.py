"""Plans for clusters that are not here: `planned.judge({"data": 256, "stage": 3}, task)`.

The planner predicts the reader's plan and the fastest one (plan_search.py): the verdict says how
far apart they are, what limits the plan, and which change would help. Nothing runs. No torch.
"""

from dataclasses import dataclass, replace

from bootcamp.plan import predict
from bootcamp.plan.hardware import GB
from bootcamp.plan.setting import Plan, check
from bootcamp_lessons.plan_search import Task, best, change, described, plan_of, predicted

AGAIN = "activations computed again"
COUNTS = 0.1  # a part that takes less of the step does not limit it


@dataclass(frozen=True)
class Verdict:
    """What the planner says of one plan.

    given: the plan in words. error: why it cannot be; then the rest is None. seconds: of a step.
    parts: {name: seconds}. mfu: share of the GPU's dense peak in 16 bit. peak_bytes: of the fullest
    rank. slower: seconds over those of the fastest. knob: the change that would help most.
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
        """Whether it can be, and the fullest rank has the memory."""
        return not self.error and self.peak_bytes <= self.task.cluster.gpu.memory

    @property
    def accepted(self) -> bool:
        """Whether it fits and is close enough to the fastest."""
        return self.fits and self.slower <= 1 + self.task.within

    @property
    def limit(self) -> str:
        """What to look at first: the memory, else the largest part that is no useful compute."""
        if self.error:
            return ""
        if not self.fits:
            memory = self.task.cluster.gpu.memory
            return f"memory: {self.peak_bytes / GB:.1f} GB do not fit {memory / GB:.0f} GB"
        most = max((name for name in self.parts if name != "compute"), key=self.parts.get)
        name = most if self.parts[most] >= COUNTS * self.seconds else "compute"
        return f"{name}, {self.parts[name] / self.seconds:.0%} of the step"

    @property
    def distance(self) -> str:
        """How far from the fastest, in words."""
        if self.slower >= 2:
            return f"{self.slower:.1f} times as long as the fastest"
        if self.slower < 0.9995:
            return f"{1 - self.slower:.1%} faster than any that the search has found"
        return f"{self.slower - 1:.1%} slower than the fastest"

    def __str__(self) -> str:
        if self.error:
            return f"Cannot be: {self.error}."
        if not self.fits:
            return f"Does not fit: {self.limit}. {self.knob}"
        said = f"{self.seconds:.2f} s a step, {self.distance}; MFU {self.mfu:.1%}, "
        said += f"{self.peak_bytes / GB:.1f} GB. Limited by {self.limit}."
        return f"{said} {self.knob}".strip()

    __repr__ = __str__


def judge(given: Plan | dict, task: Task) -> Verdict:
    """The verdict on a reader's plan. Raises nothing: one that cannot be has an `error`."""
    words = described(given)
    try:
        plan = plan_of(given, task)
        check(task.shape, task.cluster, plan)
    except ValueError as problem:
        return Verdict(task, words, error=str(problem))
    found = predicted(plan, task)
    verdict = Verdict(
        task,
        words,
        seconds=found.seconds,
        parts=parts(plan, task),
        mfu=found.mfu,
        peak_bytes=found.peak_bytes,
        slower=found.seconds / predicted(best(task), task).seconds,
    )
    return verdict if verdict.accepted else replace(verdict, knob=change(plan, task))


def parts(plan: Plan, task: Task) -> dict[str, float]:
    """{part in words: seconds}; what recomputation adds is apart from the useful compute."""
    found = predicted(plan, task).parts
    once = predicted(replace(plan, recompute="none"), task).parts["compute"]
    again = max(0.0, found["compute"] - once)
    named = {words: found[part] for part, words in predict.WORDS.items()}
    return {"compute": found["compute"] - again, AGAIN: again, **named}
