"""The course's record for a training script that is not the course's: yours.

A script with its own model, data and flags needs six lines to be held against its baseline:

    run_dir = external.begin()                         # before its own flags are parsed
    sampler = external.Noted(sampler, batch_size)      # around the sampler of its DataLoader
    run = external.Run(run_dir, model, optimizer, sampler, world, steps)
    with run.step():                                   # around each optimizer step
    run.loss(mean_loss)                                # behind that block
    run.finish()

Then `check.same_training(launch("mine_ddp.py", 2), launch("mine.py", 1))` compares every loss, the
samples of each rank and the final parameters. Lesson 13 goes through it. Rank side: needs torch.
"""

import argparse
import datetime
import sys
from collections import deque
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from bootcamp.train import config, process_group, record, run_folder
from bootcamp.train.context import RunContext


def begin() -> Path:
    """The folder for the record: as --run-dir says, else the launcher's, else a new one.

    Takes that flag from the command line, so that the script's own parser does not see it.
    """
    given = None
    if "--run-dir" in sys.argv:
        place = sys.argv.index("--run-dir")
        _, given = sys.argv[place : place + 2]
        del sys.argv[place : place + 2]
    return run_folder.find(given)


class Noted(torch.utils.data.Sampler):
    """A sampler that notes which samples it deals out, for the record.

    sampler: any that yields single ids, such as DistributedSampler. batch_size: of the DataLoader
    on this rank, which must drop an incomplete last batch. Each `sample_ids` is the next batch's:
    they wait in order, so a DataLoader may fetch ahead.
    """

    def __init__(self, sampler, batch_size: int):
        self.sampler, self.batch_size = sampler, batch_size
        self._dealt = deque()

    def __iter__(self):
        self._dealt.clear()  # what was fetched ahead in an epoch that was left early
        for sample_id in self.sampler:
            self._dealt.append(int(sample_id))
            yield sample_id

    def __len__(self) -> int:
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Pass it on: without it DistributedSampler deals every epoch alike."""
        self.sampler.set_epoch(epoch)

    @property
    def sample_ids(self) -> list[int]:
        """The ids of the next batch that was dealt out and not asked for yet.

        Raises RuntimeError where there is none.
        """
        if len(self._dealt) < self.batch_size:
            raise RuntimeError(
                f"this step has no {self.batch_size} samples that the Noted sampler dealt out. "
                f"Give DataLoader(..., {self.batch_size}, sampler=the Noted one, "
                "drop_last=True), and have one `with run.step():` for each of its batches."
            )
        return [self._dealt.popleft() for _ in range(self.batch_size)]


class Run(record.Run):
    """As record.Run, for any model. Rank 0 writes config.json and steps.jsonl into `run_dir`.

    sampler: the Noted one. world: the number of ranks. steps: how many there will be.
    settings: what two runs must share to be compared, such as lr=0.05 or optimizer="sgd".
    A CPU rank trains on one core, as everywhere in this course.

    A folder that can't be used ends the process with exit code 2 and one sentence.
    """

    def __init__(
        self, run_dir: Path, model, optimizer, sampler: Noted, world: int, steps: int, **settings
    ):
        if not isinstance(sampler, Noted):
            raise TypeError(
                f"external.Run got a {type(sampler).__name__} as its sampler: give it "
                "external.Noted(sampler, batch_size), the same object as the DataLoader has."
            )
        kind = type(optimizer).__name__.lower()
        flags = {"model": "own", "optimizer": kind, "steps": steps, "cores_per_rank": 1}
        flags |= {"global_batch": sampler.batch_size * world, "trace_step": None, "resume": None}
        context = RunContext(
            args=argparse.Namespace(**flags | settings),
            devices=[str(next(model.parameters()).device)],
            backend=process_group.backend(),
            timeout=datetime.timedelta(seconds=config.DEFAULT_TIMEOUT),
            run_dir=run_dir,
            axes=("data",),
            mesh=(world,),
            own_flags=sorted(settings),
        )
        config.start(context)
        super().__init__(context, model, optimizer, sampler, world)

    def step(self, step: int | None = None) -> AbstractContextManager:
        """As record.Run.step; the steps are counted here. Raises RuntimeError beyond `steps`."""
        if self.steps_done == self.args.steps:
            raise RuntimeError(
                f"external.Run was told steps={self.args.steps}, and this is one more. "
                "Give it the number of batches that the loop trains on."
            )
        return super().step(self.steps_done if step is None else step)

    def finish(self) -> None:
        """As record.Run.finish. Raises RuntimeError if there were fewer than `steps`."""
        if self.steps_done != self.args.steps:
            raise RuntimeError(
                f"external.Run was told steps={self.args.steps}, and the loop made "
                f"{self.steps_done}. Give it the number of batches that the loop trains on."
            )
        super().finish()
