"""The course's record for a training script that is not the course's: yours.

A script with its own model, data and flags needs five lines to be held against its baseline:

    run_dir = own.begin()                              # before its own flags are parsed
    sampler = own.Noted(sampler, batch_size)           # around the sampler of its DataLoader
    run = own.Run(run_dir, model, optimizer, sampler, world, steps)
    run.step(step, mean_loss)                          # after each optimizer step
    run.finish()

Then `check.same_training(launch("mine_ddp.py", 2), launch("mine.py", 1))` compares every loss, the
samples of each rank and the final parameters. Lesson 13 goes through it. Rank side: needs torch.
"""

import argparse
import datetime
import sys
from collections import deque
from pathlib import Path

import torch

from bootcamp.train import config, environment, record


def begin() -> Path:
    """The folder for the record: the one that the launcher gives by --run-dir, or a new one.

    Takes that flag from the command line, so that the script's own parser does not see it.
    """
    given = None
    if "--run-dir" in sys.argv:
        place = sys.argv.index("--run-dir")
        _, given = sys.argv[place : place + 2]
        del sys.argv[place : place + 2]
    return config.run_folder(given)


class Noted(torch.utils.data.Sampler):
    """A sampler that takes down which samples it deals out, for the record.

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

        Raises IndexError where there is none: the DataLoader has another batch size.
        """
        return [self._dealt.popleft() for _ in range(self.batch_size)]


class Run(record.Run):
    """As record.Run, for any model. Rank 0 writes config.json and steps.jsonl into `run_dir`.

    sampler: the Noted one. world: the number of ranks. steps: how many times `step` will be called.
    settings: what two runs must share to be compared, such as lr=0.05 or optimizer="sgd".
    A CPU rank trains on one core, as everywhere in this course.

    A folder that can't be used ends the process with exit code 2 and one sentence.
    """

    def __init__(
        self, run_dir: Path, model, optimizer, sampler: Noted, world: int, steps: int, **settings
    ):
        device = str(next(model.parameters()).device)
        args = argparse.Namespace(
            **{"model": "own", "optimizer": type(optimizer).__name__.lower(), **settings},
            run_dir=run_dir,
            steps=steps,
            global_batch=sampler.batch_size * world,
            device=device,
            devices=[device],
            cores_per_rank=1,
            axes=("data",),
            mesh=(world,),
            data_parallel=world,
            own_flags=sorted(settings),
            timeout=datetime.timedelta(seconds=config.DEFAULT_TIMEOUT),
            first_step=0,
            trace_step=None,
            resume=None,
        )
        if environment.rank() == 0:
            try:
                record.claim(args)
            except record.FolderError as error:
                config.refuse(str(error))
        config.use_cores(args)
        record.report_exceptions(run_dir)
        super().__init__(args, model, optimizer, sampler, world)
