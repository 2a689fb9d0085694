"""Everything that a person makes goes to that person's clone, whoever installed the package."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bootcamp import paths

NOBODY = 65534
# Another user who may read every file, as this Python may be in a home folder, and write only hers.
AS_NOBODY = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)
MAKES = """
from bootcamp import exercise, launch, predict, variant
from bootcamp.paths import LOGS, NOTEBOOKS, REFERENCE, ROOT, SRC, WORK
import bootcamp

print(bootcamp.__file__, ROOT, SRC, NOTEBOOKS, LOGS, WORK, sep="\\n")
run = launch("ddp", 2, device="cpu", steps=2, global_batch=4, size="tiny", quiet=True)
print(run.folder)
print(variant("ddp", "broken", {"optimizer.zero_grad()": ""}))
exercise.start("data_parallel")
predict("ranks", "How many ranks?", answer=2).score(2)
"""


def test_the_nearest_clone_is_the_courses_folder(tmp_path):
    clone = tmp_path / "mine"
    inner = clone / "notebooks" / "deep"
    inner.mkdir(parents=True)
    assert paths.course_folder(inner) == paths.PACKAGE.parents[1]  # without the scripts no clone
    (clone / "src").mkdir()
    (clone / "src" / "_train_cpu.py").touch()
    for start in (clone, clone / "notebooks", inner):
        assert paths.course_folder(start) == clone
    assert paths.course_folder(tmp_path) == paths.PACKAGE.parents[1]


@pytest.fixture
def two_clones():
    """Two clones in a folder that every user may enter: one is root's, one nobody's."""
    python = [*AS_NOBODY, sys.executable, "-c", ""]
    if os.geteuid() or not shutil.which("setpriv") or subprocess.run(python).returncode:
        pytest.skip("this process can't become another user")
    place = Path(tempfile.mkdtemp(prefix="bootcamp-clones-"))
    place.chmod(0o755)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "work")
    for name in ("installed", "own"):
        for part in ("src", "notebooks"):
            shutil.copytree(paths.ROOT / part, place / name / part, ignore=ignored)
    subprocess.run(["chmod", "-R", "u=rwX,go=rX", str(place)], check=True)
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", str(place / "own")], check=True)
    yield place / "installed", place / "own"
    shutil.rmtree(place)


def files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_two_people_with_two_clones_and_one_environment_share_no_file(two_clones):
    installed, own = two_clones
    before, mine = files(installed), files(own)
    env = {k: v for k, v in os.environ.items() if k not in ("BOOTCAMP_LOGS", "BOOTCAMP_WORK")}
    env |= {"PYTHONPATH": str(installed / "src"), "HOME": str(own), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*AS_NOBODY, sys.executable, "-c", MAKES]
    how = {"cwd": own / "notebooks", "env": env, "text": True, "timeout": 200}
    told = subprocess.run(command, stdout=subprocess.PIPE, check=True, **how).stdout.splitlines()
    assert told[0] == str(installed / "src" / "bootcamp" / "__init__.py")
    assert told[1] == str(own)
    assert all(path.startswith(f"{own}/") for path in told[2:8])
    assert files(installed) == before
    made = {path.relative_to(own) for path in set(files(own)) - set(mine)}
    run = Path(told[6]).relative_to(own)
    assert {run / "summary.json", Path("logs/variants/broken.py")} <= made
    assert {Path("notebooks/work/data_parallel.py"), Path("notebooks/work/progress.json")} <= made
    for path in made:
        assert (own / path).stat().st_uid == NOBODY
        assert not stat.S_IMODE((own / path).stat().st_mode) & stat.S_IWOTH
    assert str(installed) not in (own / run / "config.json").read_text()
