"""The training data: source code of Python's standard library, read as bytes.

It is real text and already on every machine. A sample is a window of it; its number is its id.
"""

import sysconfig
import zlib
from functools import cache
from pathlib import Path

import torch

from bootcamp import models


@cache
def corpus_bytes() -> bytes:
    """Every top-level module of the standard library in order of its name, about 5 MB."""
    folder = Path(sysconfig.get_path("stdlib"))
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))


def corpus_crc32() -> int:
    """A checksum: runs on another Python version train on other text."""
    return zlib.crc32(corpus_bytes())


class Corpus(torch.utils.data.Dataset):
    """The corpus cut into windows of `context` bytes, as a torch dataset.

    corpus[i] is (inputs, targets), int64 of shape (context,): each target is the byte after its
    input. With `next_byte_only` the target is the byte after the window, of shape ().
    """

    def __init__(self, context: int, next_byte_only: bool = False):
        self.context = context
        self.next_byte_only = next_byte_only
        self._bytes = torch.frombuffer(bytearray(corpus_bytes()), dtype=torch.uint8)
        self._offsets = torch.arange(context + 1)

    def __len__(self) -> int:
        return (len(self._bytes) - 1) // self.context

    def __getitem__(self, sample_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.batch(torch.tensor(sample_id))

    def batch(self, sample_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(inputs, targets) of many samples at once, with the shape of the ids in front."""
        windows = self._bytes[sample_ids.unsqueeze(-1) * self.context + self._offsets].long()
        inputs, targets = windows[..., :-1], windows[..., 1:]
        return inputs, targets[..., -1] if self.next_byte_only else targets


def sample_count(args) -> int:
    """How many samples the corpus has for the model of these flags."""
    return len(Corpus(**models.data_format(args)))


class Batches:
    """One rank's share of every global batch. A global batch depends on (seed, step) alone.

    So any number of ranks sees the same samples in the same steps. An epoch is a permutation of
    the corpus that depends on (seed, epoch); a step takes the next `global_batch` samples of it.
    """

    def __init__(self, args, rank: int, world: int):
        self.dataset = Corpus(**models.data_format(args))
        self.rank, self.world = rank, world
        self.seed, self.global_batch = args.seed, args.global_batch
        self.steps_per_epoch = len(self.dataset) // self.global_batch
        self.sample_ids = []  # those of the last step, for the record
        self._epoch, self._order = None, None

    def __call__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(inputs, targets) of this rank in this step: global_batch / world samples, on the CPU."""
        share = self.global_ids(step).chunk(self.world)[self.rank]
        self.sample_ids = share.tolist()
        return self.dataset.batch(share)

    def global_ids(self, step: int) -> torch.Tensor:
        """The ids of the samples that all ranks together train on in this step."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._epoch = epoch
            self._order = torch.randperm(len(self.dataset), generator=generator)
        first = step_in_epoch * self.global_batch
        return self._order[first : first + self.global_batch]
