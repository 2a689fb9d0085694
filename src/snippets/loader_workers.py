"""python src/snippets/loader_workers.py --workers 2 --epochs 2

How long a training step waits for its batch when making a sample takes time: text is unpacked and
cut into words. Training multiplies matrices.
"""

import argparse
import json
import os
import re
import time
import zlib
from statistics import median

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from bootcamp import corpus

BATCHES, BATCH = 16, 16
PIECE, APART, VOCABULARY, MATRIX = 16_384, 6_144, 50_257, 512


class Samples(Dataset):
    """Samples that take a while. A sample knows who made it."""

    def __init__(self):
        text = corpus.text()
        self.packed = [zlib.compress(text[k * APART :][:PIECE]) for k in range(BATCHES * BATCH)]

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, sample_id: int) -> tuple[torch.Tensor, int]:
        words = re.findall(rb"\w+|\S", zlib.decompress(self.packed[sample_id]))
        ids = [zlib.crc32(word) % VOCABULARY for word in words]
        return torch.tensor(ids[:512]), os.getpid()


class InOrder(Sampler):
    """Samples one after the other; `drawn` is how many have been asked for."""

    drawn = 0

    def __iter__(self):
        for sample_id in range(BATCHES * BATCH):
            self.drawn += 1
            yield sample_id


def train(matrix: torch.Tensor) -> None:
    for _ in range(4):
        matrix @ matrix


if __name__ == "__main__":  # where workers are spawned, each one imports this file
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--prefetch", type=int, help="batches that each worker makes ahead")
    parser.add_argument("--persistent", action="store_true", help="workers outlive an epoch")
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    order, matrix = InOrder(), torch.ones(MATRIX, MATRIX)
    loader = DataLoader(
        Samples(),
        batch_size=BATCH,
        sampler=order,
        num_workers=args.workers,
        prefetch_factor=args.prefetch,
        persistent_workers=args.persistent,
    )
    waited, trained, first, makers, ahead = [], [], [], set(), None
    for _ in range(args.epochs):
        began = time.perf_counter()
        for number, (_, pids) in enumerate(loader):
            ahead = ahead or order.drawn // BATCH
            arrived = time.perf_counter()
            (waited if number >= 4 else first).append(arrived - began)  # workers have to start
            makers |= set(pids.tolist())
            train(matrix)
            began = time.perf_counter()
            trained.append(began - arrived)
    seconds = {"waited_seconds_per_batch": sum(waited) / len(waited)}
    seconds["train_seconds"] = median(trained)
    seconds["seconds_per_batch"] = sum(waited) / len(waited) + sum(trained) / len(trained)
    seconds["first_seconds"] = first[::4]  # of each epoch
    processes = {"processes": len(makers), "asked_for_with_the_first_batch": ahead}
    print(json.dumps({"workers": args.workers, **processes, **seconds}))
