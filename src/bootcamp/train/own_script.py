"""Record a training script of your own, so that runs of it can be compared.

Five lines let `check.same_training(launch("mine_ddp.py", 2), launch("mine.py", 1))` compare losses,
samples, final parameters and saved files; a sixth adds numbers beside the loss (lesson 13):

    run_dir = own_script.begin()                       # before its own flags are parsed
    run = own_script.Run(run_dir, model, optimizer, loader, world, steps)
    with run.step():                                   # around each optimizer step
    run.loss(mean_loss)                                # behind that block
    run.note(valid_loss=valid_loss)                    # wherever such a number is known
    run.finish()

Without a DataLoader, give the number of samples of a step on this rank in place of `loader`, and in
each step call `run.samples(ids, inputs, targets)` with the numbers that tell its samples apart.
"""

import argparse
import os
import sys
from collections import defaultdict
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler

from bootcamp.train import config, data, environment, record
from bootcamp.train.memory_usage import find_leaves

KINDS_OF_NUMBERS = (torch.Tensor, np.ndarray, int, float)  # in a sample, however it nests them
ADVICE = "sampler=DistributedSampler(dataset, world, rank, drop_last=True)"


def begin() -> Path:
    """Find the record's folder: of --run-dir, which is taken off the command line, or a new one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--run-dir")
    known, sys.argv[1:] = parser.parse_known_args()
    return config.find_folder(known.run_dir)


class Samples:
    """Ids and checksums of the samples that this rank trains on, in order.

    The script adds them, or a DataLoader passes them on, which may fetch ahead.
    batch_size: samples of a step on this rank. sampler: the DataLoader's, None without one.
    """

    def __init__(self, batch_size: int, sampler=None):
        self.batch_size, self.sampler = batch_size, sampler
        self._ids, self._checksums = [], []

    def __iter__(self):
        self._ids.clear()  # those fetched ahead in an epoch that was left early
        self._checksums.clear()
        for sample_id in self.sampler:
            self.add([sample_id])
            yield sample_id

    def __len__(self) -> int:
        return len(self.sampler)

    def add(self, ids=(), tensors=()) -> None:
        """Add samples. tensors: their contents, shape (samples, ...) each."""
        self._ids += map(int, ids)
        self._checksums += data.checksums(tensors)

    def collate(self, as_before, samples: list):
        """Note the contents of a batch's samples, and collate them with the loader's function."""
        for sample in samples:
            parts = find_leaves(sample, KINDS_OF_NUMBERS)
            self.add(tensors=[torch.as_tensor(part)[None] for part in parts])
        return as_before(samples)

    @property
    def sample_ids(self) -> list[int]:
        """Take the ids of the next step. Raises RuntimeError where there are not as many."""
        known = len(self._ids)
        if known < self.batch_size or (known > self.batch_size and self.sampler is None):
            raise RuntimeError(
                f"own_script.Run got {known} sample ids in this step and expected "
                f"{self.batch_size}: give it the DataLoader of the training loop, and have one "
                "`with run.step():` for each batch. Without one, call run.samples() in each step."
            )
        taken, self._ids = self._ids[: self.batch_size], self._ids[self.batch_size :]
        return taken

    @property
    def sample_checksums(self) -> list[int]:
        """Take the checksums of the same samples; none where worker processes read them."""
        cut, sums = self.batch_size, self._checksums
        taken, self._checksums = sums[:cut], sums[cut:]
        return taken


def watch_loader(loader: DataLoader, world: int, batches: int = 1) -> Samples:
    """Note the samples that a DataLoader deals out. batches: how many of its own a step takes.

    Raises TypeError or ValueError for batches that can't be those of another number of ranks.
    """
    _check_loader(loader, world)
    samples = Samples(loader.batch_size * batches, loader.sampler)
    loader.batch_sampler.sampler = samples
    if not loader.num_workers:
        loader.collate_fn = partial(samples.collate, loader.collate_fn)
    return samples


def _check_loader(loader: DataLoader, world: int) -> None:
    """Raise TypeError or ValueError where other numbers of ranks could not get its batches."""
    if not isinstance(loader, DataLoader):
        kind = type(loader).__name__
        raise TypeError(f"own_script.Run got a {kind}: give it the DataLoader, or a step's samples")
    sampler = loader.sampler
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        raise ValueError(f"own_script.Run needs a DataLoader with batch_size= and {ADVICE}")
    if isinstance(sampler, RandomSampler):
        raise ValueError(
            "the DataLoader has shuffle=True, so its order is another one for another number of "
            f"ranks. Give it {ADVICE} instead, and call sampler.set_epoch(epoch) in each epoch."
        )
    if not loader.drop_last:
        raise ValueError("ranks can't share an incomplete last batch: give it drop_last=True")
    if not isinstance(sampler, DistributedSampler):
        return
    if sampler.num_replicas != world:
        raise ValueError(
            f"the DistributedSampler deals out to {sampler.num_replicas} rank(s), and "
            f"own_script.Run was told world={world}: give both the size of the process group."
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
    loader's a step takes, to accumulate gradients. settings: flags that two runs must share to be
    compared, such as lr=0.05. A folder that can't be used ends the process with exit code 2.
    """

    def __init__(
        self, run_dir: Path, model, optimizer, loader, world: int, steps: int, batches=1, **settings
    ):
        is_count = isinstance(loader, int)
        samples = Samples(loader) if is_count else watch_loader(loader, world, batches)
        flags = {"model": "own", "optimizer": type(optimizer).__name__.lower(), "steps": steps}
        flags |= {"global_batch": samples.batch_size * world, "cores_per_rank": 1}
        flags |= dict.fromkeys(("trace_step", "resume"))
        args, device = argparse.Namespace(**flags | settings), str(next(model.parameters()).device)
        backend = environment.backend()
        context = config.RunContext(args, [device], backend, run_dir, (world,), sorted(settings))
        config.start(context)
        super().__init__(context, model, optimizer, samples, world)
        self._noted = defaultdict(list)
        self._saved = watch_saves(self.folder)

    def step(self) -> AbstractContextManager:
        """As record.Run.step; the steps are counted here. Raises RuntimeError beyond `steps`."""
        self._check_steps(self.steps_done < self.args.steps, "this is one more")
        return super().step(self.steps_done)

    def samples(self, ids, *tensors: torch.Tensor) -> None:
        """Name this step's samples on this rank, for a loop without a DataLoader.

        ids: numbers that tell samples apart, such as their places in the text; the same on any
        number of ranks. tensors: their contents, shape (samples, ...) each.
        """
        self.batches.add(ids, tensors)

    def note(self, **values: float) -> None:
        """Note numbers beside the loss, such as those of a validation; the same on every rank."""
        for name, value in values.items():
            self._noted[name].append(float(value))

    def finish(self) -> None:
        """As record.Run.finish. Raises RuntimeError if there were fewer than `steps`."""
        self._check_steps(self.steps_done == self.args.steps, f"the loop made {self.steps_done}")
        super().finish()

    def _check_steps(self, is_right: bool, made: str) -> None:
        if not is_right:
            raise RuntimeError(f"own_script.Run was told steps={self.args.steps}, and {made}")

    def _record(self) -> dict:
        return super()._record() | {"noted": self._noted, "saved": self._saved}


def watch_saves(folder: Path) -> dict[str, dict]:
    """Count odd parts of what torch.save writes from now on, by path, relative to this folder."""
    plain, saved = torch.save, {}

    def save(state, file, *more, **options):
        if isinstance(file, str | os.PathLike):
            path = Path(file).resolve()
            path = path.relative_to(folder) if path.is_relative_to(folder) else path
            saved[str(path)] = count_odd_parts(state)
        return plain(state, file, *more, **options)

    torch.save = save
    return saved


def count_odd_parts(state) -> dict[str, int]:
    """Count names that begin with `module.`, DDP's own, and shards in nested state dicts."""
    counts = {"module_names": 0, "shards": 0}
    for name, value in state.items() if isinstance(state, dict) else ():
        inner = count_odd_parts(value)
        counts["module_names"] += str(name).startswith("module.") + inner["module_names"]
        counts["shards"] += hasattr(value, "to_local") + inner["shards"]
    return counts
