"""python tools/horovod.py [--once]

Build the unmodified Horovod 0.28.1 source package against the installed torch, and install it.

The wheel is kept in a cache outside the work tree (`BOOTCAMP_CACHE`, else `~/.cache/bootcamp`),
by Python, torch and machine: it works with no other. Where it can't be built or installed, one
sentence says why and the exit code is 3. With --once, a build that has failed here is not repeated.

Two things keep Horovod from building with a plain `pip install`. Its setup.py imports torch, which
pip's isolated build hides from it. And its CMake files ask for C++14 twice, while torch's headers
need C++17; no flag reaches them, so a toolchain file changes what CMake takes C++14 to mean.
"""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
TOOLCHAIN = """# C++14 has to mean C++17: torch's headers need it, Horovod asks for 14 twice.
set(CMAKE_PROJECT_INCLUDE "${CMAKE_CURRENT_LIST_FILE}")
set(CMAKE_CXX14_STANDARD_COMPILE_OPTION "-std=c++17")
"""
MARK = ".horovod-built-for"  # in the environment: the name of its wheel's folder
CANNOT = 3  # the exit code for "not on this machine", which stops neither make test nor an image


class NotHere(Exception):
    """Why there will be no Horovod, in a sentence."""


def wishes() -> dict[str, str]:
    """The user's own HOROVOD_ variables, such as HOROVOD_GPU_OPERATIONS=NCCL (see its docs)."""
    return {name: os.environ[name] for name in sorted(os.environ) if name.startswith("HOROVOD_")}


def cache_folder() -> Path:
    """The folder for the wheel of this Python, this torch, this machine and these options."""
    base = os.environ.get("BOOTCAMP_CACHE")
    base = Path(base) if base else Path.home() / ".cache" / "bootcamp"
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    torch = importlib.metadata.version("torch")
    own = "".join(f"-{name.removeprefix('HOROVOD_')}={value}" for name, value in wishes().items())
    own += f"-{mpi}" if (mpi := shutil.which("mpicc")) else ""  # a build finds its MPI there again
    own = re.sub(r"[^\w.=-]", "_", own).lower()
    machine = f"{sys.platform}-{platform.machine()}"
    return base / f"horovod-{VERSION}-{python}-torch{torch}-{machine}{own}"


def cached_wheel() -> Path | None:
    return next(iter(sorted(cache_folder().glob("horovod-*.whl"))), None)


def installed() -> bool:
    """Whether this environment has Horovod, built against the torch that it has and as wished."""
    try:
        importlib.metadata.version("horovod")
    except importlib.metadata.PackageNotFoundError:
        return False
    mark = Path(sys.prefix) / MARK
    return mark.exists() and mark.read_text() == cache_folder().name


def failed_log() -> Path:
    """The log of the last build, where it failed."""
    return cache_folder() / "failed.log"


def obstacle() -> str | None:
    """Why Horovod can't be built on this machine, None if it can."""
    if sys.platform == "win32":
        return "Horovod has no Windows build: use WSL2."
    compiler = os.environ.get("CXX", "g++" if sys.platform == "linux" else "c++")
    for tool, what in ((compiler, "C++ compiler"), ("make", "make program")):
        if not shutil.which(tool):
            install = "on Debian and Ubuntu: apt install g++ make"
            return f"Horovod is not built: install a {what} ({install}), then run make horovod."
    return None


def build() -> Path:
    """Build the wheel into the cache and return its path. Raises NotHere with a sentence."""
    target = cache_folder()
    target.mkdir(parents=True, exist_ok=True)
    failed_log().unlink(missing_ok=True)
    print("Building Horovod (once for this Python and torch; about 5 minutes on two cores) ...")
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        toolchain, needed = Path(scratch, "toolchain.cmake"), Path(scratch, "requirements.txt")
        toolchain.write_text(TOOLCHAIN)
        needed.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
        log = target / "build.log"
        with open(log, "w") as output:
            built = subprocess.run(
                [*pip("wheel"), "--no-build-isolation", "--no-deps", "--no-binary", "horovod"]
                + ["--no-cache-dir", "--require-hashes", "--verbose"]
                + ["--wheel-dir", scratch, "--requirement", str(needed)],
                env={**os.environ, **environment(toolchain)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        if built.returncode:
            said = log.read_text(errors="replace")
            sys.stderr.write("".join(said.splitlines(True)[-30:]))
            if "Building wheel" in said:  # there was a source package to build
                log = log.rename(failed_log())
            raise NotHere(
                f"Horovod did not build: the end of its log is above, all of it in {log}."
            )
        (wheel,) = Path(scratch).glob("horovod-*.whl")
        return wheel.replace(target / wheel.name)


def environment(toolchain: Path) -> dict[str, str]:
    """What Horovod's setup.py and CMake read: torch, gloo, MPI if it is here, the user's wishes."""
    mpi = {} if shutil.which("mpicc") else {"HOROVOD_WITHOUT_MPI": "1"}
    return {
        "CMAKE_TOOLCHAIN_FILE": str(toolchain),
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # CMake 4 has dropped what Horovod's files ask for
        "HOROVOD_CMAKE": shutil.which("cmake", path=Path(sys.executable).parent) or "cmake",
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        **mpi,
        "MAKEFLAGS": f"-j{min(8, os.cpu_count() or 2)}",
        **wishes(),
    }


def pip(command: str) -> list[str]:
    return [sys.executable, "-m", "pip", command, "--disable-pip-version-check"]


def run_pip(*arguments: str) -> None:
    """pip install. Raises NotHere with a sentence."""
    if subprocess.run([*pip("install"), "--quiet", *arguments]).returncode:
        raise NotHere("Horovod was not installed: pip's reason is above.")


def install(wheel: Path) -> None:
    """Install the wheel, and note what it was built for."""
    run_pip("--no-deps", "--force-reinstall", str(wheel))
    (Path(sys.prefix) / MARK).write_text(cache_folder().name)


def main(once: bool = False) -> int:
    if installed():
        print(f"Horovod {VERSION} is installed.")
        return 0
    wheel, project = cached_wheel(), tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    try:
        if wheel is None and (why := obstacle()):
            raise NotHere(why)
        if wheel is None and once and failed_log().exists():
            raise NotHere(f"Horovod did not build: see {failed_log()}. make horovod tries again.")
        needed = project["optional-dependencies"]["horovod"]  # to build and to run it
        run_pip("--constraint", str(ROOT / "constraints.txt"), *needed)
        install(wheel or build())
    except (NotHere, OSError) as why:
        print(why if isinstance(why, NotHere) else f"Horovod is not built: {why}.", flush=True)
        return CANNOT
    print(f"Horovod {VERSION} is installed, from {'the cache' if wheel else 'its source package'}.")
    return 0


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--once"]):
        sys.exit(__doc__)
    sys.exit(main(once="--once" in sys.argv))
