"""List the GPUs, and the devices and cores that a run asks for.

A device is a dictionary, for it travels as JSON: `key`, its name in the folder of the locks;
`label`, its name for people; `value`, its name in the ranks' environment.
"""

from bootcamp import machine
from bootcamp.launcher import device_locks
from bootcamp.launcher.connection import gpu_count
from bootcamp.launcher.run_errors import refusal
from bootcamp.scripts.family import Script

VARIABLE = "CUDA_VISIBLE_DEVICES"
SHARED = "BOOTCAMP_SHARE_GPUS"  # "1": ranks beyond the GPUs share them and talk over gloo


def wishes(script: Script, kind: str | None, ranks: int, cores: int, env: dict) -> dict:
    """Return what a run leases before it starts (device_locks.py), as part of its request.

    A GPU for each rank; every visible one for a script that takes several, or that nobody knows.
    CPU ranks lease cores, unless BOOTCAMP_FIRST_CORE says which. Raises RunRefused.

    kind: "cpu", "cuda", "meta", or None where the script chooses. cores: of each CPU rank.
    """
    if (locks := device_locks.folder()) is None:
        return {}
    found, count = [], ranks
    if kind not in ("cpu", "meta"):
        found = gpus(env.get(VARIABLE), gpu_count())
        one_each = (script.of_course and not script.own_device) or (
            kind == "cuda" and not script.of_course
        )
        count = ranks if one_each else len(found)
        if env.get(SHARED) == "1":
            count = min(count, len(found))
    if found and count > len(found):
        labels = ", ".join(each["label"] for each in found)
        message = f"ranks={ranks} lease as many devices, and here are {len(found)}: {labels}. "
        raise refusal(f"{message}Launch with ranks={len(found)} or fewer.")
    wish = {}
    if found:
        lease = {"folder": str(locks), "devices": found, "count": count, "variable": VARIABLE}
        wish["lease"] = lease
    if "BOOTCAMP_FIRST_CORE" not in env and (kind == "cpu" or (kind is None and not found)):
        wish["cores"] = {"folder": str(locks), "each": cores}
    return wish


def gpus(visible: str | None, count: int) -> list[dict]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, None for all. count: how many torch sees of them.

    They are named by UUID, which means the same GPU to every process, whatever is visible to it.
    Where nvidia-smi does not tell it, the name is the entry of the variable, or the index.
    """
    found = machine.visible_gpus(visible)
    entries = [str(k) for k in range(len(found) or count)]
    if visible is not None:
        entries = [entry.strip() for entry in visible.split(",")]
    if found and len(found) == min(len(entries), count):
        return [_device(gpu.uuid, f"GPU {gpu.index}", gpu.uuid) for gpu in found]
    return [_device(f"gpu-{entry}", f"GPU {entry}", entry) for entry in entries[:count]]


def _device(key: str, label: str, value: str) -> dict:
    return {"key": key, "label": label, "value": value}
