"""python tools/install.py [GROUP ... | all]

Install the course into the environment of this Python, in the versions of constraints.txt: torch,
the package itself (so that edits in src/ count) and the groups of pyproject.toml that a reader
needs. The others come when they are named, or with `all`. What is there as pinned is left alone.

A group of OPTIONAL does not install everywhere. Where one fails the rest is installed, and the
last lines say what is left out. Standard library only. TORCH_INDEX names an index to take torch
from.
"""

import argparse
import contextlib
import importlib.metadata
import os
import re
import shlex
import site
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
READER = ("kernel", "lab")  # what cells need, and JupyterLab
OPTIONAL = {  # group: what is left out where it can't be installed
    "frameworks": "Lesson 04d goes on without Lightning and Accelerate.",
    "deepspeed": "Lesson 07c goes on without DeepSpeed.",
    "megatron": "The appendix goes on without Megatron-core.",
    "horovod": "Lesson 05 shows a recorded run of Horovod.",
}
LATER = ("horovod",)  # tools/horovod.py installs it when it builds Horovod
NO_REASON = (
    "pip's reason is above, and it says conflict too where it reaches no index. make preflight "
    "tries the index and names the proxies."
)
INTERRUPTED = 130  # as a shell says it


def project() -> dict:
    """Read pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def groups() -> dict[str, list[str]]:
    """List what each group of pyproject.toml needs, those for work on the course among them."""
    told = project()
    return told["project"]["optional-dependencies"] | told.get("dependency-groups", {})


def plain(requirement: str) -> str:
    """Return the package that a requirement names, spelled as metadata compares it."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def pins() -> dict[str, str]:
    """Read {package: version} from constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("#")[0].strip().split("==") for line in lines]
    return {plain(pair[0]): pair[1] for pair in pairs if len(pair) == 2}


def versions_here(local: bool = False) -> dict[str, str]:
    """List the packages of this environment. local: with a build's suffix such as +cpu."""
    found = {}
    for package in importlib.metadata.distributions():
        if name := package.metadata["Name"]:  # a folder that lost its metadata has none
            version = package.version if local else package.version.split("+")[0]
            found.setdefault(plain(name), version)
    return found


class Step(NamedTuple):
    """One call of pip: what it installs, its arguments, and the group that may fail, if any."""

    what: str
    arguments: list[str]
    needs: list[str]
    optional: str | None = None

    def is_done(self, here: dict[str, str]) -> bool:
        """Whether all that this step installs is there."""
        return all(plain(line) in here for line in self.needs)


def steps(wanted: list[str]) -> list[Step]:
    """List the calls of pip for what a reader needs and for the groups that are named."""
    known, index = groups(), os.environ.get("TORCH_INDEX")
    how = ["install", "--constraint", "constraints.txt"]
    torch = [*how, *(["--index-url", index] if index else []), "torch"]
    # setuptools is installed first, so the package can be built without asking the index for it
    course = [*how, "--no-build-isolation", "--editable", "."]
    lines = [line for name in READER for line in known[name]]
    core = project()["project"]["dependencies"]
    found = [
        Step("torch", torch, ["torch"]),
        Step("setuptools", [*how, "setuptools"], ["setuptools"]),
        Step("the course and JupyterLab", [*course, *lines], ["bootcamp", *core, *lines]),
    ]
    for name in wanted:
        optional = name if name in OPTIONAL else None
        found.append(Step(f"the group {name}", [*how, *known[name]], known[name], optional))
    return found


def run(wanted: list[str]) -> int:
    """Take each step in turn. The exit code is pip's where a step fails that may not."""
    here, known_pins = versions_here(), pins()
    outdated = any(known_pins.get(name, version) != version for name, version in here.items())
    outdated = outdated or here.get("bootcamp") != project()["project"]["version"]
    todo = steps(wanted)
    if not outdated:
        todo = [step for step in todo if not step.is_done(here)]
    target = sysconfig.get_path("purelib")
    can_write = os.access(target, os.W_OK, effective_ids=True)
    if todo and not can_write and not site.ENABLE_USER_SITE:  # else pip takes this user's own
        print(f"Nothing was installed: {target} can't be written by this user.")
        return 1
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    left_out = {}
    for number, step in enumerate(todo, 1):
        print(f"{number} of {len(todo)}: {step.what} ...", flush=True)
        failed = subprocess.run([*pip, *step.arguments], cwd=ROOT).returncode
        if failed and not step.optional:
            print(f"{step.what} was not installed: {NO_REASON}", flush=True)
            return failed
        # pip ends well where a marker leaves a package out
        if step.optional and (failed or not step.is_done(versions_here())):
            left_out[step.optional] = ", ".join(groups()[step.optional])
    for group, needs in left_out.items():
        print(f"Not installed: the group {group} ({needs}). {OPTIONAL[group]}")
    if left_out:
        again = shlex.join([sys.executable, *sys.argv])  # a path may have a blank
        print(f"All else is installed. To try again: {again}", flush=True)
    if todo:
        with contextlib.suppress(OSError):  # packages went into this user's own folder
            Path(sys.prefix, ".ready").touch()
    return 0


def main() -> int:
    """Read the command line, and install."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [name for name in groups() if name not in READER]
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"all, or of {', '.join(names)}")
    given = parser.parse_args()
    if unknown := [name for name in given.groups if name not in ("all", *groups())]:
        parser.error(f"there is no group {unknown[0]}: there are all, {', '.join(names)}")
    wanted = [name for name in given.groups if name not in ("all", *READER)]
    if "all" in given.groups:
        wanted = [name for name in names if name not in LATER]
    try:
        return run(wanted)
    except KeyboardInterrupt:
        print("Interrupted: the same command goes on where it was.")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
