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
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".venv-triton"
READY = ENVIRONMENT / ".ready"  # written last: what is installed, and where
# numpy is asked for first: where it has no wheel, nothing large is fetched
PINS = ["numpy==1.26.4", "nvidia-pytriton==0.7.0", "onnxruntime==1.32.0", "flatbuffers==25.12.19"]
PINS += ["packaging==26.3", "protobuf==6.33.6"]
NEEDS = "It needs Linux on x86_64, glibc 2.35 and Python 3.11 or 3.12 (make PYTHON=python3.12)."
STUB = "triton_python_backend_stub"
CANNOT = 3  # the exit code for "not on this machine"


def python_libraries() -> Path | None:
    """The folder of this Python's shared library; None if there is none."""
    name = sysconfig.get_config_var("INSTSONAME") or ""
    folders = (Path(sysconfig.get_config_var("LIBDIR") or "/"), Path(sys.base_prefix) / "lib")
    if not name.startswith("libpython") or ".so" not in name:
        return None
    return next((folder for folder in folders if (folder / name).exists()), None)


def installed() -> bool:
    """Whether these pins are installed, with this Python."""
    try:
        found = json.loads(READY.read_text())
    except (OSError, ValueError):
        return False
    as_now = found["pins"] == PINS and found["python"] == sys.version
    return as_now and Path(found["triton"]).is_dir()  # not after the clone has moved


def install(libraries: Path) -> None:
    """Make the environment. Raises CalledProcessError, also where a package has no wheel."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
    pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    wheels = ["--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, "install", *wheels, *PINS], check=True)
    (packages,) = ENVIRONMENT.glob("lib/python3*/site-packages")
    triton = packages / "pytriton" / "tritonserver"
    stub = triton / "python_backend_stubs" / f"3.{sys.version_info[1]}" / STUB
    (triton / "backends" / "python" / STUB).symlink_to(stub)  # where the backend looks for it
    about = {"pins": PINS, "python": sys.version, "triton": str(triton)}
    READY.write_text(json.dumps(about | {"python_libraries": str(libraries)}, indent=1) + "\n")


def main() -> int:
    """Install it if it is missing."""
    if not installed():
        not_here = "Triton Inference Server is not installed:"
        if (libraries := python_libraries()) is None:
            package = "libpython{}.{}".format(*sys.version_info)
            print(f"{not_here} this Python's shared library is missing (Debian's {package}).")
            return CANNOT
        print(f"Installing Triton into {ENVIRONMENT.name} (300 MB, once) ...", flush=True)
        try:
            install(libraries)
        except subprocess.CalledProcessError:
            print(f"{not_here} the reason is above. {NEEDS}")
            return CANNOT
    print("Triton Inference Server is here.")
    return 0


if __name__ == "__main__":
    sys.exit(__doc__ if sys.argv[1:] else main())
