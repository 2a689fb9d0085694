"""%run tools/hosted.py [GROUP ...]

The course in a notebook of a server that is not yours (Colab, Kaggle, a hub): run this in its first
cell, after each start of the kernel. It installs the packages of pyproject.toml that are missing,
those of the core and of the group `kernel`, and of the groups that are named. What is there stays
as it is, torch above all: it was built for that machine's driver, and the running kernel may have
loaded it. Then kernel and ranks find the course's modules, and cells run in its notebooks' folder.
"""

import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import install as course  # noqa: E402


def wanted(names: list[str]) -> tuple[list[Requirement], list[Requirement]]:
    """List what the core needs, and what these groups do, on this system."""
    known = course.groups()
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"There is no group {unknown[0]}: there are {', '.join(known)}.")
    core = course.project()["project"]["dependencies"]
    lines = core, [line for name in names for line in known[name]]
    parsed = [[Requirement(line) for line in some] for some in lines]
    return tuple([r for r in some if not r.marker or r.marker.evaluate()] for some in parsed)


def refusal(core: list[Requirement], here: dict[str, str]) -> str | None:
    """Say why the course cannot run in this environment without a change of what is there."""
    for need in core:
        version = here.get(course.plain(need.name))
        if version is None and need.name == "torch":
            found = "there is no torch"
        elif version and not need.specifier.contains(version, prereleases=True):
            found = f"{need.name} is {version}"
        else:
            continue
        return (
            f"Here {found}, and the course needs {need}. Nothing was changed. Choose a newer "
            "image or kernel, or make an environment of the course's own: make install."
        )
    return None


def install(missing: list[str], here: dict[str, str]) -> list[str]:
    """Install these, change nothing that is there; return those that could not be installed."""
    kept = [f"{name}=={version}" for name, version in here.items()]
    pins = [f"{name}=={version}" for name, version in course.pins().items() if name not in here]
    with tempfile.TemporaryDirectory() as folder:
        strict, loose = Path(folder, "strict.txt"), Path(folder, "loose.txt")
        strict.write_text("\n".join([*kept, *pins]))
        loose.write_text("\n".join(kept))
        if not missing or _pip(missing, strict):
            return []
        return [one for one in missing if not (_pip([one], strict) or _pip([one], loose))]


def _pip(packages: list[str], constraints: Path) -> bool:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return subprocess.run([*command, "--constraint", constraints, *packages]).returncode == 0


def set_paths() -> None:
    """Let kernel and ranks find bootcamp, and run cells beside the notebooks, without anywidget."""
    importlib.invalidate_caches()
    source = str(ROOT / "src")
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([source, *others]))
    if source not in sys.path:
        sys.path.insert(0, source)
    if "google.colab" not in sys.modules:  # the page has the widgets of its server's environment
        os.environ.setdefault("BOOTCAMP_ANYWIDGET", "0")
    os.chdir(ROOT / "notebooks")


def main(names: list[str]) -> None:
    """Install what is missing of the core, the group `kernel` and those that are named."""
    core, others = wanted(["kernel", *names])
    here = course.versions_here(local=True)
    if why := refusal(core, here):
        sys.exit(why)
    missing = [str(r) for r in [*core, *others] if course.plain(r.name) not in here]
    for need in others:
        version = here.get(course.plain(need.name))
        if version and not need.specifier.contains(version, prereleases=True):
            print(f"{need.name} is {version}, the course was tested with {need}: it stays.")
    left_out = install(missing, here)
    if without := [name for name in map(str, core) if name in left_out]:
        sys.exit(f"The course can't run here without {', '.join(without)}.")
    for name in left_out:
        print(f"{name} was not installed: what needs it will say so.")
    new = [name for name in missing if name not in left_out]
    print(f"Installed: {', '.join(new) or 'nothing new'}. torch {here['torch']} stays as it was.")
    set_paths()


if __name__ == "__main__":
    main(sys.argv[1:])
