"""python3 tools/triton_server.py

Install Triton Inference Server for bootcamp/serving/triton.py, without a container: the binary and
the python backend of PyPI's nvidia-pytriton, with ONNX Runtime, in an environment of their own,
`.venv-triton` (they need numpy 1). Exit code 3 where this machine can't have it, with a sentence
that says why. Standard library only.

Of PyTriton itself nothing is used: its packages stay out, and with them 120 MB. PyPI's tritonserver
is bindings alone, without the server. The python backend starts a program that embeds Python, built
for each version of it, so this Python's shared library has to be there.
"""

import json
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".venv-triton"
READY = ENVIRONMENT / ".ready"  # written last: what is installed, and where
PINS = ["nvidia-pytriton==0.7.0", "onnxruntime==1.32.0", "numpy==1.26.4", "flatbuffers==25.12.19"]
PINS += ["packaging==26.3", "protobuf==6.33.6"]
PYTHONS = ((3, 11), (3, 12))  # for which numpy 1 and a stub are there
GLIBC = (2, 35)  # the binary's
STUB = "triton_python_backend_stub"
CANNOT = 3  # the exit code for "not on this machine"


def python_libraries() -> Path | None:
    """The folder of this Python's shared library; None if there is none."""
    name = sysconfig.get_config_var("INSTSONAME") or ""
    folders = (Path(sysconfig.get_config_var("LIBDIR") or "/"), Path(sys.base_prefix) / "lib")
    if not name.startswith("libpython") or ".so" not in name:
        return None
    return next((folder for folder in folders if (folder / name).exists()), None)


def obstacle() -> str | None:
    """Why this machine or this Python can't have it, None if it can."""
    version, (library, number) = "{}.{}".format(*sys.version_info), platform.libc_ver()
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "its package is for Linux on x86_64."
    if sys.version_info[:2] not in PYTHONS:
        return f"it needs Python 3.11 or 3.12, not {version}. Say make triton PYTHON=python3.12."
    if library == "glibc" and tuple(map(int, number.split(".")[:2])) < GLIBC:
        return f"it needs glibc 2.35, this is {number}."
    if python_libraries() is None:
        install = f"on Debian and Ubuntu: apt install libpython{version}"
        return f"this Python's shared library is not here ({install})."
    return None


def installed() -> bool:
    """Whether these pins are installed, with this Python."""
    try:
        found = json.loads(READY.read_text())
    except (OSError, ValueError):
        return False
    as_now = found["pins"] == PINS and found["python"] == sys.version
    return as_now and Path(found["triton"]).is_dir()  # not after the clone has moved


def install() -> None:
    """Make the environment. Raises CalledProcessError."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
    pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", *PINS], check=True)
    (packages,) = ENVIRONMENT.glob("lib/python3*/site-packages")
    triton = packages / "pytriton" / "tritonserver"
    stub = triton / "python_backend_stubs" / f"3.{sys.version_info[1]}" / STUB
    (triton / "backends" / "python" / STUB).symlink_to(stub)  # where the backend looks for it
    server = [str(triton / "bin" / "tritonserver"), "--help"]
    said = subprocess.run(server, capture_output=True, text=True)  # its exit code is never 0
    if "--model-repository" not in said.stdout + said.stderr:
        raise subprocess.CalledProcessError(said.returncode, server, said.stdout, said.stderr)
    about = {"pins": PINS, "python": sys.version, "triton": str(triton)}
    about["python_libraries"] = str(python_libraries())
    beside = READY.with_suffix(".tmp")
    beside.write_text(json.dumps(about, indent=1) + "\n")
    os.replace(beside, READY)


def main() -> int:
    """Install it if it is missing."""
    if why := obstacle():
        print(f"Triton Inference Server is not installed: {why}")
        return CANNOT
    if not installed():
        print(f"Installing Triton into {ENVIRONMENT.name} (300 MB, once) ...", flush=True)
        try:
            install()
        except subprocess.CalledProcessError as error:
            print(f"Triton Inference Server is not installed: {error}")
            return 1
    print("Triton Inference Server is here.")
    return 0


if __name__ == "__main__":
    sys.exit(__doc__ if sys.argv[1:] else main())
