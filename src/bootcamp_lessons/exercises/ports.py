"""Exercises of lessons 02b and 05: port a script from Apex, or Horovod; it must train the same."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bootcamp.classroom.tasks import PATIENCE, Wrong
from bootcamp.experiments import equality
from bootcamp.launcher import launch
from bootcamp.paths import SRC
from bootcamp.records.runs import TOLERANCE
from bootcamp.scripts import strategies, variants
from bootcamp_lessons.ddp_practice import CLIPPED, STEP
from bootcamp_lessons.excerpts import parse_printed
from bootcamp_lessons.exercises.bring import PortTask

OPTIMIZER = "optimizer = optimizers.build(args, model.parameters())"
WATCH = SRC / "snippets" / "watch_backward.py"


def write_one_process_script(ranks: int) -> Path:
    """Write a script for one process that trains what horovod_scaled.py trains on `ranks` ranks."""
    scaled = f'for group in optimizer.param_groups:\n    group["lr"] *= {ranks}'
    changes = {OPTIMIZER: f"{OPTIMIZER}\n{scaled}", STEP: CLIPPED}
    return variants.variant("gpu", f"scaled_for_{ranks}_ranks", changes)


@dataclass(frozen=True, kw_only=True)
class LeaveTask(PortTask):
    """Port a script from a package, which need not be here.

    counterpart: writes what trains the same up to `near`, with SGD: AdamW hides a wrong scale.
    """

    leaves: str
    counterpart: Callable[[], Path]
    near: float

    def check_script(self, path: Path) -> str:
        """Run the script on `ranks` ranks and hold it against the counterpart. Raises Wrong too."""
        text = path.read_text()
        if re.search(rf"\b(import|from) {self.leaves.lower()}", text):
            raise Wrong("a script without it", f"it still imports {self.leaves}.")
        if "clip_grad_norm_" not in text:
            raise Wrong(f"the clipping that {self.leaves}'s script had", "it clips no gradients.")
        strategies.record_copy(path, "ddp" if self.ranks > 1 else "gpu")
        flags = {**equality.settings(self.ranks), "optimizer": "sgd", "quiet": True, **self.flags}
        run = launch.launch(path, self.ranks, options=PATIENCE, **flags)
        alone = launch.launch(self.counterpart(), 1, options=PATIENCE, **flags)
        says = f"it trains what {self.leaves}'s script trained, with SGD."
        return self.look_further(path, [equality.same_training(run, alone, self.near)], says)


def check_precision(path: Path, proofs: list[equality.Proof]) -> str:
    """Let a program watch two steps of the script: it says what is wrong, or ""."""
    watching = launch.launch(WATCH, 1, quiet=True, options=PATIENCE, file=path)
    return next((said["wrong"] for said in parse_printed(watching)), "")


TASKS = [
    LeaveTask(
        "from_apex",
        task="Exercise of notebook 02b: this script computes in mixed precision with Apex, at "
        "level O1 (fp16).\nPort it to torch.autocast and torch.amp.GradScaler. It clips as before.",
        begins_with="snippets/apex_loop.py",
        solution="snippets/amp_from_apex.py",
        leaves="Apex",
        counterpart=partial(variants.variant, "gpu", "gpu_clipped", {STEP: CLIPPED}),
        near=1e-3,
        flags={"global_batch": 4},  # CPUs are slow at fp16
        also=check_precision,
        hint="Five calls do what Apex's three did. Which one makes the gradients what "
        "clip_grad_norm_ has to see, and where does autocast end?",
        stronger="Within torch.autocast(device.type, dtype=torch.float16) model and loss, then "
        "scaler.scale(loss).backward(), unscale_(optimizer), clip, step(optimizer), update().",
    ),
    LeaveTask(
        "from_horovod",
        task="Exercise of notebook 05: port this Horovod script to DistributedDataParallel.\n"
        "It must go on training the same, with the same learning rate and the same clipping.",
        begins_with="snippets/horovod_scaled.py",
        solution="snippets/ddp_from_horovod.py",
        ranks=2,
        leaves="Horovod",
        counterpart=partial(write_one_process_script, 2),
        near=TOLERANCE,
        errors={
            "name 'hvd' is not defined": "A line still calls Horovod: see the porting table.",
            "no attribute 'synchronize'": "Horovod's: DDP has averaged when backward() returns.",
            "no attribute 'skip_synchronize'": "Horovod's: DDP's step() averages nothing anyway.",
        },
        hint="Go through the porting table row by row. Which of Horovod's lines have no "
        "counterpart, and which factor was never Horovod's own?",
        stronger="dist.init_process_group(context.backend, timeout=context.timeout); rank and "
        "world from dist; DistributedDataParallel(model) before the optimizer; world in place of "
        "hvd.size() at the rate; clip behind backward(); divide the loss before dist.all_reduce.",
    ),
]
