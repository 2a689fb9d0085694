"""python -P src/bootcamp/serving/triton_holder.py STARTER PREFIX COMMAND [ARGUMENT ...]

Run a Triton server, and see to it that nothing of it stays: it ends with the process STARTER too.

Triton's python backend runs a process for each instance of a model (a stub), and shares regions of
memory with it, files in /dev/shm. A server or a stub that is killed leaves them there, and even one
that stops leaves those of a stub that was killed. So all of a server's begin with a PREFIX of its
own, and whoever survives removes them: this process; `Server.stop`, if this one was killed; the
next server's start, if both were. Linux only.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import psutil

if __name__ == "__main__":  # started with -P as a file: the package lies two folders up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bootcamp import linux
from bootcamp.launcher import process_tree

REGIONS = Path("/dev/shm")
ANY = "bootcamp-triton-"  # begins the prefix of every server
PREFIX_LENGTH = len(ANY) + 13  # 12 digits and a dash


def remove_regions(prefix: str) -> None:
    """Remove the shared memory of a server that has ended."""
    for region in REGIONS.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)


def remove_stale_regions() -> None:
    """Remove the shared memory of servers of which no process is left."""
    regions = list(REGIONS.glob(f"{ANY}*"))  # first: every owner of one runs by now
    commands = " ".join(map(process_tree.command, psutil.pids()))
    for region in regions:
        if region.name[:PREFIX_LENGTH] not in commands:
            with contextlib.suppress(OSError):  # another user's, or just removed
                region.unlink()


def main(starter: int, prefix: str, command: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    linux.adopt_orphans()
    try:
        starter_ends = os.pidfd_open(starter)
        if os.getppid() == starter:
            # it is killed with this process; its stubs end themselves then
            server = subprocess.Popen(command, preexec_fn=linux.die_with_parent)
            select.select([starter_ends, os.pidfd_open(server.pid)], [], [])
    finally:
        process_tree.end_everything_below()
        remove_regions(prefix)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
