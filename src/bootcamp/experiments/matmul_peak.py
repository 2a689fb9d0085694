"""What this machine's matrix multiply reaches: the yardstick for a training's FLOP/s.

`python -m bootcamp.train.matmul` measures it in a process of its own, once for each device, number
format and number of cores; logs/machine.json keeps it.
"""

import tempfile
from pathlib import Path

from bootcamp import machine
from bootcamp.files import read_json, update_json
from bootcamp.launcher import launch
from bootcamp.launcher.arguments import to_arguments
from bootcamp.paths import LOGS

KEPT = LOGS / "machine.json"
# glibc gives large blocks back at once and asks for empty pages again; kept, they cost what a GPU's
# caching allocator does: nothing. A sum of two 64 MiB tensors took five times as long without.
REUSE_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}


def matmul_flops_per_second(device: str = "cpu", dtype: str = "float32", cores: int = 1) -> float:
    """Floating-point operations per second of a square matrix product on one rank.

    Matrices of 1024 x 1024 on the CPU, 8192 x 8192 on a GPU; a multiplication and an addition count
    as two. Takes a few seconds the first time.
    """
    return measured("matmul", device=device, dtype=dtype, cores=cores)["flops_per_second"]


def measured(module: str, again: bool = False, **arguments) -> dict:
    """What a measuring module of train/ writes, from logs/machine.json if it is known.

    arguments: its flags, `device` among them. again: measure although it is known.
    Raises LaunchError where it fails.
    """
    on_gpu = arguments["device"] == "cuda"
    name = ", ".join(machine.gpu_names()) if on_gpu else machine.cpu_name()
    key = " ".join(map(str, [module, name, *arguments.values()]))
    kept = read_json(KEPT)
    if again or key not in kept:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "measured.json"
            flags = to_arguments(arguments | {"out": out})
            command = ["python", "-m", f"bootcamp.train.{module}", *flags]
            launch.run_command(command, seconds=600, env=REUSE_MEMORY)
            new = {key: read_json(out)}
        kept = update_json(KEPT, lambda content: content.update(new))
    return kept[key]
