"""python src/snippets/time_on_device.py

A matrix product timed twice: when the call has returned, and when its result is there. On a GPU
also how fast a batch crosses the bus, from ordinary (pageable) and from pinned memory.
"""

import time

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH_BYTES = 256 * 2**20


def gigabytes_per_second(batch: torch.Tensor) -> float:
    """The best of five copies to the GPU, each waited for."""
    seconds = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        batch.to(DEVICE, non_blocking=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return batch.nbytes / min(seconds) / 1e9


a = torch.randn(2048, 2048, device=DEVICE)
(a @ a).sum().item()  # warm-up
began = time.perf_counter()
total = (a @ a).sum()
returned = time.perf_counter() - began
total.item()  # waits for the device
done = time.perf_counter() - began
print(f"{DEVICE}: returned after {1e3 * returned:.2f} ms, result after {1e3 * done:.2f} ms")

if DEVICE == "cuda":
    batch = torch.ones(BATCH_BYTES // 4)
    print(f"to the GPU from pageable memory: {gigabytes_per_second(batch):.1f} GB/s")
    print(f"to the GPU from pinned memory: {gigabytes_per_second(batch.pin_memory()):.1f} GB/s")
else:
    print("No GPU here, so there is no bus to measure.")
