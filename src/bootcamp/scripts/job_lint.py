"""Faults in job files for Slurm that bash, and a first look, let pass:

    for fault in job_lint.faults(Path("src/jobs/ddp_srun.sbatch")):
        print(fault)

What is wrong with the shell itself is for ShellCheck to say.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bootcamp.paths import ROOT

OF_TASKS = r"\$\{?SLURM_(PROCID|LOCALID|NODEID)\b"
STARTS_RANKS = r"(?:python3?\s+\S*\.py|torchrun\s)"


@dataclass(frozen=True)
class Fault:
    """A line of a job file and what is wrong with it. line: counted from 1."""

    line: int
    what: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}"


def faults(path: Path) -> list[Fault]:
    """What is wrong with a job file, in order of its lines. Raises OSError."""
    job = JobFile(path.read_text())
    found = [fault for rule in RULES for fault in rule(job)]
    return sorted(found, key=lambda fault: fault.line)


class JobFile:
    """A job file's lines: its options for sbatch, and what bash runs, joined where it goes on.

    commands: [(number, text)] of what is no comment; a `srun ... '` is one with what it quotes.
    outer: the same without what stands in single quotes, which bash hands over unexpanded.
    """

    def __init__(self, text: str):
        self.lines = text.splitlines()
        self.commands, self.outer = [], []
        begun, code, outer, quote = 1, "", "", ""
        for number, line in enumerate(self.lines, 1):
            begun = begun if code else number
            for place, letter in enumerate(line):
                if not quote and letter == "#" and (place == 0 or line[place - 1].isspace()):
                    break
                code += letter
                outer += letter if quote != "'" else ""
                if letter in "'\"" and quote in ("", letter):
                    quote = "" if quote else letter
            code, outer = code + "\n", outer + "\n"
            if quote == "'" or line.rstrip().endswith("\\"):
                continue
            if code.strip():
                self.commands.append((begun, code.replace("\\\n", " ")))
                self.outer.append((begun, outer.replace("\\\n", " ")))
            code = outer = ""

    def option(self, name: str) -> str | None:
        """The value of #SBATCH --name=value that counts."""
        first = self.commands[0][0] if self.commands else len(self.lines)
        for line in self.lines[:first]:
            if found := re.match(rf"#SBATCH\s+--{name}[= ](\S+)", line):
                return found[1]
        return None

    @property
    def tasks_per_host(self) -> int:
        return int(self.option("ntasks-per-node") or 1)

    def lines_with(self, expression: str, among=None) -> Iterator[tuple[int, str]]:
        """The commands in which a regular expression is found."""
        commands = self.commands if among is None else among
        return ((number, text) for number, text in commands if re.search(expression, text))


def not_an_option(job: JobFile) -> Iterator[Fault]:
    for number, line in enumerate(job.lines, 1):
        if re.match(r"#\s+SBATCH\b", line):
            yield Fault(number, "# SBATCH with a space is a comment: sbatch does not read it")
        elif re.match(r"#SBATCH\b", line) and job.commands and number > job.commands[0][0]:
            yield Fault(number, "#SBATCH after the first command is a comment: move it up")


def missing_files(job: JobFile) -> Iterator[Fault]:
    for number, text in job.commands:
        for path in re.findall(r"(?<![\w$/}\"])[\w./-]+\.py\b", text):
            if not (ROOT / path).is_file():
                yield Fault(number, f"{path}: there is no such file")


def address_of_each_host(job: JobFile) -> Iterator[Fault]:
    for number, _ in job.lines_with(r"MASTER_ADDR=\S*\$\(\s*hostname\b"):
        yield Fault(
            number,
            "MASTER_ADDR is the name of each host that runs this: name the first host of the job "
            "once, $(scontrol show hostnames ... | head -n 1)",
        )


def expanded_too_early(job: JobFile) -> Iterator[Fault]:
    for number, text in job.lines_with(OF_TASKS, job.outer):
        name = re.search(OF_TASKS, text)[0].replace("{", "")
        yield Fault(
            number,
            f"{name} is expanded too early, in the batch script, where it is 0: put it into "
            "srun bash -c '...', in single quotes",
        )


def without_srun(job: JobFile) -> Iterator[Fault]:
    if job.option("nodes") in (None, "1") and job.tasks_per_host == 1:
        return
    for number, text in job.lines_with(STARTS_RANKS):
        if not re.search(r"\b(srun|mpirun)\b", text):
            yield Fault(number, "ranks are started without srun: on the first host, and only once")


def started_twice(job: JobFile) -> Iterator[Fault]:
    for number, text in job.lines_with(r"\btorchrun\b"):
        own = re.search(r"--ntasks-per-node[= ](\d+)", text)
        if (int(own[1]) if own else job.tasks_per_host) > 1:
            yield Fault(
                number,
                "each task starts a torchrun, which starts ranks itself: one task per host for it",
            )


def hidden_failure(job: JobFile) -> Iterator[Fault]:
    for number, _ in job.lines_with(r"\|\|\s*echo\s+[\"']?(localhost|127\.0\.0\.1)"):
        yield Fault(
            number,
            "|| echo localhost hides that the hosts could not be listed: each host then looks for "
            "rank 0 on itself",
        )


def signalled_by_name(job: JobFile) -> Iterator[Fault]:
    for number, _ in job.lines_with(r"\b(pkill|killall)\b"):
        yield Fault(
            number,
            "a signal by name hits srun and torchrun too, and other jobs on the host: touch a file "
            "that the ranks look for",
        )


def deaf_shell(job: JobFile) -> Iterator[Fault]:
    if not any(job.lines_with(r"^\s*trap\b.*\bUSR")):
        return
    for number, text in job.lines_with(r"\bsrun\b"):
        if not re.search(r"&\s*$", text):
            yield Fault(
                number,
                "the trap waits until srun has ended: put srun into the background (&), and wait",
            )


RULES = (
    not_an_option,
    missing_files,
    address_of_each_host,
    expanded_too_early,
    without_srun,
    started_twice,
    hidden_failure,
    signalled_by_name,
    deaf_shell,
)
