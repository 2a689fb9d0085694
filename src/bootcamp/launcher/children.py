"""Child processes of the supervisor: started by os.posix_spawn, awaited without blocking others.

subprocess.Popen and asyncio's processes take an exit status for themselves. A run has processes
that it did not start, which are adopted; so this file takes the status of all of them.
"""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

POLL_SECONDS = 0.05  # where the kernel does not tell of a process's end


def spawn(
    command: list[str],
    env: dict[str, str],
    out: Path | str = os.devnull,
    err: Path | None = None,
    keep: int | None = None,
) -> int:
    """Start a program in a session of its own; its process id.

    out, err: files that its output is appended to; None leaves it to this process's. Its input is
    empty. keep: an open file that it inherits under the same number.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    actions += [(os.POSIX_SPAWN_OPEN, 1, str(out), flags, 0o644)]
    actions += [(os.POSIX_SPAWN_OPEN, 2, str(err), flags, 0o644)] if err else []
    if keep is not None:
        os.set_inheritable(keep, True)
    return os.posix_spawn(
        command[0],
        command,
        env,
        file_actions=actions,
        setsid=True,
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python itself ignores
    )


def has_pidfd() -> bool:
    """Whether the kernel tells of a process's end through a file (Linux 5.3, and not forbidden)."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


HAS_PIDFD = has_pidfd()


async def wait_for_exit(pid: int) -> int:
    """The exit code of a child, or minus the signal that killed it."""
    try:
        if HAS_PIDFD:
            await end_of(pid)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        while True:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            await asyncio.sleep(POLL_SECONDS)
    except OSError:  # never seen: an exit that nobody can tell is not a good one
        return 1


async def end_of(pid: int) -> None:
    """Wait until a process has ended, a child or not. Raises ProcessLookupError if it is gone."""
    while not HAS_PIDFD:
        os.kill(pid, 0)
        await asyncio.sleep(1)
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    handle = os.pidfd_open(pid)
    loop.add_reader(handle, lambda: ended.done() or ended.set_result(None))
    try:
        await ended
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def reap(pids: set[int]) -> None:
    """Take the exit status of these processes, as far as they are dead children of this one."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
