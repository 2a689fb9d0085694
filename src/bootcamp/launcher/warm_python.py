"""python -P src/bootcamp/launcher/warm_python.py FOLDER [LIBRARY ...]

A simulated cluster's `python` and `torchrun`, warm: this server has torch loaded and forks itself
for each of them, as forkserver.py does for a launch. Otherwise each rank and each agent of a job
would first spend seconds of a core on imports, and all hosts of the cluster share a laptop's cores.

In a job these two names are warm_shim.py, in FOLDER. The process that Slurm or torchrun sees,
signals and waits for is the shim; the one that trains is a fork of this server in the shim's
namespaces. A process between them passes the shim's signals on and kills the fork when the shim has
gone.
"""

import contextlib
import gc
import json
import os
import select
import shlex
import signal
import socket
import struct
import sys
from pathlib import Path

if __name__ == "__main__":  # started with -P as a file: the package lies one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bootcamp.launcher.forkserver import (
    PR_SET_NAME,
    PRELOADED,
    die_with_parent,
    run_script,
    system_call,
)
from bootcamp.launcher.warm_shim import SOCKET

NAMESPACES = {"user": 0x10000000, "mnt": 0x00020000, "uts": 0x04000000, "net": 0x40000000}
OF_TORCHRUN = (
    "torch.distributed.run",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
)


def install(folder: Path) -> None:
    """Write the shim under its names into a folder, such as the first in the PATH of jobs.

    A shell starts it, as it starts pip's own programs where Python's path has a blank: `#!` ends at
    one. What the shell reads is a text to Python.
    """
    folder.mkdir()
    start = f"""#!/bin/sh\n'''exec' {shlex.quote(sys.executable)} -IS "$0" "$@"\n' '''\n"""
    text = os.fsencode(start) + Path(__file__).with_name("warm_shim.py").read_bytes()
    for name in ("python", "python3", "torchrun"):
        (folder / name).write_bytes(text)
        (folder / name).chmod(0o755)


def main() -> None:
    """Serve; and in each fork that is to run something, run it to its end."""
    die_with_parent()
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(str(Path(sys.argv[1], SOCKET)))
    server.listen(128)  # from now on shims wait
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    for library in (*PRELOADED, *OF_TORCHRUN, *sys.argv[2:]):
        __import__(library)
    gc.freeze()  # as the fork server does
    sys.exit(run(forked_for(server)))


def forked_for(server: socket.socket) -> dict:
    """Accept requests for ever; each returns, in a fork of this process, as what is to be run."""
    signal.signal(signal.SIGCHLD, take_exits)
    while True:
        shim, _ = server.accept()
        if os.fork() == 0:
            server.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return stay_between(shim)
        shim.close()


def take_exits(*_) -> None:
    """Nobody else waits for the processes between; their processor time becomes this one's."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def stay_between(shim: socket.socket) -> dict:
    """Fork once more, within the shim's namespaces; the parent stays as long as the fork lives."""
    message, files, _, _ = socket.recv_fds(shim, 1 << 20, 3)
    enter_namespaces_of(shim)
    shim.send(b"taken")
    inner = os.fork()
    if inner == 0:
        shim.close()
        die_with_parent()
        for target, file in enumerate(files):
            os.dup2(file, target)
            os.close(file)
        return json.loads(message)
    for file in files:
        os.close(file)
    ended = os.pidfd_open(inner)
    while ended not in (ready := select.select([shim, ended], [], [])[0]):
        number = shim.recv(1)
        os.kill(inner, number[0] if number else signal.SIGKILL)
        if not number:
            break
    code = os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
    if ended in ready:
        shim.send(str(code).encode())
    os._exit(0)


def enter_namespaces_of(shim: socket.socket) -> None:
    """Join the host that the shim is on, and be who it is."""
    size = struct.calcsize("3i")
    pid, _, _ = struct.unpack("3i", shim.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    kinds = sum(
        flag
        for kind, flag in NAMESPACES.items()
        if os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
    )
    if kinds:
        system_call("setns", os.pidfd_open(pid), kinds)


def run(request: dict) -> int:
    """Run a script or torchrun as a new Python would; its exit code."""
    os.chdir(request["folder"])
    os.sched_setaffinity(0, request["cores"])
    os.environ.clear()
    os.environ.update(request["env"])
    for name in [name for name in sys.modules if name.partition(".")[0] == "bootcamp"]:
        del sys.modules[name]  # a rank must see the reader's latest edit
    sys.path.remove(str(Path(__file__).resolve().parents[2]))  # the first: it may be installed too
    told = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*filter(None, told), *(path for path in sys.path if path not in told)]
    if request["name"] != "torchrun":
        return run_script(request["arguments"], keep=[])
    system_call("prctl", PR_SET_NAME, b"torchrun")
    os.environ["PYTHON_EXEC"] = "python"  # what torchrun starts its workers with
    sys.argv = ["torchrun", *request["arguments"]]
    return run_torchrun()


def run_torchrun() -> int:
    """torchrun's own main function; its exit code."""
    from torch.distributed.run import main as torchrun

    return torchrun() or 0


if __name__ == "__main__":
    main()
