"""Deal out training data: windows of the course's text (bootcamp/corpus.py), or synthetic images.

A sample is a function of its id, so that any rank can make any sample, the same on every machine.
"""

import zlib

import torch

from bootcamp import corpus
from bootcamp.train import models

CHECKED_BYTES = 2**16  # of each tensor of a sample: a large picture would cost milliseconds


class Corpus(torch.utils.data.Dataset):
    """The corpus in windows: corpus[i] is (inputs, targets), int64 of shape (context,).

    Each target is the byte after its input; with `next_byte_only`, the one after the window, ().
    """

    def __init__(self, context: int, next_byte_only: bool = False):
        self.context = context
        self.next_byte_only = next_byte_only
        self._bytes = torch.frombuffer(bytearray(corpus.text()), dtype=torch.uint8)
        self._offsets = torch.arange(context + 1)

    def __len__(self) -> int:
        return (len(self._bytes) - 1) // self.context

    def __getitem__(self, sample_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.batch(torch.tensor(sample_id))

    def batch(self, sample_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (inputs, targets) of many samples at once, with the ids' shape in front."""
        windows = self._bytes[sample_ids.unsqueeze(-1) * self.context + self._offsets].long()
        inputs, targets = windows[..., :-1], windows[..., 1:]
        return inputs, targets[..., -1] if self.next_byte_only else targets


class Images(torch.utils.data.Dataset):
    """50,000 images of coloured tiles under noise: images[i] is (image, class).

    image: (3, image_size, image_size) of `dtype`, mean 0, cast from float32. class: i % classes,
    int64 of (); its mosaic of 8 x 8 tiles is the same in all its images. Raises ValueError if
    image_size is not a multiple of 8.
    """

    COUNT = 50_000
    TILES = 8
    SHIFT = 16  # numbers between the places where two successive images' noise begins

    def __init__(self, image_size: int, classes: int, dtype: torch.dtype = torch.float32):
        if image_size % self.TILES:
            raise ValueError(f"image_size {image_size}: expected a multiple of {self.TILES}")
        self.tile, self.classes, self.dtype = image_size // self.TILES, classes, dtype
        values = 3 * image_size**2
        generator = torch.Generator().manual_seed(0)  # the data is the same at every --seed
        self._mosaics = torch.randn(classes, 3, self.TILES, 1, self.TILES, 1, generator=generator)
        # one long random vector that the images read at different places: fresh numbers for every
        # pixel would take longer to draw than a small model takes to train on them
        noise = torch.randn(values + self.SHIFT * (self.COUNT - 1), generator=generator)
        self._noise = noise.unfold(0, values, self.SHIFT)  # a view: (COUNT, values)

    def __len__(self) -> int:
        return self.COUNT

    def __getitem__(self, sample_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.batch(torch.tensor(sample_id))

    def batch(self, sample_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (images, classes) of many samples at once, with the ids' shape in front."""
        targets = sample_ids % self.classes
        tiles = (3, self.TILES, self.tile, self.TILES, self.tile)
        # not added in place: indexed by a single id the noise is a view of the data itself
        images = self._noise[sample_ids].unflatten(-1, tiles) + self._mosaics[targets]
        return images.flatten(-2).flatten(-3, -2).to(self.dtype), targets


def dataset(args) -> Corpus | Images:
    """Make the dataset that the model of these flags reads; images in the dtype of --dtype."""
    form = models.data_format(args)
    if "image_size" in form:
        return Images(**form, dtype=getattr(torch, args.dtype))
    return Corpus(**form)


def checksums(batch) -> list[int]:
    """Calculate the CRC-32 of each sample of these tensors, (samples, ...) on any device."""
    sums = [0] * len(batch[0]) if batch else []
    for tensor in batch:
        rows = tensor.detach().cpu().unsqueeze(-1).flatten(1).contiguous()
        for sample, row in enumerate(rows.view(torch.uint8).numpy()):
            sums[sample] = zlib.crc32(row[:CHECKED_BYTES], sums[sample])
    return sums


class Batches:
    """One rank's share of every global batch, which depends on (seed, step) alone.

    An epoch is a permutation of the data that depends on (seed, epoch); a step takes the next
    `global_batch` samples of it. `batches[step]` is `batches(step)`, for
    DataLoader(batches, batch_size=None, sampler=range(n)).
    """

    def __init__(self, args, rank: int, world: int):
        self.dataset = dataset(args)
        self.rank, self.world = rank, world
        self.seed, self.global_batch = args.seed, args.global_batch
        self.steps_per_epoch = len(self.dataset) // self.global_batch
        self.sample_ids, self._drawn = [], ()  # those of the last step, for the record
        self._epoch, self._order = None, None
        self.global_ids(0)  # draws the first epoch's order here rather than within the first step

    def __call__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this rank's (inputs, targets): global_batch / world samples, on the CPU."""
        share = self.global_ids(step).chunk(self.world)[self.rank]
        self.sample_ids, self._drawn = share.tolist(), self.dataset.batch(share)
        return self._drawn

    __getitem__ = __call__

    @property
    def sample_checksums(self) -> list[int]:
        """Checksums of the last step's samples, calculated when the record asks, off the clock."""
        return checksums(self._drawn)

    def global_ids(self, step: int) -> torch.Tensor:
        """Return the ids of the samples that all ranks together train on in this step."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._epoch = epoch
            self._order = torch.randperm(len(self.dataset), generator=generator)
        first = step_in_epoch * self.global_batch
        return self._order[first : first + self.global_batch]
