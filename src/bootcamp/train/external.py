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
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler

from bootcamp.train import config, data, process_group, record, run_folder
from bootcamp.train.run_context import RunContext

DEALS = "sampler=DistributedSampler(dataset, world, rank, drop_last=True)"


def begin() -> Path:
    """Find the record's folder: of --run-dir, which is taken off the command line, or a new one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--run-dir")
    known, sys.argv[1:] = parser.parse_known_args()
    return run_folder.find(known.run_dir)


class Samples:
    """Ids and checksums of the samples that this rank trains on, in order.

    The script adds them, or they are noted as a DataLoader deals them out, which may fetch ahead.
    batch_size: samples of a step on this rank. sampler: the DataLoader's, None without one.
    """

    def __init__(self, batch_size: int, sampler=None):
        self.batch_size, self.sampler = batch_size, sampler
        self._ids, self._checksums = [], []

    def __iter__(self):
        self._ids.clear()  # what was fetched ahead in an epoch that was left early
        self._checksums.clear()
        for sample_id in self.sampler:
            self._ids.append(int(sample_id))
            yield sample_id

    def __len__(self) -> int:
        return len(self.sampler)

    def collating(self, collate):
        """Wrap a DataLoader's collate function: note what is in the samples, as they were read."""

        def collated(samples):
            for sample in samples:
                parts = [torch.as_tensor(part)[None] for part in _parts(sample)]
                self._checksums += data.checksums(parts)
            return collate(samples)

        return collated

    def add(self, ids, tensors) -> None:
        """Add samples. tensors: their contents, shape (samples, ...) each."""
        self._ids += map(int, ids)
        self._checksums += data.checksums(tensors)

    @property
    def sample_ids(self) -> list[int]:
        """Take the ids of the next step. Raises RuntimeError where there are not as many."""
        known = len(self._ids)
        if self.sampler is None and known != self.batch_size:
            raise RuntimeError(
                f"run.samples() got {known} ids in this step, and external.Run was given "
                f"{self.batch_size} samples: call it in each step, with those of this rank."
            )
        if known < self.batch_size:
            raise RuntimeError(
                "this step trains on no batch of the DataLoader that external.Run was given: give "
                "it the one of the training loop, and have one `with run.step():` for each batch."
            )
        return _take(self._ids, self.batch_size)

    @property
    def sample_checksums(self) -> list[int]:
        """Take the checksums of the same samples; none where worker processes read them."""
        return _take(self._checksums, self.batch_size)


def _take(waiting: list, count: int) -> list:
    taken, waiting[:] = waiting[:count], waiting[count:]
    return taken


def _parts(sample) -> list:
    """List the tensors and numbers of a sample, however it nests them."""
    if isinstance(sample, dict | list | tuple):
        inside = sample.values() if isinstance(sample, dict) else sample
        return [part for each in inside for part in _parts(each)]
    return [sample] if isinstance(sample, torch.Tensor | np.ndarray | int | float) else []


def noted(loader: DataLoader, world: int, batches: int = 1) -> Samples:
    """Note the samples that a DataLoader deals out. batches: how many of its own a step takes.

    Raises TypeError or ValueError for batches that can't be those of another number of ranks.
    """
    if not isinstance(loader, DataLoader):
        raise TypeError(
            f"external.Run got a {type(loader).__name__}: give it the DataLoader of the training "
            "loop. For a loop without one, give the number of samples of a step on this rank, and "
            "call run.samples(ids) in each step."
        )
    if wrong := _wrong_dealing(loader, world):
        raise ValueError(wrong)
    samples = Samples(loader.batch_size * batches, loader.sampler)
    loader.batch_sampler.sampler = samples
    if not loader.num_workers:
        loader.collate_fn = samples.collating(loader.collate_fn)
    return samples


def _wrong_dealing(loader: DataLoader, world: int) -> str | None:
    """Say why other numbers of ranks could not get the loader's batches; None if they can."""
    sampler = loader.sampler
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return (
            f"external.Run needs a DataLoader with batch_size= and {DEALS}: without them nobody "
            "knows which samples a rank got."
        )
    if isinstance(sampler, RandomSampler):
        return (
            "the DataLoader has shuffle=True, so its order is another one for another number of "
            f"ranks. Give it {DEALS} instead, and call sampler.set_epoch(epoch) in each epoch."
        )
    if not loader.drop_last:
        return (
            "the DataLoader keeps an incomplete last batch, which ranks can't share equally: give "
            "it drop_last=True."
        )
    if not isinstance(sampler, DistributedSampler):
        return None
    if sampler.num_replicas != world:
        return (
            f"the DistributedSampler deals out to {sampler.num_replicas} rank(s), and external.Run "
            f"was told world={world}: give both the size of the process group."
        )
    if not sampler.drop_last and len(sampler.dataset) % world:
        return (
            f"{len(sampler.dataset)} samples can't be dealt out to {world} ranks equally, so the "
            "DistributedSampler would deal some of them twice: give it drop_last=True."
        )
    return None


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
        samples = Samples(loader) if given else noted(loader, world, batches)
        flags = {
            "model": "own",
            "optimizer": type(optimizer).__name__.lower(),
            "steps": steps,
            "cores_per_rank": 1,
            "global_batch": samples.batch_size * world,
            "trace_step": None,
            "resume": None,
        }
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
        super().__init__(context, model, optimizer, samples, world)
        self._noted, self._saved = {}, {}
        self._watch_saves()

    def step(self, step: int | None = None) -> AbstractContextManager:
        """As record.Run.step; the steps are counted here. Raises RuntimeError beyond `steps`."""
        if self.steps_done == self.args.steps:
            raise self._wrong_steps("this is one more")
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
            raise self._wrong_steps(f"the loop made {self.steps_done}")
        super().finish()

    def _wrong_steps(self, made: str) -> RuntimeError:
        return RuntimeError(
            f"external.Run was told steps={self.args.steps}, and {made}. "
            "Give it the number of batches that the loop trains on."
        )

    def _record(self) -> dict:
        return super()._record() | {"noted": self._noted, "saved": self._saved}

    def _watch_saves(self) -> None:
        """Note each torch.save to a path; the file is written as ever."""
        plain = torch.save

        def save(state, file, *more, **options):
            if isinstance(file, str | os.PathLike):
                path = Path(file).resolve()
                if path.is_relative_to(self.folder):
                    path = path.relative_to(self.folder)
                self._saved[str(path)] = odd_parts(state)
            return plain(state, file, *more, **options)

        torch.save = save


def odd_parts(state) -> dict[str, int]:
    """Count names that begin with `module.`, DDP's own, and shards in nested state dicts."""
    found = {"module_names": 0, "shards": 0}
    for name, value in state.items() if isinstance(state, dict) else ():
        found["module_names"] += str(name).startswith("module.")
        found["shards"] += hasattr(value, "to_local")
        for what, count in odd_parts(value).items():
            found[what] += count
    return found
