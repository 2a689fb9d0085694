"""python src/snippets/loader_workers.py --workers 2

How long a training step waits for its batch when reading a sample takes time. Reading and training
are sleeps, so that the effect is the same on any machine, with one core as with many.
"""

import argparse
import json
import time

from torch.utils.data import DataLoader, Dataset

BATCHES, BATCH = 16, 16
READ_SECONDS, TRAIN_SECONDS = 0.0025, 0.02  # a sample, a batch


class SlowSamples(Dataset):
    """Samples that take a while, as from a slow disk or a decoder of images."""

    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, sample_id: int) -> int:
        time.sleep(READ_SECONDS)
        return sample_id


if __name__ == "__main__":  # where workers are spawned, each one imports this file
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    loader = DataLoader(SlowSamples(), batch_size=BATCH, num_workers=args.workers)
    waited, began = [], time.perf_counter()
    for _ in loader:
        waited.append(time.perf_counter() - began)
        time.sleep(TRAIN_SECONDS)
        began = time.perf_counter()
    mean_seconds = sum(waited[4:]) / len(waited[4:])  # the first ones wait for the workers' start
    seconds = {"waited_seconds_per_batch": mean_seconds}
    seconds["seconds_per_batch"] = mean_seconds + TRAIN_SECONDS
    print(json.dumps({"workers": args.workers, **seconds}))
