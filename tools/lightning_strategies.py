"""python tools/lightning_strategies.py

Starts Lightning's strategies by name, each as a program of its own on two CPU processes, and writes
what came of them to logs/reference/13b_known_programs/lightning.json: the largest distance of a
step's loss from `_train_ddp.py`, or the refusal in its own words. Lesson 13b shows the table. To
import Lightning takes 10 to 20 s for each process, so the suite reads the record.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import lightning
from torch.utils.data import DataLoader

from bootcamp import launch, machine
from bootcamp.experiments.replay import hide_own_folders
from bootcamp.paths import REFERENCE
from bootcamp.train import data, models, optimizers

RECORD = REFERENCE / "13b_known_programs" / "lightning.json"
STRATEGIES = (
    *("ddp", "ddp_spawn", "ddp_fork", "ddp_notebook", "fsdp"),
    *("deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3", "dp", "horovod"),
)
SETTINGS = {"model": "mlp", "steps": 4, "global_batch": 12, "optimizer": "sgd"}
ARGS = argparse.Namespace(size="tiny", seed=0, dtype="float32", lr=0.05, **SETTINGS)


class Training(lightning.LightningModule):
    """The course's loop as the methods that a Trainer calls; rank 0 writes what it saw to place."""

    def __init__(self, place: Path):
        super().__init__()
        self.model, self.place, self.losses = models.build(ARGS), place, []

    def train_dataloader(self):
        batches = data.Batches(ARGS, self.trainer.global_rank, self.trainer.world_size)
        return DataLoader(batches, batch_size=None, sampler=range(ARGS.steps))

    def configure_optimizers(self):
        return optimizers.build(ARGS, self.model.parameters())

    def training_step(self, batch, _):
        inputs, targets = batch
        return models.loss(self.model(inputs), targets)

    def on_train_batch_end(self, outputs, *_):
        self.losses.append(self.trainer.strategy.reduce(outputs["loss"]).item())

    def on_train_end(self):
        if self.trainer.global_rank == 0:
            found = {"processes": self.trainer.world_size, "losses": self.losses}
            self.place.write_text(json.dumps(found))


def train(strategy: str, place: Path) -> None:
    """Train with this strategy on two CPU processes, which Lightning starts itself."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_epochs=1,
        barebones=True,
        use_distributed_sampler=False,
    )
    trainer.fit(Training(place))


def outcome(strategy: str, bare: list[float]) -> dict:
    """What came of a strategy: processes and loss_apart where it ran, else its refusal."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "losses.json"
        command = [sys.executable, __file__, "--one", strategy, str(place)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if place.exists() and done.returncode == 0:
            found = json.loads(place.read_text())
            apart = max(abs(a - b) for a, b in zip(found["losses"], bare, strict=True))
            return {"name": strategy, "processes": found["processes"], "loss_apart": apart}
    said = re.split(r"^(?=[\w.]*(?:Error|Exception): )", done.stderr, flags=re.M)[-1]
    return {"name": strategy, "refusal": hide_own_folders(said.strip())}


def main() -> None:
    bare = launch("ddp", 2, device="cpu", quiet=True, **SETTINGS).losses
    rows = []
    for strategy in STRATEGIES:
        rows.append(outcome(strategy, bare))
        print(rows[-1], flush=True)
    found = {"machine": machine.describe(), "lightning": lightning.__version__, "rows": rows}
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(found).replace(', {"name', ',\n{"name') + "\n")  # a row a line


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        os.environ["OMP_NUM_THREADS"] = "1"
        train(sys.argv[2], Path(sys.argv[3]))
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        main()
