"""python src/snippets/clean_up.py

What a process gives back of its memory, and what only its end gives back. One JSON line for each
moment: what has happened, and the megabytes that its tensors and the process hold then. An
assertion fails where a tensor lives longer than is said, or shorter.
"""

import ctypes
import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import torch

MB = 10**6
SIZE = 400 * MB
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def read_resident_bytes() -> int:
    """Main memory that this process holds now."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 1024 * int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(os.getpid())]))


def list_tensors() -> list[torch.Tensor]:
    """Those that Python has not freed, whether or not anything can still reach them."""
    return [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]


def note(what: str, tensors: int, reserved: int | None = None) -> None:
    """Print a moment; tensors: the bytes they hold, and reserved: those PyTorch keeps on a GPU."""
    held = sum(each.nbytes for each in list_tensors())
    assert held == tensors, f"{what}: tensors hold {held:,} bytes, not {tensors:,}"
    row = {"what has happened": what, "tensors MB": held // MB}
    row["resident MB"] = read_resident_bytes() // MB
    if DEVICE == "cuda":
        now = {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}
        assert held <= now["allocated"] <= 1.05 * held, f"{what}: {now}"
        assert reserved is None or reserved <= now["reserved"] <= 1.05 * reserved, f"{what}: {now}"
        row |= {f"GPU: {name} MB": count // MB for name, count in now.items()}
    print(json.dumps(row))


def make_tensor(nbytes: int) -> torch.Tensor:
    return torch.ones(nbytes // 4, device=DEVICE)


def fail():
    activations = make_tensor(SIZE)
    raise RuntimeError(f"no step for {len(activations)} numbers")


class Trainer:
    """Refers to itself, as objects with callbacks and hooks easily do."""

    def __init__(self):
        self.activations = make_tensor(SIZE)
        self.callback = self.step

    def step(self):
        pass


def main():
    gc.disable()  # from here on, cycles wait for the lines that say gc.collect()
    note("torch is loaded", tensors=0)
    tensor = make_tensor(SIZE)
    note(f"a tensor of {SIZE // MB} MB is made", tensors=SIZE)
    del tensor
    note("del tensor", tensors=0, reserved=SIZE)
    torch.cuda.empty_cache()
    note("torch.cuda.empty_cache()", tensors=0, reserved=0)

    try:
        fail()
    except RuntimeError as error:
        kept = error
    gc.collect()
    torch.cuda.empty_cache()
    note("a function failed, its exception is kept; gc.collect()", tensors=SIZE, reserved=SIZE)
    del kept
    note("del of the exception", tensors=0)

    trainer = Trainer()
    del trainer
    torch.cuda.empty_cache()
    note("a cycle of references; del, empty_cache()", tensors=SIZE, reserved=SIZE)
    gc.collect()
    note("gc.collect()", tensors=0, reserved=SIZE)

    small = [make_tensor(2000) for _ in range(SIZE // 2000)]
    note(f"{len(small):,} small tensors are made", tensors=SIZE)
    del small[::2]
    torch.cuda.empty_cache()
    note("del of every other one", tensors=SIZE // 2, reserved=SIZE)
    small.clear()
    gc.collect()
    torch.cuda.empty_cache()
    note("del of all; gc.collect()", tensors=0, reserved=0)
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
        note("malloc_trim(0) of the C library", tensors=0)


if __name__ == "__main__":
    main()
