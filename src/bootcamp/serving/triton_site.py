"""Where Triton is on this machine: the environment that tools/triton_server.py has made for it."""

import os
import sys
from pathlib import Path

from bootcamp import machine
from bootcamp.files import read_json
from bootcamp.paths import ROOT

ENVIRONMENT = ROOT / ".venv-triton"
READY = ENVIRONMENT / ".ready"  # written last
NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME")  # they are the course's Python's, not Triton's


def why_not() -> str | None:
    """Why this machine can't run Triton, in one sentence; None if it can."""
    if machine.hidden("triton"):
        return "BOOTCAMP_WITHOUT hides it in this environment"
    if sys.platform != "linux":
        return "Triton Inference Server needs Linux"
    if not (programs() / "bin" / "tritonserver").exists():
        return f"there is no {ENVIRONMENT.name}: make triton makes it"
    return None


def programs() -> Path:
    """The folder with the binary and the backends; one that is not there without them."""
    return Path(read_json(READY).get("triton", ENVIRONMENT / "missing"))


def environment() -> dict[str, str]:
    """A server's environment: how its instances find their Python and that Python's library.

    With the library of another Python, even one of the same version, they fail when they start.
    """
    own = {name: text for name, text in os.environ.items() if name not in NOT_INHERITED}
    search = os.pathsep.join([str(ENVIRONMENT / "bin"), os.environ.get("PATH", os.defpath)])
    libraries = [read_json(READY)["python_libraries"], os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        **own,
        "PATH": search,
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        "PYTHONDONTWRITEBYTECODE": "1",  # the repository is Triton's to read
        "OMP_NUM_THREADS": "1",
    }


def runs_on_gpus() -> bool:
    """Whether the ONNX Runtime in there was built for CUDA; `make triton` installs one for CPUs."""
    return any(ENVIRONMENT.glob("lib/python3*/site-packages/onnxruntime/capi/*providers_cuda.so"))
