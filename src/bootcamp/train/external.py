"""Record a training script that is not the course's: yours.

Five lines let `check.same_training(launch("mine_ddp.py", 2), launch("mine.py", 1))` compare losses,
samples, final parameters and saved files; a sixth adds numbers beside the loss (lesson 13):

    run_dir = external.begin()                         # before its own flags are parsed
    run = external.Run(run_dir, model, optimizer, loader, world, steps)
    with run.step():                                   # around each optimizer step
    run.loss(mean_loss)                                # behind that block
    run.note(valid_loss=valid_loss)                    # wherever such a number is known
    run.finish()

Without a DataLoader, give the number of samples of a step on this rank in place of `loader`, and in
each step call `run.samples(ids, inputs, targets)` with the numbers that tell its samples apart.
"""

import argparse
import datetime
import os
import sys
from collections import deque
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler

from bootcamp.train import config, data, process_group, record, run_folder
from bootcamp.train.context import RunContext

DEALS = "sampler=DistributedSampler(dataset, world, rank, drop_last=True)"


def begin() -> Path:
    """Find the record's folder: of --run-dir, which is taken off the command line, or a new one."""
    given = None
    if "--run-dir" in sys.argv:
        place = sys.argv.index("--run-dir")
        _, given = sys.argv[place : place + 2]
        del sys.argv[place : place + 2]
    return run_folder.find(given)


class GivenSamples:
    """The samples of the current step, as the script gives them. batch_size: how many on this rank.

    Reading `sample_ids` ends the step, and raises RuntimeError for another number of them.
    """

    def __init__(self, batch_size: int):
        self.batch_size = batch_size
        self._ids, self._given, self.sample_checksums = [], [], []

    def add(self, ids, tensors) -> None:
        """Add samples to the step. tensors: their contents, shape (samples, ...) each."""
        self._ids += [int(sample_id) for sample_id in ids]
        self._given += data.checksums(tensors)

    @property
    def sample_ids(self) -> list[int]:
        ids, self._ids = self._ids, []
        self.sample_checksums, self._given = self._given, []
        if len(ids) != self.batch_size:
            raise RuntimeError(
                f"run.samples() got {len(ids)} ids in this step, and external.Run was given "
                f"{self.batch_size} samples: call it in each step, with those of this rank."
            )
        return ids


class Noted(torch.utils.data.Sampler):
    """Note which samples a DataLoader deals out. batch_size: samples of a step on this rank.

    Each `sample_ids` is the next step's: they wait in order, so a DataLoader may fetch ahead. So do
    `sample_checksums`, as long as the DataLoader reads its samples in this process.
    """

    def __init__(self, sampler, batch_size: int):
        self.sampler, self.batch_size = sampler, batch_size
        self._dealt, self._checksums = deque(), deque()

    def __iter__(self):
        self._dealt.clear()  # what was fetched ahead in an epoch that was left early
        self._checksums.clear()
        for sample_id in self.sampler:
            self._dealt.append(int(sample_id))
            yield sample_id

    def __len__(self) -> int:
        return len(self.sampler)

    @property
    def sample_ids(self) -> list[int]:
        """Take the ids of the next step. Raises RuntimeError where none were dealt out."""
        if len(self._dealt) < self.batch_size:
            raise RuntimeError(
                "this step trains on no batch of the DataLoader that external.Run was given: give "
                "it the one of the training loop, and have one `with run.step():` for each batch."
            )
        return [self._dealt.popleft() for _ in range(self.batch_size)]

    @property
    def sample_checksums(self) -> list[int]:
        """Take the checksums of the same samples; none where worker processes read them."""
        known = min(self.batch_size, len(self._checksums))
        return [self._checksums.popleft() for _ in range(known)]

    def noting(self, collate):
        """Wrap a DataLoader's collate function: note what is in the samples, as they were read."""

        def collated(samples):
            parts = [[torch.as_tensor(part) for part in parts_of(sample)] for sample in samples]
            self._checksums += [data.checksums([part[None] for part in s])[0] for s in parts]
            return collate(samples)

        return collated


def parts_of(sample) -> list:
    """List the tensors and numbers of a sample, however it nests them."""
    if isinstance(sample, dict | list | tuple):
        inside = sample.values() if isinstance(sample, dict) else sample
        return [part for each in inside for part in parts_of(each)]
    return [sample] if isinstance(sample, torch.Tensor | np.ndarray | int | float) else []


def noted(loader: DataLoader, world: int, batches: int = 1) -> Noted:
    """Put a Noted sampler into a DataLoader. batches: how many of the loader's a step takes.

    Raises TypeError or ValueError for batches that can't be those of another number of ranks.
    """
    if not isinstance(loader, DataLoader):
        kind = type(loader).__name__
        raise TypeError(
            f"external.Run got a {kind}: give it the DataLoader of the training loop. For a loop "
            "without one, give the number of samples of a step on this rank, and call "
            "run.samples(ids) in each step."
        )
    sampler = loader.sampler
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        raise ValueError(
            f"external.Run needs a DataLoader with batch_size= and {DEALS}: without them nobody "
            "knows which samples a rank got."
        )
    if isinstance(sampler, RandomSampler):
        raise ValueError(
            "the DataLoader has shuffle=True, so its order is another one for another number of "
            f"ranks. Give it {DEALS} instead, and call sampler.set_epoch(epoch) in each epoch."
        )
    if not loader.drop_last:
        raise ValueError(
            "the DataLoader keeps an incomplete last batch, which ranks can't share equally: give "
            "it drop_last=True."
        )
    if isinstance(sampler, DistributedSampler):
        _check_dealing(sampler, world)
    noting = Noted(sampler, loader.batch_size * batches)
    loader.batch_sampler.sampler = noting
    if not loader.num_workers:
        loader.collate_fn = noting.noting(loader.collate_fn)
    return noting


def _check_dealing(sampler: DistributedSampler, world: int) -> None:
    if sampler.num_replicas != world:
        raise ValueError(
            f"the DistributedSampler deals out to {sampler.num_replicas} rank(s), and external.Run "
            f"was told world={world}: give both the size of the process group."
        )
    if not sampler.drop_last and len(sampler.dataset) % world:
        raise ValueError(
            f"{len(sampler.dataset)} samples can't be dealt out to {world} ranks equally, so the "
            "DistributedSampler would deal some of them twice: give it drop_last=True."
        )


class Run(record.Run):
    """As record.Run, for any model.

    loader: the DataLoader of the training loop, or the samples of a step on this rank (see
    `samples`). world: number of ranks. steps: how many there will be. batches: how many of the
    loader's a step takes, to accumulate gradients. settings: what two runs must share to be
    compared, such as lr=0.05. A folder that can't be used ends the process with exit code 2.
    """

    def __init__(
        self,
        run_dir: Path,
        model,
        optimizer,
        loader: DataLoader | int,
        world: int,
        steps: int,
        *,
        batches: int = 1,
        **settings,
    ):
        given = isinstance(loader, int)
        sampler = GivenSamples(loader) if given else noted(loader, world, batches)
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
        self._noted, self._saved = {}, {}
        self._watch_saves()

    def step(self, step: int | None = None) -> AbstractContextManager:
        """As record.Run.step; the steps are counted here. Raises RuntimeError beyond `steps`."""
        if self.steps_done == self.args.steps:
            raise RuntimeError(
                f"external.Run was told steps={self.args.steps}, and this is one more. "
                "Give it the number of batches that the loop trains on."
            )
        return super().step(self.steps_done if step is None else step)

    def samples(self, ids, *tensors: torch.Tensor) -> None:
        """Name this step's samples on this rank, for a loop without a DataLoader.

        ids: numbers that tell samples apart, such as their places in the text; the same on any
        number of ranks. tensors: what is in them, shape (samples, ...) each.
        """
        self.batches.add(ids, tensors)

    def note(self, **values: float) -> None:
        """Note numbers beside the loss, such as those of a validation; the same on every rank."""
        for name, value in values.items():
            self._noted.setdefault(name, []).append(float(value))

    def finish(self) -> None:
        """As record.Run.finish. Raises RuntimeError if there were fewer than `steps`."""
        if self.steps_done != self.args.steps:
            raise RuntimeError(
                f"external.Run was told steps={self.args.steps}, and the loop made "
                f"{self.steps_done}. Give it the number of batches that the loop trains on."
            )
        super().finish()

    def also_recorded(self) -> dict:
        """Return what was noted, and what is odd in each file that torch.save wrote."""
        return {"noted": self._noted, "saved": self._saved}

    def _watch_saves(self) -> None:
        """Note each torch.save to a path; the file is written as ever."""
        plain = torch.save

        def save(state, file, *more, **options):
            if isinstance(file, str | os.PathLike):
                self._saved[self._place(file)] = odd_parts(state)
            return plain(state, file, *more, **options)

        torch.save = save

    def _place(self, file) -> str:
        """Shorten a path in the run's folder."""
        path = Path(file).resolve()
        return str(path.relative_to(self.folder) if path.is_relative_to(self.folder) else path)


def odd_parts(state) -> dict[str, int]:
    """Count names that begin with `module.`, DDP's own, and shards in nested state dicts."""
    found = {"module_names": 0, "shards": 0}
    for name, value in state.items() if isinstance(state, dict) else ():
        found["module_names"] += str(name).startswith("module.")
        found["shards"] += hasattr(value, "to_local")
        for what, count in odd_parts(value).items():
            found[what] += count
    return found
