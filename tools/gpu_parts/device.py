"""The device that a record is made on: one GPU, or in a rehearsal the CPU with miniature sizes.

Everything that only CUDA has is in this file, so the parts run the same lines in both.
"""

import contextlib
import gc
import platform
import resource
import subprocess
import time
from collections.abc import Callable
from statistics import median

import psutil
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from bootcamp import machine
from bootcamp.costs import hardware
from bootcamp.costs.model_shapes import GPT
from bootcamp.train import benchmark, memory_usage, process_end

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
MINIATURE = {"layers": 1, "width": 32, "heads": 2, "context": 32}
ROOM = 64 << 20  # bytes of address space that a rehearsal leaves before memory is used up


class Device:
    """What a part may ask of the machine. kind: "cuda" or "cpu"; rehearsal: whether it is the CPU.

    Raises RuntimeError for cuda where torch finds none.
    """

    def __init__(self, rehearsal: bool):
        self.rehearsal, self.kind = rehearsal, "cpu" if rehearsal else "cuda"
        if rehearsal:  # the package's own measurements, as small as they can be
            torch.set_num_threads(1)
            benchmark.MATRIX_SIZE["cpu"], benchmark.CALLS, benchmark.ENOUGH_SECONDS = 64, 3, 0.01
            benchmark.STREAMED_BYTES["cpu"] = 1 << 20
        elif not torch.cuda.is_available():
            raise RuntimeError(f"torch {torch.__version__} finds no GPU")

    def choose(self, real, rehearsed):
        """A size for the GPU, or the one for a rehearsal."""
        return rehearsed if self.rehearsal else real

    def shape(self, size: str) -> dict[str, int]:
        """The shape of a GPT of this size; a miniature in a rehearsal."""
        return self.choose(GPT[size], MINIATURE)

    # what it is

    def about(self) -> dict:
        """Name, memory and driver of the GPU, and the versions that are used."""
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        if self.rehearsal:
            gpu = {"name": machine.cpu_name(), "memory_bytes": machine.memory_bytes()}
            return {"gpu": gpu, "versions": versions | {"cuda": None}}
        properties = torch.cuda.get_device_properties(0)
        versions |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        gpu = {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}",
            "cache_bytes": benchmark.read_cache_bytes("cuda"),
            "driver": _smi("driver_version"),
        }
        return {"gpu": gpu, "versions": versions}

    def published_peak(self, dtype: str) -> float | None:
        """FLOP/s of the data sheet, without sparsity; None where the course knows none.

        dtype: float32, tf32, bfloat16 or float16. Known are the SXM models.
        """
        name = "" if self.rehearsal else torch.cuda.get_device_name(0)
        column = {"float32": "peak_fp32_tflops", "tf32": "peak_tf32_tflops"}
        column = column.get(dtype, "peak_tflops")
        for row in hardware.shown_in_lessons():
            known = row["lessons"].split()[0] in name and not {"PCIe", "NVL"} & set(name.split())
            if known and row[column]:
                return float(row[column]) * 1e12
        return None

    # time

    def wait(self) -> None:
        """Until everything that was launched is done."""
        if self.kind == "cuda":
            torch.cuda.synchronize()

    def seconds_each(self, run: Callable[[], object], times: int, warm: int = 1) -> float:
        """Seconds of one call, launched one behind another and waited for once, at the end."""
        for _ in range(warm):
            run()
        self.wait()
        began = time.perf_counter()
        for _ in range(times):
            run()
        self.wait()
        return (time.perf_counter() - began) / times

    def median_seconds(self, run: Callable[[], object], times: int) -> float:
        """The median of so many calls, each waited for."""
        return median(self.seconds_each(run, 1) for _ in range(times))

    # memory

    def allocated_bytes(self) -> int | None:
        """What torch's tensors hold on the GPU at this moment; None on the CPU."""
        return torch.cuda.memory_allocated() if self.kind == "cuda" else None

    def reset_peak(self) -> None:
        if self.kind == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def peak_bytes(self) -> int:
        """The most since reset_peak; on the CPU the most resident memory of this process."""
        return memory_usage.read_peak_bytes(torch.device(self.kind))

    def forget(self) -> None:
        """Free what nobody refers to, and give it back to the device."""
        gc.collect()
        if self.kind == "cuda":
            torch.cuda.empty_cache()

    def used_bytes_from_outside(self) -> int | None:
        """What all processes hold of the GPU, as its driver says; None on the CPU."""
        if self.kind == "cpu":
            return None
        return int(_smi("memory.used").split()[0]) << 20

    @contextlib.contextmanager
    def little_memory(self):
        """In a rehearsal the memory runs out in here, with the real error; a GPU's does anyway."""
        if not self.rehearsal:
            yield
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        now = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    @staticmethod
    def is_out_of_memory(error: BaseException) -> bool:
        return process_end.classify_exception(error) == "oom"

    # how it computes

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in memory that the GPU reads by itself; the tensor itself in a rehearsal."""
        return tensor.pin_memory() if self.kind == "cuda" else tensor

    @contextlib.contextmanager
    def tf32(self, on: bool):
        """Whether float32 matrix products may round their operands to TF32's 10 bits."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if on else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    def attention(self, kernel: str | None):
        """One of torch's attention kernels by name; None leaves the choice to torch."""
        return sdpa_kernel(KERNELS[kernel]) if kernel else contextlib.nullcontext()

    def compile(self, function: Callable) -> Callable:
        """torch.compile; a rehearsal traces the model too and generates no code, which is slow."""
        torch._dynamo.config.recompile_limit = 64  # several models go through one function
        backend = self.choose("inductor", "eager")
        return torch.compile(function, backend=backend, dynamic=False)

    def activities(self) -> list:
        """What torch.profiler is to watch."""
        of_cpu, of_gpu = torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA
        return [of_cpu] if self.kind == "cpu" else [of_cpu, of_gpu]

    def traced_seconds(self, event) -> float:
        """Seconds that a row of a profile's key_averages() kept the device itself busy."""
        own = "self_cpu_time_total" if self.kind == "cpu" else "self_device_time_total"
        return getattr(event, own) / 1e6


def _smi(field: str) -> str:
    """One field of nvidia-smi for the first GPU."""
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader", "--id=0"]
    return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
