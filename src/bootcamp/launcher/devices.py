"""List the GPUs, and the devices and cores that a run asks for."""

from bootcamp import machine
from bootcamp.launcher import device_locks
from bootcamp.launcher.connection import gpu_count
from bootcamp.launcher.device_locks import VARIABLE
from bootcamp.launcher.follow import refusal
from bootcamp.scripts.family import Script

SHARED = "BOOTCAMP_SHARE_GPUS"  # "1": ranks beyond the GPUs share them and talk over gloo


def wishes(script: Script, kind: str | None, ranks: int, cores: int, env: dict) -> dict:
    """Return what a run leases before it starts (device_locks.py), as part of its request.

    A GPU for each rank; every visible one for a script that takes several, or that nobody knows.
    CPU ranks lease cores, unless BOOTCAMP_FIRST_CORE says which. Raises RunRefused.

    kind: "cpu", "cuda", "meta", or None where the script chooses. cores: of each CPU rank.
    """
    if (locks := device_locks.folder()) is None:
        return {}
    found = {} if kind in ("cpu", "meta") else gpus(env.get(VARIABLE), gpu_count())
    one_each = not script.own_device if script.takes_course_flags else kind == "cuda"
    count = ranks if one_each else len(found)
    if env.get(SHARED) == "1":
        count = min(count, len(found))
    if found and count > len(found):
        message = f"ranks={ranks} lease as many devices, and here are {len(found)}: "
        message += f"{', '.join(found)}. Launch with ranks={len(found)} or fewer."
        raise refusal(message)
    wish = {}
    if found:
        wish["lease"] = {"folder": str(locks), "devices": found, "count": count}
    if "BOOTCAMP_FIRST_CORE" not in env and (kind == "cpu" or (kind is None and not found)):
        wish["cores"] = {"folder": str(locks), "each": cores}
    return wish


def gpus(visible: str | None, count: int) -> dict[str, str]:
    """{label: name} of the GPUs that CUDA_VISIBLE_DEVICES leaves, None for all.

    The name is the UUID, which means the same GPU to every process, whatever is visible to it.
    Where nvidia-smi does not tell it, it is the entry of the variable, or the index.

    count: how many torch sees of them.
    """
    found = machine.visible_gpus(visible)
    entries = [str(k) for k in range(len(found) or count)]
    if visible is not None:
        entries = [entry.strip() for entry in visible.split(",")]
    if found and len(found) == min(len(entries), count):
        return {f"GPU {gpu.index}": gpu.uuid for gpu in found}
    return {f"GPU {entry}": entry for entry in entries[:count]}
