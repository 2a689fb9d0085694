"""The wheel: what it contains, and that it launches ranks where there is no clone."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NO_CODE = ("README.md",)
LAUNCH = """
import bootcamp
from bootcamp import launch

print(bootcamp.__file__)
run = launch("ranks.py", 2, quiet=True)
print(run.summary["status"])
print((run.folder / "ranks" / "1.out").read_text())
launch("ddp", 2)
"""
RANKS = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor(dist.get_rank() + 1.0)
dist.all_reduce(total)
print("sum over ranks", total.item())
dist.destroy_process_group()
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Build the wheel from a copy, without a network: setuptools is the environment's own."""
    folder = tmp_path_factory.mktemp("wheel")
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "copy" / "src", ignore=skipped)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "copy")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "-w", folder, folder / "copy"], check=True)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_contains_the_two_packages_with_their_data_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
    packages = [ROOT / "src" / name for name in ("bootcamp", "bootcamp_lessons")]
    here = [path for package in packages for path in package.rglob("*") if path.is_file()]
    assert files == {
        path.relative_to(ROOT / "src").as_posix()
        for path in here
        if "__pycache__" not in path.parts and path.name not in NO_CODE
    }


def test_wheel_launches_ranks_without_a_clone(wheel, tmp_path):
    """The course's own scripts are not in it, which is said in a sentence."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "ranks.py").write_text(RANKS)
    env = {name: v for name, v in os.environ.items() if not name.startswith("BOOTCAMP_")}
    env |= {"PYTHONPATH": str(tmp_path / "site"), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    package, status, *said = done.stdout.splitlines()
    assert Path(package).is_relative_to(tmp_path / "site"), done.stderr
    assert (status, said[0]) == ("ok", "sum over ranks 3.0")
    assert "give one of the repository's in a clone of it" in done.stderr.splitlines()[-1]
