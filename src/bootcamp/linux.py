"""Calls of the Linux kernel for which Python's os module has no function."""

import ctypes
import os
import signal
import sys

NAMESPACES = {"user": 0x10000000, "net": 0x40000000, "uts": 0x04000000, "mnt": 0x00020000}
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 4, 15, 36


def call(function: str, *arguments: int | bytes | None) -> None:
    """Call a function of libc that returns 0 when all is well. Raises OSError otherwise."""
    library = ctypes.CDLL(None, use_errno=True)
    whole = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    if getattr(library, function)(*whole) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), function)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent ends. On Linux only."""
    _prctl(PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of every process below this one that loses its own. On Linux only."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def name_process(name: str) -> None:
    """Give this process the name that `ps` and `top` show. On Linux only."""
    _prctl(PR_SET_NAME, name.encode())


def _prctl(option: int, argument: int | bytes) -> None:
    if sys.platform == "linux":
        call("prctl", option, argument)


def enter(pid: int) -> None:
    """Join the namespaces of another process. The calling process must have one thread."""
    folder, entered = os.getcwd(), False
    for kind in NAMESPACES:  # the user namespace first: it gives the right to the others
        path = f"/proc/{pid}/ns/{kind}"
        if os.readlink(path) != os.readlink(f"/proc/self/ns/{kind}"):
            with open(path) as namespace:
                call("setns", namespace.fileno(), 0)
            entered = True
    if entered:
        os.chdir(folder)  # with the mount namespace a process gets the root as its folder
        _prctl(PR_SET_DUMPABLE, 1)  # the kernel takes this back when a process gets other rights
