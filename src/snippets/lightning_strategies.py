"""python src/snippets/lightning_strategies.py

Train with Lightning's strategies by name, on CPU ranks that the Trainer itself starts. Prints a
line for each and for SGD and AdamW: how far the losses are from those of one process without
Lightning. Or the refusal, in its own words.
"""

import argparse
import json
import os
from datetime import timedelta

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader

from bootcamp.train import data, models, optimizers

AGAIN, HALF = "ddp", "ddp, num_nodes=2"
# The forks first: a process that has trained, as this one does with *ddp*, can't be forked.
NAMES = ["ddp_fork", "ddp_notebook", "fsdp", "deepspeed_stage_1", "deepspeed_stage_2"]
NAMES += ["deepspeed_stage_3", "dp", "horovod", AGAIN, HALF]
# A fork keeps one thread: a pool of them would wait for the others forever.
torch.set_num_threads(1)
# What says that a process is a rank already. A Trainer that finds it starts no ranks.
MARKS = ("LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")
args = argparse.Namespace(model="mlp", size="tiny", dtype="float32", seed=0)
args.steps, args.global_batch = 4, 12


class Training(lightning.LightningModule):
    """What a Trainer calls. It asks for the data when the rank is known."""

    def __init__(self, name):
        super().__init__()
        self.model, self.name, self.losses = models.build(args), name, []

    def train_dataloader(self):
        batches = data.Batches(args, self.trainer.global_rank, self.trainer.world_size)
        return DataLoader(batches, batch_size=None, sampler=range(args.steps))

    def configure_optimizers(self):
        return optimizers.build(args, self.model.parameters())

    def training_step(self, batch, _):
        inputs, targets = batch
        return models.loss(self.model(inputs), targets)

    def on_train_batch_end(self, outputs, *_):
        self.losses.append(self.trainer.strategy.reduce(outputs["loss"]).item())

    def on_train_end(self):
        if self.trainer.global_rank == 0:
            apart = max(abs(a - b) for a, b in zip(self.losses, train_alone(), strict=True))
            found = {"name": self.name, "processes": self.trainer.world_size, "loss_apart": apart}
            print(json.dumps(found | {"optimizer": args.optimizer}), flush=True)


def train_alone():
    """Return the losses of one process with the whole batch."""
    model, batches, losses = models.build(args), data.Batches(args, 0, 1), []
    optimizer = optimizers.build(args, model.parameters())
    for step in range(args.steps):
        inputs, targets = batches[step]
        optimizer.zero_grad()
        loss = models.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train(name):
    # DeepSpeed's refuses when it has started a second rank, which would wait for this one.
    how = {"strategy": name, "devices": 1 if "deepspeed" in name else 2}
    if name == HALF:  # the other host never comes: by default Lightning waits for half an hour
        how = {"strategy": DDPStrategy(timeout=timedelta(seconds=1)), "devices": 1, "num_nodes": 2}
    for args.optimizer, args.lr in (("sgd", 0.05), ("adamw", 1e-3)):
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=1,
            barebones=True,
            use_distributed_sampler=False,
            **how,
        )
        trainer.fit(Training(name))


if __name__ == "__main__":
    # *ddp* runs this command line again for its second rank.
    is_second = "NODE_RANK" in os.environ
    for name in [AGAIN] if is_second else NAMES:
        for mark in () if is_second else MARKS:
            os.environ.pop(mark, None)
        try:
            train(name)
        except Exception as refusal:
            said = f"{type(refusal).__name__}: {refusal}"
            print(json.dumps({"name": name, "refusal": said}), flush=True)
        if dist.is_initialized():
            dist.destroy_process_group()
