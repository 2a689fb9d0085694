"""torchrun --standalone --nproc-per-node 2 src/snippets/streaming_data.py --folder logs/stream

A stream of samples out of shards, files of unequal length, which all workers of all ranks share.
Trains for two epochs in legs: each resumes from a checkpoint with other numbers of ranks and
workers; then for one epoch in two legs with each of six mistakes. For each, rank 0 prints how often
samples were read, by id and contents, and how far the parameters end from those of one process that
nobody interrupted, in distances that they have moved, with both optimizers.
"""

import argparse
import json
import time
import zlib
from collections import Counter
from datetime import timedelta
from functools import cache
from itertools import chain, count, islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from bootcamp import corpus
from bootcamp.train import models

SHARDS, BATCH, RECORD = (23, 9, 31, 17, 5, 26, 12, 21), 12, 17  # samples, samples, bytes
PLACES = [(shard, row) for shard, length in enumerate(SHARDS) for row in range(length)]
EPOCH = len(PLACES) // BATCH  # batches
LEGS = ((4, 2, 7), (2, 3, 4), (3, 1, 6), (1, 4, 2), (4, 0, 5))  # ranks, workers of each, steps
INTERRUPTED = ((4, 2, 5), (2, 1, 7))
MODEL = argparse.Namespace(model="mlp", size="tiny", dtype="float64", seed=0)
OPTIMIZERS = (
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    lambda parameters: torch.optim.AdamW(parameters, lr=0.003),
)
parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True, help="for shards and a checkpoint")
folder = parser.parse_args().folder
saved = folder / "checkpoint.pt"
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
groups = [dist.new_group(range(ranks)) for ranks in range(1, world + 1)]


def cut(shard, row):
    """A sample's bytes, out of the text that the shards are made of."""
    return corpus.text()[RECORD * PLACES.index((shard, row)) :][:RECORD]


def read(shard, row):
    """A sample out of its shard: id, checksum, bytes."""
    with (folder / f"{shard}.bin").open("rb") as file:
        file.seek(row * RECORD)
        sample = file.read(RECORD)
    return PLACES.index((shard, row)), zlib.crc32(sample), torch.tensor(list(sample))


class Stream(IterableDataset):
    """right"""

    def __init__(self, rank, world):
        self.rank, self.world, self.position = rank, world, 0

    def is_mine(self, number, worker, workers):
        """A rank has its share of each batch, and its workers make those in turn."""
        return number % self.world == self.rank and number // BATCH % workers == worker

    def seed(self, epoch):
        return epoch

    def order(self, epoch):
        """One sample of each shard in turn, as long as it has any."""
        shuffled = torch.Generator().manual_seed(self.seed(epoch))
        turn = torch.randperm(len(SHARDS), generator=shuffled).tolist()
        for row in range(max(SHARDS)):
            yield from ((shard, row) for shard in turn if row < SHARDS[shard])

    def __iter__(self):
        info = get_worker_info()  # of the worker that runs this, on a copy of the stream
        me = (info.id, info.num_workers) if info else (0, 1)
        epoch, passed = divmod(self.position, len(PLACES))
        everything = chain.from_iterable(map(self.order, count(epoch)))
        for number, place in enumerate(islice(everything, passed, None)):
            if self.is_mine(number, *me):
                yield read(*place)

    def trained(self):
        """All ranks together have trained on a batch."""
        self.position += BATCH

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class Workers(Stream):
    """workers don't know which they are"""

    def is_mine(self, number, worker, workers):
        return number % self.world == self.rank


class Readers(Stream):
    """every n-th sample for each worker"""

    def is_mine(self, number, worker, workers):
        return number % (self.world * workers) == self.rank * workers + worker


class Seeds(Stream):
    """each rank shuffles with a seed of its own"""

    def seed(self, epoch):
        return 1000 * self.rank + epoch


class Yielded(Stream):
    """saved: what the stream has yielded"""

    def __iter__(self):
        for sample in super().__iter__():
            self.position += self.world
            yield sample

    def trained(self):
        pass


class Prefetched(Stream):
    """saved: what the workers have read"""

    def __init__(self, rank, world):
        super().__init__(rank, world)
        self.begins, self.read = 0, torch.zeros(8, dtype=torch.int64).share_memory_()

    def __iter__(self):
        for sample in super().__iter__():
            self.read[get_worker_info().id] += 1
            yield sample

    def state_dict(self):
        time.sleep(0.3)  # a save takes a while, and they go on
        return {"position": self.begins + self.world * self.read.sum().item()}

    def load_state_dict(self, state):
        self.position = self.begins = state["position"]


class Own(Stream):
    """saved: how many samples a rank has trained on"""

    def state_dict(self):
        return {"own": self.position // self.world}

    def load_state_dict(self, state):
        self.position = state["own"] * self.world


def flatten(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def train(stream, ranks, workers, steps, group=None):
    """Resume, train a leg and save; without a group train in this process alone.

    Returns for each step this rank's loss and its samples, (id, checksum); the parameters.
    """
    built = [models.build(MODEL) for _ in OPTIMIZERS]
    optimizers = [make(m.parameters()) for make, m in zip(OPTIMIZERS, built, strict=True)]
    kept = [*built, *optimizers, stream]
    if group and saved.exists():
        for each, state in zip(kept, torch.load(saved), strict=True):
            each.load_state_dict(state)
    called = [DistributedDataParallel(m, process_group=group) if group else m for m in built]
    forked = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
    losses, samples = [], []
    loader = iter(DataLoader(stream, BATCH // ranks, **forked))
    for ids, checksums, text in islice(loader, steps):
        for model, optimizer in zip(called, optimizers, strict=True):
            optimizer.zero_grad()
            loss = models.loss(model(text[:, :-1]), text[:, -1])
            loss.backward()
            optimizer.step()
        stream.trained()
        losses.append(loss.item())
        samples.append(list(zip(ids.tolist(), checksums.tolist(), strict=True)))
    if group and rank == 0:
        torch.save([each.state_dict() for each in kept], saved)
    return losses, samples, [flatten(model) for model in built]


@cache
def train_alone(steps):
    return train(Stream(0, 1), 1, 0, steps)


def train_in_legs(kind, legs):
    """Train each leg on as many ranks, if there are: losses, samples of all ranks, parameters."""
    losses, samples, ends = [], [], None
    for ranks, workers, steps in legs:
        ranks = min(ranks, world)
        if rank < ranks:
            group, every = groups[ranks - 1], [None] * ranks
            *own, ends = train(kind(rank, ranks), ranks, workers, steps, group)
            dist.all_gather_object(every, own, group)
            for step in range(steps):
                losses.append(sum(own[step] for own, _ in every) / ranks)
                samples.append(sorted(sum((own[step] for _, own in every), [])))
        dist.barrier()  # the others wait
    return losses, samples, ends


def count_batches(ranks, workers):
    """Batches of each rank in an epoch, if every worker gets whole shards."""
    dealt = [sum(SHARDS[reader :: ranks * workers]) for reader in range(ranks * workers)]
    batches = [-(-samples // (BATCH // ranks)) for samples in dealt]
    return [sum(batches[r * workers : (r + 1) * workers]) for r in range(ranks)]


if rank == 0:
    folder.mkdir(parents=True, exist_ok=True)
    for shard, length in enumerate(SHARDS):
        (folder / f"{shard}.bin").write_bytes(b"".join(cut(shard, r) for r in range(length)))
checks = {number: zlib.crc32(cut(*place)) for number, place in enumerate(PLACES)}
start = flatten(models.build(MODEL))
for kind in (Stream, Workers, Readers, Seeds, Yielded, Prefetched, Own):
    saved.unlink(missing_ok=True)
    dist.barrier()
    losses, samples, ends = train_in_legs(kind, LEGS if kind is Stream else INTERRUPTED)
    if rank == 0:
        alone, right, whole = train_alone(len(losses))
        epochs = [Counter(sum(samples[e : e + EPOCH], [])) for e in range(0, len(samples), EPOCH)]
        again = [times - 1 for epoch in epochs for times in epoch.values()]
        never = [each for epoch in epochs for each in checks.items() if each not in epoch]
        far = [
            ((a - b).norm() / (b - start).norm()).item() for a, b in zip(ends, whole, strict=True)
        ]
        found = {"case": kind.__name__, "about": kind.__doc__, "never": len(never)}
        found |= {"again": sum(again), "losses": losses, "alone": alone, "apart": far}
        found["contents"] = all(each in checks.items() for epoch in epochs for each in epoch)
        found["same"] = sum(a == sorted(b) for a, b in zip(samples, right, strict=True))
        print(json.dumps(found))
if rank == 0:
    whole = {f"{r} ranks, {w} workers": count_batches(r, w) for r, w in ((4, 2), (3, 4))}
    print(json.dumps({"batches of each rank": whole}))
dist.barrier()
dist.destroy_process_group()
