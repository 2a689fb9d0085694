"""python src/snippets/on_a_gpu.py

What only a GPU can show: which copies run beside a computation, launches recorded once and replayed
(a CUDA graph), and what the allocator holds, as a snapshot for pytorch.org/memory_viz.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bootcamp.costs import hardware

PRODUCTS, WIDTH, COPIED = 8, 4096, 64 * 2**20  # matrices, and numbers of a copy
SNAPSHOT = Path(tempfile.gettempdir()) / "memory_snapshot.pickle"


def milliseconds(work: Callable[[], object]) -> float:
    """Until the GPU is done, the second time."""
    for _ in range(2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    return 1e3 * seconds


if not torch.cuda.is_available():
    pcie_5 = 16 * 32e9 * 128 / 130 / 8  # bytes/s: lanes, bits of each, the share that is data
    products = 1e3 * PRODUCTS * 2 * WIDTH**3 / hardware.gpu("H100").peak_of("fp32")
    copy = 1e3 * 4 * COPIED / pcie_5
    print("No CUDA GPU here. By formula, on an H100 behind 16 lanes of PCIe 5:")
    print(f"products alone {products:.1f} ms, a copy alone {copy:.1f} ms or more")
    print(f"copy from pinned memory, beside the products {max(products, copy):.1f} ms")
    print(f"copy from pageable memory, before the products {products + copy:.1f} ms or more")
    sys.exit()

# A copy on a stream of its own, beside matrix products on the default one
matrix, copying = torch.randn(WIDTH, WIDTH, device="cuda"), torch.cuda.Stream()


def products() -> None:
    for _ in range(PRODUCTS):
        matrix @ matrix


def copy_beside(batch: torch.Tensor) -> None:
    with torch.cuda.stream(copying):
        batch.to("cuda", non_blocking=True)
    products()


pageable = torch.ones(COPIED)
print(f"products alone {milliseconds(products):.1f} ms")
for name, batch in (("pageable", pageable), ("pinned", pageable.pin_memory())):
    alone = milliseconds(lambda batch=batch: batch.to("cuda", non_blocking=True))
    both = milliseconds(lambda batch=batch: copy_beside(batch))
    print(f"copy from {name} memory: alone {alone:.1f} ms, beside the products {both:.1f} ms")

# 200 small kernels, launched one by one and as one graph
numbers, graph = torch.ones(256, device="cuda"), torch.cuda.CUDAGraph()


def launches() -> None:
    for _ in range(200):
        numbers.mul_(1.0001)


one_by_one = milliseconds(launches)
with torch.cuda.graph(graph):  # records, computes nothing
    launches()
print(f"200 kernels: {one_by_one:.2f} ms, replayed {milliseconds(graph.replay):.2f} ms")

# Every other tensor is freed: its memory stays reserved, in pieces
torch.cuda.memory._record_memory_history()
tensors = [torch.empty(20 * 2**20, dtype=torch.uint8, device="cuda") for _ in range(8)]
del tensors[::2]
held, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
torch.cuda.memory._dump_snapshot(str(SNAPSHOT))
print(f"{held / 1e6:.0f} MB in tensors, {reserved / 1e6:.0f} MB reserved: see {SNAPSHOT}")
