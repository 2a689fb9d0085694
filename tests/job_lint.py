"""A linter for Slurm job files: faults that bash lets pass; those of the shell are ShellCheck's."""

import re
from collections.abc import Iterator
from pathlib import Path

from bootcamp.paths import ROOT

# a command in which the expression is found has the fault
FAULTS = {
    r"MASTER_ADDR=\S*\$\(\s*hostname\b": "MASTER_ADDR is the name of each host that runs this: "
    "name the first host of the job once, $(scontrol show hostnames ... | head -n 1)",
    r"\|\|\s*echo\s+[\"']?(localhost|127\.0\.0\.1)": "|| echo localhost hides that the hosts could "
    "not be listed: each host then looks for rank 0 on itself",
    r"\b(pkill|killall)\b": "a signal by name hits srun and torchrun too, and other jobs on the "
    "host: touch a file that the ranks look for",
}
TASK_VARIABLE = r"\$\{?(SLURM_(?:PROCID|LOCALID|NODEID))\b"
START_OF_RANKS = r"(python3?\s+\S*\.py|torchrun\s)"
COMMENT = re.compile(r"(?m)(^|(?<=\s))#.*$")


def find_faults(path: Path) -> list[tuple[int, str]]:
    """List the faults of a job file as (line, counted from 1, sentence that explains the fault)."""
    text = path.read_text()
    return sorted([*_check_options(text), *_check_commands(text)])


def _check_options(text: str) -> Iterator[tuple[int, str]]:
    first = next(iter(_join_lines(text)), (len(text), ""))[0]
    if not re.search(r"(?m)^#SBATCH\s+--ntasks-per-node\b", text):
        yield 1, "no #SBATCH --ntasks-per-node: a host starts one task, whoever edits the rest"
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"#\s+SBATCH\b", line):
            yield number, "# SBATCH with a space is a comment: sbatch does not read it"
        elif re.match(r"#SBATCH\b", line) and number > first:
            yield number, "#SBATCH after the first command is a comment: move it up"


def _check_commands(text: str) -> Iterator[tuple[int, str]]:
    options = dict(re.findall(r"(?m)^#SBATCH\s+--([\w-]+)[= ](\S+)", text))
    tasks = int(options.get("ntasks-per-node", 1))
    several = options.get("nodes", "1") != "1" or tasks > 1
    traps = re.search(r"(?m)^\s*trap\b.*\bUSR", text)
    for number, command in _join_lines(text):
        yield from ((number, fault) for sign, fault in FAULTS.items() if re.search(sign, command))
        for file in re.findall(r"(?<![\w$/}\"])[\w./-]+\.py\b", command):
            if not (ROOT / file).is_file():
                yield number, f"{file}: there is no such file"
        if variable := re.search(TASK_VARIABLE, re.sub(r"'[^']*'", "", command)):
            yield (
                number,
                f"${variable[1]} is expanded too early, in the batch script, where it is 0: put it "
                "into srun bash -c '...', in single quotes",
            )
        if several and re.search(START_OF_RANKS, command) and not re.search(r"\bsrun\b", command):
            yield number, "ranks are started without srun: on the first host, and only once"
        if re.search(r"\btorchrun\b", command):
            own = re.search(r"--ntasks-per-node[= ](\d+)", command)
            if int(own[1] if own else tasks) > 1:
                yield (
                    number,
                    "each task starts a torchrun, which starts ranks itself: one task per host",
                )
        if traps and re.search(r"\bsrun\b", command) and not command.rstrip().endswith("&"):
            yield (
                number,
                "the trap waits until srun has ended: put srun into the background (&), and wait",
            )


def _join_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (first line, command), with the lines on which it or its single quotes go on."""
    command = begun = ""
    for number, line in enumerate(COMMENT.sub("", text).splitlines(), 1):
        begun = begun if command else number
        command += line + "\n"
        if command.count("'") % 2 or line.endswith("\\"):
            continue
        if command.strip():
            yield begun, command.replace("\\\n", " ")
        command = ""
