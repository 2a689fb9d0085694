"""python src/snippets/clean_up.py

What a process gives back of its memory, and what only its end gives back. One JSON line for each
moment: what has happened, and the megabytes that the process holds then.
"""

import gc
import json
import os
import subprocess
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


def note(what: str) -> None:
    row = {"what has happened": what, "resident MB": read_resident_bytes() // MB}
    if DEVICE == "cuda":
        row["GPU: allocated MB"] = torch.cuda.memory_allocated() // MB
        row["GPU: reserved MB"] = torch.cuda.memory_reserved() // MB
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
    note("torch is loaded")
    tensor = make_tensor(SIZE)
    note(f"a tensor of {SIZE // MB} MB is made")
    del tensor
    note("del tensor")
    torch.cuda.empty_cache()
    note("torch.cuda.empty_cache()")

    try:
        fail()
    except RuntimeError as error:
        kept = error
    gc.collect()
    note("a function failed, its exception is kept; gc.collect()")
    del kept
    note("del of the exception")

    trainer = Trainer()
    del trainer
    note("a cycle of references; del")
    gc.collect()
    note("gc.collect()")

    small = [make_tensor(2000) for _ in range(SIZE // 2000)]
    note(f"{len(small):,} small tensors are made")
    del small[::2]
    torch.cuda.empty_cache()
    note("del of every other one")
    small.clear()
    gc.collect()
    torch.cuda.empty_cache()
    note("del of all; gc.collect()")


if __name__ == "__main__":
    main()
