"""python tools/install.py [--download FOLDER]

Install the course into the environment of this Python, with the pins of constraints.txt: torch, the
package itself (so that edits in src/ count) and pyproject.toml's groups. The groups of OPTIONAL do
not install everywhere: each is a step of its own, and where it fails, a sentence names what is left
out. --download fetches all of it into a folder instead, for machines without a network.

Standard library only. TORCH_INDEX names an index to take torch from.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPTIONAL = {  # what is left out where a group can't be installed
    "deepspeed": "Its cells in lesson 07 say so, and the lesson goes on without them.",
    "megatron": "Its cells in the appendix say so, and it goes on without them.",
}
FAILED = (
    "{name} was not installed; pip's reason is above, and it says conflict too where it reaches no "
    "index. make preflight tries the index and names the proxies."
)
LATER = ("horovod",)  # tools/horovod.py installs it when it builds Horovod


def groups() -> list[str]:
    """The groups of pyproject.toml that everybody gets."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [name for name in project["optional-dependencies"] if name not in (*OPTIONAL, *LATER)]


def steps(download: str | None = None) -> list[tuple[list[str], str | None]]:
    """pip's arguments for each step, and the sentence for a step that may fail."""
    pins = ["--constraint", "constraints.txt"]
    how = ["download", "--dest", download, *pins] if download else ["install", *pins]
    # setuptools is installed first, so the package can be built without asking the index for it
    editable = ["--no-build-isolation"] + ([] if download else ["--editable"])
    index = os.environ.get("TORCH_INDEX")
    required = [
        [*how, *(["--index-url", index] if index else []), "torch"],
        [*how, "setuptools"],
        [*how, *editable, f".[{','.join(groups())}]"],
    ]
    may_fail = [
        ([*how, *editable, f".[{name}]"], f"The group {name} was not installed. {what}")
        for name, what in OPTIONAL.items()
    ]
    return [(step, None) for step in required] + may_fail


def main() -> int:
    given = sys.argv[1:]
    if given and (len(given) != 2 or given[0] != "--download"):
        print(__doc__)
        return 2
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    for arguments, sentence in steps(given[1] if given else None):
        failed = subprocess.run([*pip, *arguments], cwd=ROOT).returncode
        if failed and sentence is None:
            print(FAILED.format(name=arguments[-1]), flush=True)
            return failed
        if failed:
            print(sentence, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
