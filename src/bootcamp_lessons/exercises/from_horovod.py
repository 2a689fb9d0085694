"""Exercise of lesson 05: port a Horovod script to DDP, so that it trains the same."""

from dataclasses import dataclass
from pathlib import Path

from bootcamp.classroom.tasks import PATIENCE, Wrong
from bootcamp.experiments import equality
from bootcamp.launcher import launch
from bootcamp.scripts import strategies, variants
from bootcamp_lessons.exercises.bring import PortTask

IMPORT = "from bootcamp.train import checkpoint, config, data, models, optimizers, record"
OPTIMIZER = "optimizer = optimizers.build(args, model.parameters())"
STEP = "optimizer.step()"
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)"


def write_one_process_script(ranks: int) -> Path:
    """Write a script for one process that trains what horovod_scaled.py trains on `ranks` ranks."""
    scaled = f'for group in optimizer.param_groups:\n    group["lr"] *= {ranks}'
    changes = {
        IMPORT: f"import torch\n\n{IMPORT}",
        OPTIMIZER: f"{OPTIMIZER}\n{scaled}",
        STEP: f"{CLIP}\n{STEP}",
    }
    return variants.variant("cpu", f"scaled_for_{ranks}_ranks", changes)


@dataclass(frozen=True)
class FromHorovod(PortTask):
    """Port a Horovod script to DDP; it is compared with its counterpart in one process.

    With SGD, since AdamW would hide gradients of a wrong scale. No Horovod is needed.
    """

    def check_script(self, path: Path) -> str:
        """Run the script on `ranks` ranks and hold it against the counterpart. Raises Wrong too."""
        text = path.read_text()
        if "import horovod" in text:
            raise Wrong("a script that torchrun starts", "it still imports Horovod.")
        if "clip_grad_norm_" not in text:
            raise Wrong("the clipping that the Horovod script had", "it clips no gradients.")
        strategies.record_copy(path, "ddp")
        flags = {**equality.settings(self.ranks), "optimizer": "sgd", "quiet": True}
        run = launch.launch(path, self.ranks, options=PATIENCE, **flags)
        alone = launch.launch(write_one_process_script(self.ranks), 1, options=PATIENCE, **flags)
        says = f"{self.ranks} ranks of DDP train what the Horovod script trained, with SGD."
        return self.look_further(path, [equality.same_training(run, alone)], says)


TASKS = [
    FromHorovod(
        "from_horovod",
        task="Exercise of notebook 05: port this Horovod script to DistributedDataParallel.\n"
        "It must go on training the same, with the same learning rate and the same clipping.",
        begins_with="snippets/horovod_scaled.py",
        solution="snippets/ddp_from_horovod.py",
        ranks=2,
        errors={
            "name 'hvd' is not defined": "A line still calls Horovod: see the porting table.",
            "no attribute 'synchronize'": "optimizer.synchronize() was Horovod's. DDP has averaged "
            "the gradients when backward() returns, so clip them at once.",
            "no attribute 'skip_synchronize'": "optimizer.skip_synchronize() was Horovod's. Under "
            "DDP optimizer.step() averages nothing: call it as usual.",
        },
        hint="Go through the porting table row by row. Which of Horovod's lines have no "
        "counterpart, and which factor was never Horovod's own?",
        stronger="dist.init_process_group(context.backend, timeout=context.timeout); rank and "
        "world from dist; DistributedDataParallel(model) before the optimizer; the lines on "
        'group["lr"] stay, with world in place of hvd.size(); clip between backward() and step(); '
        "divide the loss by world before dist.all_reduce.",
    )
]
