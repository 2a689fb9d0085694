"""Exercises of lesson 14: compose a strategy within limits. The answer is a plan, a dictionary."""

from dataclasses import dataclass

from bootcamp.classroom.tasks import NotTried, Shown, Task
from bootcamp_lessons import capstone


@dataclass(frozen=True)
class PlanTask(Task):
    """A plan that trains the same and stays within `most_bytes` on each rank."""

    most_bytes: int
    solution: str

    def attempt(self, given) -> str:
        """Run the reader's plan. Raises Wrong."""
        if given is None:
            raise NotTried("your plan as the second argument", "no plan")
        run = capstone.tried(capstone.plan(given), self.most_bytes)
        held = capstone.rank_bytes(run) / 1e6
        return (
            f"the same training, {held:.1f} MB on the fullest rank of "
            f"{self.most_bytes / 1e6:.1f}, {run.tokens_per_second:,.0f} tokens/s."
        )

    def solution_shown(self) -> Shown:
        """One plan that fits; there are others."""
        return Shown(f'exercise.check("{self.name}", {self.solution})')


TASKS = [
    PlanTask(
        "capstone_fits",
        task="Four ranks on two hosts, at most 16.5 MB on each: a plan that trains the same.",
        hint="Look at what a DDP rank holds, by kind. Which kinds does your plan make smaller?",
        stronger="Any strategy fits that shards parameters, gradients and optimizer state, if it "
        "leaves a rank a quarter of the batch. So does one that cuts the layers.",
        most_bytes=capstone.MOST_BYTES,
        solution='{"script": "hsdp", "shard": 2}',
    ),
    PlanTask(
        "capstone_small",
        task="The same with at most 10 MB on each rank.",
        hint="With a quarter of the batch on each rank the activations alone are too many. Which "
        "strategy cuts them too?",
        stronger="A pipeline's rank holds the activations of its own layers only, and of as many "
        "micro-batches as are under way: smaller ones help. Data parallel times pipeline fits too.",
        most_bytes=10_000_000,
        solution='{"script": "pp", "micro_batches": 8}',
    ),
]
