"""Start ranks from a notebook: `launch("ddp", ranks=2, steps=20) -> Run`.

The kernel asks a supervisor process of its own (supervisor.py), which asks a warm fork server
(forkserver.py); both live as long as the kernel. Imports no torch and no notebook library, so that
a machine without Jupyter launches too.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bootcamp import machine
from bootcamp.launcher import arguments, progress, run_request
from bootcamp.launcher.arguments import (
    HOW_TO_GET,
    ArgumentError,
    Options,
    available,
    is_count,
)
from bootcamp.launcher.connection import connect, default_ranks, gpu_count, shut_down, warm_up
from bootcamp.launcher.follow import (
    Interrupted,
    LaunchError,
    RankFailed,
    RunHung,
    RunRefused,
    follow,
    refusal,
)
from bootcamp.launcher.messages import COMMAND, Command, RunRequest
from bootcamp.records.runs import Run
from bootcamp.scripts import family

__all__ = [
    "HOW_TO_GET",
    "ArgumentError",
    "Interrupted",
    "LaunchError",
    "Options",
    "RankFailed",
    "RunHung",
    "RunRefused",
    "available",
    "before",
    "connect",
    "default_ranks",
    "gpu_count",
    "launch",
    "run_command",
    "shut_down",
    "warm_up",
]
before: list[Callable[[], None]] = []  # called before each run; what one raises prevents it


def launch(
    script: str | Path,
    ranks: int | None = None,
    args: list[str] | None = None,
    *,
    device: str = "auto",
    start: str | None = None,
    hosts: int = 1,
    link: str | None = None,
    quiet: bool = False,
    raises: bool = True,
    options: Options = Options(),  # noqa: B008 (frozen)
    **flags,
) -> Run:
    """Run a training script on some ranks of this machine and return its record.

    GPUs are leased while the run lasts (device_locks.py); the cell waits while others have them.

    script: a name of the family ("ddp") or the path of any script.
    ranks: how many; None is every GPU, else every core (one for a script of one process).
    args: arguments of the script, passed as they are, before the flags.
    device: "cpu", "cuda", or "auto": GPUs if there is one for each rank, else CPU cores. A script
        of the course is told by --device; to any other, "cpu" hides the GPUs.
    start: "warm" (forked from a process that has torch loaded), "cold" (python for each rank), or
        "torchrun" (torchrun itself; over hosts, one on each of them), "horovodrun" (Horovod's
        launcher, over gloo). None is horovodrun for Horovod's scripts, warm for all others.
    hosts: over how many hosts the ranks are spread, as many on each. More than one are made on this
        machine for this run, as network namespaces (simulated_hosts.py); their ranks are CPU ranks.
    link: the rate at which each of these hosts can send, such as "200mbit"; None is unlimited.
    quiet: show neither the command nor the progress.
    raises: whether a run that does not end well raises; if not, its record is returned.
    options: what is rarely needed, see Options.
    flags: the script's own flags, `global_batch=32` for `--global-batch 32`. A script that is not
        of the course is given the spelling that its text has: `--global_batch 32`, or, where it has
        a field or a setting of this name and no flag, `--global_batch=32`.

    A script finds the folder for its record in the environment, as BOOTCAMP_RUN. A run is ok if its
    ranks end with 0 and have finished the record that they began.

    Raises RunRefused, RankFailed, RunHung, all of them LaunchError, ArgumentError before anything
    has started, or Interrupted, a KeyboardInterrupt. No rank is left when this returns.
    """
    call = Call(script, ranks, args, device, start, hosts, link, quiet, options, flags)
    return follow(*call.prepare(), raises)


@dataclass
class Call:
    """One call of launch: its arguments, and what they are found out to mean.

    device: in the end None, if the script chooses. flags: in the end with the one for the device.
    """

    script: str | Path
    ranks: int | None = None
    args: list[str] | None = None
    device: str | None = "auto"
    start: str | None = None
    hosts: int = 1
    link: str | None = None
    quiet: bool = False
    options: Options = Options()  # noqa: RUF009 (frozen)
    flags: dict = field(default_factory=dict)

    def __post_init__(self):
        self.path, self.known = family.find(self.script), family.describe(self.script)
        foreign = self.start == "horovodrun" and not self.known.takes_course_flags
        self.launcher = "horovodrun" if foreign else self.known.launcher
        if self.start is None:
            self.start = "horovodrun" if self.launcher == "horovodrun" else "warm"

    def prepare(self) -> tuple:
        """Check all; the request and its display, for follow. Raises as launch does."""
        for allow in before:
            allow()
        arguments.check(self)
        self.framework = self.options.framework or self.known.framework
        if missing := arguments.missing(self.framework):
            raise refusal(missing)
        try:
            if not self.quiet:
                connect().wait_until_ready(print)
            if self.ranks is None:
                self.ranks = 1 if self.launcher == "python" else default_ranks()
            self.choose_device()
            text = "" if self.known.takes_course_flags else self.path.read_text(errors="replace")
            argv = [*(self.args or []), *arguments.to_arguments(self.flags, text)]
            lines = run_request.terminal_lines(self, argv)
            request = run_request.make(self, [str(self.path), *argv], lines)
        except KeyboardInterrupt:  # the reader sees none of the launcher's frames
            raise Interrupted from None
        return request, progress.Silent() if self.quiet else self._display(lines)

    def choose_device(self) -> None:
        """Settle the kind of device, and how the script hears of it.

        A script of the course is told by --device, spelt out: which it is must not depend on where
        the command is pasted. A reader's copy may not know every device: it chooses itself.
        """
        self.env = dict(self.options.env or {})
        asked = "cpu" if self.hosts > 1 else self.device
        self.device = None if asked == "auto" else asked
        if not self.known.takes_course_flags:
            if asked == "cuda" and gpu_count() < self.ranks:
                raise refusal(
                    f"device='cuda': {self.ranks} rank(s) need a GPU each, and torch finds "
                    f"{gpu_count() or 'none'}. Use device='cpu', or start fewer ranks."
                )
            if asked == "cpu" and machine.gpu_names():
                self.env["CUDA_VISIBLE_DEVICES"] = ""
        elif asked == "auto" and not self.known.own_device and self.known.path == self.path:
            self.device = "cuda" if gpu_count() >= self.ranks else "cpu"
        if self.known.takes_course_flags and self.device:
            self.flags = {"device": self.device, **self.flags}

    def _display(self, lines: list[str]):
        steps = self.flags.get("steps")
        if self.known.takes_course_flags:
            steps = int(steps or 20)
        where = self.where_ranks_are()
        if self.hosts > 1 and self.start != "torchrun":
            where = f"on each host this would do the same; started {self.start}: {where}"
        elif self.hosts > 1:
            each = "on each host" if len(lines) == 1 else "one line for each host"
            where = f"{each}: {where}"
        return progress.display(lines, steps if is_count(steps) else 0, where)

    def where_ranks_are(self) -> str:
        """How many ranks, of which kind, and how they talk: "2 CPU ranks, gloo"."""
        if self.device == "meta":
            return "no device: a rehearsal"
        kind = {"cuda": "GPU ", "cpu": "CPU "}.get(self.device, "")
        if self.ranks == 1:
            return f"1 {kind}rank"
        backend = {"cuda": ", NCCL", "cpu": ", gloo"} if self.known.takes_course_flags else {}
        if self.device == "cuda" and gpu_count() < self.ranks:  # BOOTCAMP_SHARE_GPUS
            backend = {"cuda": f", gloo, on {gpu_count()} GPU(s)"}
        return f"{self.ranks} {kind}ranks{backend.get(self.device, '')}"


def run_command(command: list[str], seconds: float = 120.0, env: dict | None = None) -> str:
    """Run any command under the supervisor and return what it printed.

    It ends with the cell: an interrupt, the kernel's death or `seconds` end it with all that it
    started. Raises LaunchError when it fails.
    """
    if command[0] == "python":
        command = [sys.executable, *command[1:]]
    folder = run_request.new_folder("command")
    environment = {**os.environ, **(env or {}), "PYTHONUNBUFFERED": "1"}
    agent = Command(command, {**environment, **run_request.marks(folder)})
    how = {"agents": [agent], "hang_seconds": seconds, "busy_seconds": seconds}
    run = follow(RunRequest(str(folder), COMMAND, **how), progress.Silent(), raises=True)
    printed = [run.folder / "ranks" / f"launcher.{end}" for end in ("out", "err")]
    return "".join(path.read_text(errors="replace") for path in printed)
