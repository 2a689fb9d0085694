"""The fastest plan for a task, and what one change would give: `best(task)`, `change(plan, task)`.

A task is a model, a cluster and a batch; the reader chooses the rest of the plan. The planner
(bootcamp.plan) predicts each plan, so the search takes a second. Imports no torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import permutations

from bootcamp.costs import advise, memory, predict, stacks
from bootcamp.costs.hardware import GB, Cluster
from bootcamp.costs.model_shapes import Model
from bootcamp.costs.rows import Workload
from bootcamp.costs.setting import RECOMPUTE, Plan, check

AXES = ("tensor", "context", "data", "pipeline")
# what a reader chooses; the task gives the rest, such as the batch
KNOBS = (*AXES, "stage", "shard", "micro_batch", "virtual", "recompute", "keep_gathered")
HELPS = 0.99  # a change that leaves more of the seconds is none
SEEDS = 12  # plans of different meshes from which the search climbs


@dataclass(frozen=True)
class Task:
    """A model to train on a cluster, `batch` samples a step.

    given: what of a Plan the task decides beside the batch. within: how much slower than the
    fastest an answer may be: the planner is no closer to the truth.
    """

    name: str
    model: str
    shape: Model
    cluster: Cluster
    batch: int
    given: tuple[tuple[str, object], ...] = (("compiled", True),)
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


def plan_of(given: Plan | dict, task: Task) -> Plan:
    """The plan that a reader names, with what the task gives. Raises ValueError."""
    fixed = {"batch": task.batch, **dict(task.given)}
    if isinstance(given, Plan):
        usual = Plan(**fixed, sequence=given.tensor > 1)
        names = [field.name for field in fields(Plan)]
        turned = {name: getattr(given, name) for name in names}
        given = {name: value for name, value in turned.items() if value != getattr(Plan, name)}
        given = {n: v for n, v in given.items() if n in KNOBS or v != getattr(usual, n)}
    if not isinstance(given, dict):
        raise ValueError(f'{given!r}: expected a plan such as {{"tensor": 8, "data": 32}}')
    if others := [str(name) for name in given if name not in KNOBS]:
        raise ValueError(f"{', '.join(others)}: not yours to choose; the knobs: {', '.join(KNOBS)}")
    for name, value in given.items():
        usual = getattr(Plan, name)
        if type(value) is not type(usual):
            raise ValueError(f"{name}={value!r}: expected a value such as {usual!r}")
    for name in ("shard", "keep_gathered"):
        if given.get(name) and given.get("stage") != 3:
            raise ValueError(f"{name}={given[name]}: for stage 3 alone, which shards parameters")
    plan = Plan(**fixed, **given)
    return replace(plan, sequence=plan.tensor > 1)


def turned(plan: Plan) -> dict:
    """A plan's knobs that are not as usual: {"data": 256, "stage": 3}."""
    values = {name: getattr(plan, name) for name in KNOBS}
    return {name: value for name, value in values.items() if value != getattr(Plan, name)}


def described(given: Plan | dict) -> str:
    """A plan in a few words: "tensor 2, data 128, stage 3"."""
    given = turned(given) if isinstance(given, Plan) else given
    if not isinstance(given, dict):
        return repr(given)
    said = [str(name) if value is True else f"{name} {value}" for name, value in given.items()]
    return ", ".join(said).replace("_", "-") or "nothing"


@cache
def predicted(plan: Plan, task: Task) -> predict.Answer:
    """The planner's answer, with the constants of a stack never seen."""
    return predict.answer(Workload("", task.cluster, plan, task.shape))


def held(plan: Plan, task: Task) -> float:
    """Bytes at the peak; infinite for an impossible plan."""
    try:
        check(task.shape, task.cluster, plan)
    except ValueError:
        return float("inf")
    return memory.peak(task.shape, plan, stacks.constants("", task.cluster.gpu.name).reserved)


def fits(plan: Plan, task: Task) -> bool:
    """Whether a plan is possible, and its fullest rank has the memory."""
    return held(plan, task) <= task.cluster.gpu.memory


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
    turned = [name for name in KNOBS if getattr(changed, name) != getattr(plan, name)]
    said = [f"{name} {getattr(plan, name)} to {getattr(changed, name)}" for name in turned]
    return " with ".join(said).replace("_", "-"), changed


def near(plan: Plan, task: Task) -> list[tuple[str, Plan]]:
    """The single changes that fit, the fastest first."""
    fitting = [(said, one) for said, one in changes(plan) if said and fits(one, task)]
    return sorted(fitting, key=lambda pair: predicted(pair[1], task).seconds)


@cache
def change(plan: Plan, task: Task) -> str:
    """The change that helps most: the fastest that fits; two, where no single one helps.

    plan: a possible one. Where nothing fits, the change that saves most memory.
    """
    fitting = fits(plan, task)
    now = predicted(plan, task).seconds if fitting else float("inf")
    one = near(plan, task)
    two = ((f"{a}, and {b}", last) for a, first in changes(plan) for b, last in near(first, task))
    for words, found in (("One change", one), ("Two changes", two)):
        times = ((predicted(changed, task).seconds, said) for said, changed in found)
        seconds, said = min(times, default=(now, ""))
        if seconds <= HELPS * now and said:
            return f"{words}: {said}, then {seconds:.2f} s."
    if fitting:
        return "No two changes make it faster: begin with another split of the GPUs."
    least, said = min((held(changed, task), said) for said, changed in changes(plan))
    return f"No two changes make it fit. Nearest: {said}, then {least / GB:.1f} GB."


@cache
def best(task: Task) -> Plan:
    """Search for the fastest plan.

    From the fastest candidates of some meshes, follow single changes for as long as one makes the
    plan faster. Raises ValueError where nothing fits.
    """

    def seconds(plan: Plan) -> float:
        return predicted(plan, task).seconds

    plans = advise.candidates(task.shape, task.cluster, task.batch, contexts=True)
    meshes = {}
    for plan in sorted((plan for plan in plans if fits(plan, task)), key=seconds):
        meshes.setdefault((plan.tensor, plan.context, plan.pipeline), plan)
    if not meshes:
        raise ValueError(f"{task.name}: no plan fits {task.cluster.gpu.name}")
    return min((_climbed(plan, task) for plan in [*meshes.values()][:SEEDS]), key=seconds)


def _climbed(plan: Plan, task: Task) -> Plan:
    while found := near(plan, task):
        if predicted(found[0][1], task).seconds >= predicted(plan, task).seconds:
            break
        plan = found[0][1]
    return plan
