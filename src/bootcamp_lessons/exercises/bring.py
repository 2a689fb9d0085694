"""Exercises of lesson 13: port a script that is not of the course."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from bootcamp.classroom.tasks import PATIENCE, ScriptTask, replace_docstring
from bootcamp.experiments import equality
from bootcamp.launcher import launch
from bootcamp.paths import SRC
from bootcamp.records.runs import Run
from bootcamp_lessons.exercises.training_scripts import check_sharded

FOLDER = SRC / "snippets" / "bring"
PROOF = {"dropout": 0.0, "flip": 0.0, "freeze": True, "quiet": True}


@dataclass(frozen=True)
class PortTask(ScriptTask):
    """Port begins_with, with pieces of it `broken`, to ranks; it must train as one process."""

    begins_with: str = ""
    broken: dict[str, str] = field(default_factory=dict)

    def starting_point(self) -> str:
        text = (SRC / self.begins_with).read_text()
        for right, wrong in self.broken.items():
            text = text.replace(right, wrong)
        return replace_docstring(text, self.task)

    def solution_path(self) -> Path:
        return SRC / self.solution

    def check_script(self, path: Path) -> str:
        """Run the script on `ranks` ranks and compare it with one process."""
        run = launch.launch(path, self.ranks, options=PATIENCE, **PROOF)
        says = f"{self.ranks} ranks train what one process trains."
        return self.look_further(path, [equality.same_training(run, run_one_process())], says)


@cache
def run_one_process() -> Run:
    """Run the recorded script in one process, once in a kernel."""
    return launch.launch(FOLDER / "recorded.py", 1, **PROOF)


TASKS = [
    PortTask(
        "bring_evaluation",
        task="Exercise of notebook 13: this script trains as one process does, but its validation "
        "loss is\nwrong. Evaluate so that each of the 41 samples counts once, and equally.",
        begins_with="snippets/bring/with_ddp.py",
        broken={
            "valid_loader = DataLoader(Subset(valid, range(rank, len(valid), world)), "
            "args.batch_size)": "valid_sampler = DistributedSampler(valid, world, rank, "
            "shuffle=False)\nvalid_loader = DataLoader(valid, args.batch_size, "
            "sampler=valid_sampler)",
            ', reduction="sum")': ")",
            "total.item() / len(valid)": "total.item() / (world * len(valid_loader))",
        },
        solution="snippets/bring/with_ddp.py",
        ranks=2,
        hint="There are two faults. 41 samples and two ranks: how many does the sampler deal out? "
        "And which samples weigh more in a mean of the means of batches?",
        stronger="Subset(valid, range(rank, len(valid), world)) deals each sample out once. Add up "
        'reduction="sum" over the batches, all-reduce, and divide by len(valid) once.',
    ),
    PortTask(
        "bring_fsdp",
        task="Exercise of notebook 13: this script trains with DDP. Shard its parameters, "
        "gradients and optimizer\nstate with fully_shard, and save all of the model still.",
        begins_with="snippets/bring/with_ddp.py",
        solution="snippets/bring/with_fsdp.py",
        ranks=2,
        also=check_sharded,
        errors={
            "got mixed torch.Tensor and DTensor": "Some parameters are shards and some are not, "
            "and their norms do not add up. fully_shard(model), last, takes those that are left."
        },
        hint="fully_shard takes the place of DistributedDataParallel. What is one unit of it here? "
        "The optimizer must see the parameters that it leaves. And a state dict has shards then.",
        stronger="Call fully_shard on each nn.Conv2d and nn.Linear of the model, then on the "
        "model, all before the optimizer is built; train with model itself. get_model_state_dict("
        "model, options=StateDictOptions(full_state_dict=True)) on every rank before rank 0 saves.",
    ),
]
