"""python -P src/bootcamp/serving/triton_holder.py '{"command": [...], "prefix": "...", ...}'

Holds a Triton server: starts it, and sees to it that nothing of it stays. triton.py starts this
process and speaks with it over its standard input: "stop" lets the server answer what it has begun;
the end of the input, or of the process that started this one, is the server's end at once.

Triton's python backend runs a process for each instance of a model (a stub), and shares regions of
memory with it, files in /dev/shm. A server or a stub that is killed leaves them there, and even one
that stops leaves those of a stub that was killed. So all of a server's begin with a prefix of its
own, and whoever survives removes them: this process; `Server.stop`, if this one was killed; the
next server's start, if both were. Linux only.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":  # started with -P as a file: the package lies one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bootcamp import linux
from bootcamp.launcher import process_tree

REGIONS = Path("/dev/shm")
PREFIX = "bootcamp-triton-"  # of the regions of every server


def remove_regions(prefix: str) -> None:
    """Remove the shared memory of a server that has ended."""
    for region in REGIONS.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)


def remove_stale_regions() -> None:
    """Remove this user's shared memory of servers of which no process is left."""
    regions = list(REGIONS.glob(f"{PREFIX}*"))  # first: whoever has one runs by now
    commands = " ".join(map(process_tree.command, _processes()))
    for region in regions:
        with contextlib.suppress(FileNotFoundError):
            own = region.stat().st_uid == os.getuid()
            server = region.name[len(PREFIX) :].partition("-")[0]
            if own and f"{PREFIX}{server}-" not in commands:
                region.unlink()


def _processes() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]


def hold(settings: dict, starter: int) -> None:
    """Run the server until it ends, or has to."""
    with open(settings["log"], "wb") as log:
        server = subprocess.Popen(
            settings["command"],
            env=settings["environment"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=linux.die_with_parent,  # its stubs end themselves then
        )
    ended = os.pidfd_open(server.pid)
    ready, _, _ = select.select([0, starter, ended], [], [])
    if 0 in ready and os.read(0, 16):
        server.terminate()
        select.select([starter, ended], [], [], settings["seconds_to_stop"])


def main() -> None:
    settings = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook's stop button
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    linux.adopt_orphans()
    try:
        starter = os.pidfd_open(settings["starter"])
        if os.getppid() == settings["starter"]:
            hold(settings, starter)
    finally:
        process_tree.end_everything_below()
        remove_regions(settings["prefix"])


if __name__ == "__main__":
    main()
