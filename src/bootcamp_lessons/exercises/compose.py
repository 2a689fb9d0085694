"""Exercises of lesson 14: compose a plan within limits, which runs here or is predicted."""

import json
from dataclasses import dataclass

from bootcamp.classroom.tasks import NotTried, PythonSource, Task, Wrong
from bootcamp_lessons import capstone, plan_contest

MARGIN = 0.1


@dataclass(frozen=True)
class PlanTask(Task):
    """A plan within max_bytes; reckoned: states_mb and activations_mb are to be given too."""

    max_bytes: int
    solution: str
    reckoned: bool = False

    def attempt(self, given) -> str:
        if given is None:
            raise NotTried("your plan as the second argument", "no plan")
        reckoned = dict.fromkeys(("states_mb", "activations_mb") if self.reckoned else ())
        if isinstance(given, dict):
            reckoned = {key: given.get(key) for key in reckoned}
            given = {name: value for name, value in given.items() if name not in reckoned}
        chosen = capstone.parse_plan(given)
        if missing := [key for key, mb in reckoned.items() if not isinstance(mb, int | float)]:
            reckoning = "with the plan what its fullest rank holds, by your own reckoning"
            raise Wrong(reckoning, f"no number for {' and '.join(missing)}")
        run = capstone.try_plan(chosen, self.max_bytes)
        for key, mb in reckoned.items():
            kind = key.removesuffix("_mb")
            counted = capstone.count_states_and_activations(run)[kind] / 1e6
            if abs(mb - counted) > MARGIN * counted:  # the counted number is not given away
                says = (
                    f"what the fullest rank holds, to {MARGIN:.0%}: it must say why the plan fits"
                )
                much = "much" if mb > counted else "little"
                raise Wrong(says, f"{kind}: {mb:g} MB is too {much}")
        held, most = capstone.count_fullest_rank_bytes(run) / 1e6, self.max_bytes / 1e6
        speed = f"{run.tokens_per_second:,.0f} tokens/s"
        return f"the same training, {held:.1f} MB on the fullest rank of {most:.1f}, {speed}."

    def solution_text(self) -> PythonSource:
        return PythonSource(f'exercise.check("{self.name}", {self.solution})')


@dataclass(frozen=True)
class PlannedTask(Task):
    """A plan for a cluster that is not here, nearly as fast as the planner's fastest."""

    given: plan_contest.Task

    def attempt(self, given) -> str:
        if given is None:
            raise NotTried("your plan as the second argument", "no plan")
        verdict = plan_contest.judge(given, self.given)
        if verdict.error:
            raise Wrong("a possible plan", verdict.error)
        if not verdict.fits:
            raise Wrong("a plan that fits on each rank", verdict.limit, verdict.knob)
        if not verdict.accepted:
            expected = f"a plan that is at most {self.given.within:.0%} slower than the fastest"
            seen = f"{verdict.given}: {verdict.seconds:.2f} s a step, {verdict.distance}"
            raise Wrong(expected, f"{seen}, limited by {verdict.limit}", verdict.knob)
        return str(verdict)

    def solution_text(self) -> PythonSource:
        best = json.dumps(plan_contest.changed_knobs(plan_contest.find_best(self.given)))
        return PythonSource(f'exercise.check("{self.name}", {best})')


TASKS = [
    PlanTask(
        "capstone_fits",
        task="Four ranks on two hosts, at most 16.5 MB on each: a plan that trains the same, with "
        "states_mb and activations_mb of its fullest rank, to 10 %.",
        hint="What does a DDP rank hold of each kind? Which does your plan divide, by how many?",
        stronger="DDP's states are 16 bytes for each of 335,360 parameters. HSDP divides them by "
        "the ranks of a row, FSDP by all; neither changes the activations of a rank's 8 samples.",
        max_bytes=capstone.MAX_BYTES,
        solution='{"script": "hsdp", "shard": 2, "states_mb": 2.7, "activations_mb": 13.5}',
        reckoned=True,
    ),
    PlanTask(
        "capstone_small",
        task="The same with at most 10 MB on each rank; the plan alone.",
        hint="With a quarter of the batch the activations alone are too many. What cuts them?",
        stronger="A pipeline's rank holds the activations of its own layers only, and of as many "
        "micro-batches as are under way: smaller ones help. Data parallel times pipeline fits too.",
        max_bytes=10_000_000,
        solution='{"script": "pp", "micro_batches": 8}',
    ),
    PlannedTask(
        "planned_slow",
        task="The task `slow`: the same model and GPUs on a network 32 times slower.",
        hint="What crosses the network once a step, with each micro-batch, in each layer?",
        stronger="A pipeline sends least, ZeRO-1 sends its shards once a step. Few tensor ranks.",
        given=plan_contest.TASKS["slow"],
    ),
    PlannedTask(
        "planned_long",
        task="The task `long`: the same model and GPUs, sequences 16 times longer.",
        hint="What fills the memory now? Which axes divide it, and which of them sends least?",
        stronger="There are 64 sequences for 256 GPUs, so several GPUs share a sequence. `context` "
        "cuts it into parts and sends only keys and values. The states still need shards.",
        given=plan_contest.TASKS["long"],
    ),
]
