"""Exercises of lesson 13: a script that is not of the course is ported, step by step."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bootcamp.classroom.script_task import PATIENCE, ScriptTask, with_docstring, worst_loss
from bootcamp.experiments import equality
from bootcamp.launcher import launch
from bootcamp.paths import SRC
from bootcamp.records.runs import Run
from bootcamp_lessons.exercises.training_scripts import something_is_whole

FOLDER = SRC / "snippets" / "bring"
NO_DROPOUT = {"dropout": 0.0, "quiet": True}


@dataclass(frozen=True)
class PortTask(ScriptTask):
    """Move a foreign script to ranks. begins_with and solution are files of FOLDER; the reader's
    script is held against recorded.py in one process.
    """

    begins_with: str = ""

    def starting_point(self) -> str:
        """The text that the reader starts from."""
        return with_docstring((FOLDER / self.begins_with).read_text(), self.task)

    def solved(self) -> Path:
        """A script that solves it."""
        return FOLDER / self.solution

    def tried(self, path: Path) -> str:
        """Run the script on `ranks` ranks and hold it against one process without ranks."""
        run = launch.launch(path, self.ranks, options=PATIENCE, **NO_DROPOUT)
        proof = equality.same_training(run, one_process())
        self.look_further(path, [proof])
        return (
            f"{self.ranks} ranks train what one process trains. "
            f"The largest difference of any step's loss is {worst_loss([proof]):.1e}."
        )


@cache
def one_process() -> Run:
    """The recorded script in one process, run once in a kernel."""
    return launch.launch(FOLDER / "recorded.py", 1, **NO_DROPOUT)


TASKS = [
    PortTask(
        "bring_ddp",
        task="Exercise of notebook 13: this script trains in one process. Make it train on several "
        "ranks with DDP.\nThe samples of a step, all ranks together, must stay what they are.",
        begins_with="recorded.py",
        solution="with_ddp.py",
        ranks=2,
        hint="Four places: join a process group, take rank and world from it, wrap the model, "
        "and average the loss over the ranks before it is recorded.",
        stronger='dist.init_process_group("gloo") before rank and world, which then come from '
        "dist.get_rank() and dist.get_world_size(). DistributedDataParallel(SpiralNet(...)) before "
        "the optimizer. dist.all_reduce(mean_loss), where mean_loss is the loss divided by world.",
    ),
    PortTask(
        "bring_fsdp",
        task="Exercise of notebook 13: this script trains with DDP. Shard its parameters, "
        "gradients and optimizer\nstate with fully_shard.",
        begins_with="with_ddp.py",
        solution="with_fsdp.py",
        ranks=2,
        also=something_is_whole,
        hint="fully_shard takes the place of DistributedDataParallel. What is one unit of it here? "
        "The optimizer must see the parameters that it leaves.",
        stronger="Call fully_shard on each nn.Linear in model.layers, then on the model, both "
        "before the optimizer is built.",
    ),
]
