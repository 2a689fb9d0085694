"""python src/snippets/on_a_gpu.py

What only a GPU can show: TF32's speed and error, which copies run beside a computation, launches
recorded once and replayed (CUDA graphs), and what the allocator holds, as a snapshot for
pytorch.org/memory_viz.
"""

import sys
import time
from collections.abc import Callable

import torch

SNAPSHOT = "memory_snapshot.pickle"


def milliseconds(work: Callable[[], object]) -> tuple[float, float]:
    """When the call has returned, and when the GPU is done; the second of two calls."""
    for _ in range(2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        returned = time.perf_counter()
        torch.cuda.synchronize()
        done = time.perf_counter()
    return 1e3 * (returned - began), 1e3 * (done - began)


def tf32() -> None:
    a, b = torch.randn(2, 4096, 4096, device="cuda")
    exact = a.double() @ b.double()
    for precision in ("ieee", "tf32"):
        torch.backends.cuda.matmul.fp32_precision = precision
        error = ((a @ b).double() - exact).norm() / exact.norm()
        print(f"product, {precision}: {milliseconds(lambda: a @ b)[1]:.2f} ms, off by {error:.1e}")
    torch.backends.cuda.matmul.fp32_precision = "ieee"


def copies() -> None:
    """A copy on a stream of its own, beside matrix products on the default one."""
    a, copying = torch.randn(4096, 4096, device="cuda"), torch.cuda.Stream()

    def both(batch: torch.Tensor) -> None:
        with torch.cuda.stream(copying):
            batch.to("cuda", non_blocking=True)
        for _ in range(8):
            a @ a

    pageable = torch.ones(64 * 2**20)
    for name, batch in (("pageable", pageable), ("pinned", pageable.pin_memory())):
        alone = milliseconds(lambda batch=batch: batch.to("cuda", non_blocking=True))
        beside = milliseconds(lambda batch=batch: both(batch))
        print(
            f"copy from {name} memory: returned after {alone[0]:.2f} ms, done after {alone[1]:.2f}; "
            f"with products beside it {beside[1]:.2f} ms"
        )


def graphs() -> None:
    """200 small kernels: launched one by one, and as one graph."""
    x = torch.ones(256, device="cuda")

    def launches() -> None:
        for _ in range(200):
            x.mul_(1.0001)

    one_by_one = milliseconds(launches)[1]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # records, computes nothing
        launches()
    print(f"200 kernels: {one_by_one:.2f} ms, replayed {milliseconds(graph.replay)[1]:.2f} ms")


def allocator() -> None:
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history()
    kept = [torch.empty(20 * 2**20, dtype=torch.uint8, device="cuda") for _ in range(8)]
    del kept[::2]
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    torch.cuda.memory._dump_snapshot(SNAPSHOT)
    torch.cuda.memory._record_memory_history(enabled=None)
    print(f"allocated {allocated / 1e6:.0f} MB, reserved {reserved / 1e6:.0f} MB: {SNAPSHOT}")


if not torch.cuda.is_available():
    sys.exit(
        "This program needs a CUDA GPU: a CPU has no TF32, no streams, no bus, no CUDA graphs."
    )
for part in (tf32, copies, graphs, allocator):
    part()
