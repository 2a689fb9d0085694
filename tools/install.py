"""python tools/install.py [--download FOLDER]

Install the course into the environment of this Python, with the pins of constraints.txt: torch, the
package itself (so that edits in src/ count) and pyproject.toml's groups. The groups of OPTIONAL do
not install everywhere: each is a step of its own, and where it fails, the rest is installed, and
the last lines say what is left out. --download fetches all of it into a folder instead, and what
Horovod is built from, for machines without a network.

Standard library only. TORCH_INDEX names an index to take torch from.
"""

import importlib.metadata
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

import horovod  # tools/horovod.py

ROOT = Path(__file__).resolve().parents[1]
OPTIONAL = {  # group: what is left out where it can't be installed
    "frameworks": "Lesson 04b goes on without Lightning and Accelerate.",
    "deepspeed": "Lessons 07 and 13b go on without DeepSpeed.",
    "megatron": "The appendix goes on without Megatron-core.",
    "horovod": "Lesson 05 shows a recorded run of Horovod.",
}
LATER = ("horovod",)  # tools/horovod.py installs it when it builds Horovod
NO_REASON = (
    "pip's reason is above, and it says conflict too where it reaches no index. make preflight "
    "tries the index and names the proxies."
)
FULL_BYTES = 200e6
INTERRUPTED = 130  # as a shell says it


def groups() -> dict[str, list[str]]:
    """pyproject.toml's groups, and what each needs."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def steps(download: str | None = None) -> list[tuple[list[str], str | None]]:
    """pip's arguments for each step, and the group of a step that may fail."""
    pins = ["--constraint", "constraints.txt"]
    how = ["download", "--dest", download, *pins] if download else ["install", *pins]
    # setuptools is installed first, so the package can be built without asking the index for it
    editable = ["--no-build-isolation"] + ([] if download else ["--editable"])
    index = os.environ.get("TORCH_INDEX")
    everybody = [name for name in groups() if name not in OPTIONAL]
    required = [
        [*how, *(["--index-url", index] if index else []), "torch"],
        [*how, "setuptools"],
        [*how, *editable, f".[{','.join(everybody)}]"],
    ]
    optional = [name for name in OPTIONAL if download or name not in LATER]
    may_fail = [([*how, *editable, f".[{name}]"], name) for name in optional]
    if download:
        source = ["--no-build-isolation", "--no-deps", "--no-binary", "horovod"]
        may_fail.append(([*how, *source, f"horovod=={horovod.VERSION}"], "horovod"))
    return [(step, None) for step in required] + may_fail


def package(line: str) -> str:
    """The package that a line of pyproject.toml names."""
    return re.match(r"[\w.-]+", line)[0]


def absent(group: str) -> bool:
    """Whether this environment lacks a package of the group, for whatever reason."""
    try:
        for line in groups()[group]:
            importlib.metadata.version(package(line))
    except importlib.metadata.PackageNotFoundError:
        return True
    return False


def obstacle(folder: str, instead: bool) -> str | None:
    """Why nothing can be put into this folder, None if something can.

    instead: whether pip would use another one, this user's own, where it can't be written.
    """
    if not os.access(folder, os.W_OK, effective_ids=True) and not instead:
        return f"{folder} can't be written by this user"
    try:
        disks = (folder, tempfile.gettempdir())
    except FileNotFoundError:  # each disk that it tries is full, or can't be written
        return "there is no folder for temporary files: free some space, or set TMPDIR"
    for disk in disks:
        if shutil.disk_usage(disk).free < FULL_BYTES:
            return f"the disk of {disk} is full"
    return None


def run(download: str | None) -> int:
    """Each step in turn. The exit code is pip's where a step fails that everybody needs."""
    done = "fetched" if download else "installed"
    target, left_out = download or sysconfig.get_path("purelib"), []
    instead = bool(site.ENABLE_USER_SITE) and not download
    if download:
        try:
            Path(download).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            print(f"Nothing was fetched: {download} can't be a folder ({error.strerror}).")
            return 1
    if why := obstacle(target, instead):
        print(f"Nothing was {done}: {why}.")
        return 1
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    for arguments, group in steps(download):
        failed = subprocess.run([*pip, *arguments], cwd=ROOT).returncode
        if failed and group is None:
            why = obstacle(target, instead)
            why = f"{why}. Then the same command goes on." if why else NO_REASON
            print(f"{arguments[-1]} was not {done}: {why}", flush=True)
            return failed
        if group and (failed or (not download and absent(group))):
            left_out.append(group)
    for group in dict.fromkeys(left_out):
        needs = ", ".join(groups()[group])
        print(f"Not {done}: the group {group} ({needs}). {OPTIONAL[group]}")
    if left_out:
        again = shlex.join([sys.executable, *sys.argv])  # a path may have a blank
        print(f"All else is {done}. To try again: {again}", flush=True)
    return 0


def main() -> int:
    given = sys.argv[1:]
    if given and (len(given) != 2 or given[0] != "--download" or not given[1]):
        print(__doc__)
        return 2
    try:
        return run(os.path.abspath(given[1]) if given else None)  # pip has another cwd
    except KeyboardInterrupt:
        print("Interrupted: the same command goes on where it was.")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
