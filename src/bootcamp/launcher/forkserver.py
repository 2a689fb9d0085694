"""python -P src/bootcamp/launcher/forkserver.py PLACE [LIBRARY ...]

Start Python processes warm: importing torch takes seconds, forking a process that has it does not.

Forking is safe: this process has one thread and has touched no tensor and no GPU. A fork imports
the project's modules anew, for a rank must see the reader's latest edit.

PLACE is a folder, for a Unix socket to listen at, or the number of an inherited socket over which
the supervisor sends its connections as files. A connection is for one process:

    <- {"argv": [...], "env": {...}, "folder": path, ...}, and its input, output and errors as files
    -> its process id, or why it was not started
    <- one byte: a signal for it
    -> its exit code, or minus the signal that killed it

Between this server and a fork stays a process that passes these on. It outlives the server, and
kills the fork when the connection is closed. Linux only: elsewhere ranks start cold.
"""

import contextlib
import functools
import gc
import json
import os
import select
import shlex
import signal
import socket
import sys
import time
import traceback
import types
from pathlib import Path

if __name__ == "__main__":  # started with -P as a file: the package lies one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bootcamp import linux
from bootcamp.launcher.python_shim import SOCKET

PRELOADED = (
    "numpy",
    "filelock",
    "torch",
    "torch.nn.parallel",
    "torch._dynamo",
    "torch.distributed.run",  # torchrun, and what it loads as it starts
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
)
# what the scripts that need a framework import of it; loaded before the first of them starts
FRAMEWORKS = {
    "accelerate": "accelerate",
    "deepspeed": "deepspeed.runtime.zero.muon.muon_optimizer",  # what initialize() imports last
    "lightning": "lightning",
    "megatron": "megatron.core.tensor_parallel",
}


def install_shims(folder: Path) -> None:
    """Write python_shim.py under its names into a new folder: the first in the PATH of jobs."""
    folder.mkdir()
    # a shell starts it, for `#!` ends at a blank in Python's path; its line is a text to Python
    start = f"""#!/bin/sh\n'''exec' {shlex.quote(sys.executable)} -IS "$0" "$@"\n' '''\n"""
    text = os.fsencode(start) + Path(__file__).with_name("python_shim.py").read_bytes()
    for name in ("python", "python3", "torchrun"):
        (folder / name).write_bytes(text)
        (folder / name).chmod(0o755)


def main() -> None:
    """Load the libraries, then fork for each connection until the supervisor has gone."""
    linux.die_with_parent()
    place, *libraries = sys.argv[1:]
    if place.isdigit():
        server = socket.socket(fileno=int(place))
        connections = _receive_connections(server)
    else:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.bind(os.path.join(place, SOCKET))
        server.listen(128)  # from now on shims wait
        connections = iter(lambda: server.accept()[0], None)
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    gc.disable()  # to collect among what is loaded takes a quarter of the time
    for library in (*PRELOADED, *libraries):
        __import__(library)
    gc.freeze()  # else a fork's collections walk over all that, and copy its pages
    gc.enable()
    _merge_pages()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    for connection in connections:
        _fork_for(connection, server)


def _merge_pages() -> None:
    """Keep what is loaded in pages of 2 MB: their table is short, and each fork copies it."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        area, rights, _, _, inode, *_ = line.split()
        begin, end = (int(edge, 16) for edge in area.split("-"))
        if (rights, inode) == ("rw-p", "0"):
            with contextlib.suppress(OSError):  # before Linux 6.1, or no room for such a page
                linux.call("madvise", begin, end - begin, 25)  # MADV_COLLAPSE


def _receive_connections(server: socket.socket):
    """Say how many GPUs there are; then yield connections, each sent with the ranks' framework."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for end in (1, 2):  # frameworks print as they are imported
        os.dup2(nowhere, end)
    gpus = _call_in_fork(lambda: sys.modules["torch"].cuda.device_count())
    server.send(str(gpus).encode())
    while True:
        framework, files, *_ = socket.recv_fds(server, 100, 1)
        if not files:
            return
        if framework.decode() in FRAMEWORKS and not gpus:  # some look for GPUs when imported
            _preload_framework(framework.decode())
        yield socket.socket(fileno=files[0])


@functools.cache
def _preload_framework(framework: str) -> None:
    """Load a framework for all later ranks, unless it starts a thread, which a fork tries first."""
    sys.modules["torch"].cuda._is_compiled = lambda: False  # counting none spoils CUDA in forks

    def load() -> int:
        __import__(FRAMEWORKS[framework])
        return len(os.listdir("/proc/self/task"))

    if _call_in_fork(load) == 1:
        load()
        gc.freeze()


def _call_in_fork(function) -> int:
    """Return the result of a function that may start CUDA or threads, 0 if it raises."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        with contextlib.suppress(BaseException):
            os.write(writer, str(function()).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        return int(pipe.read() or 0)


def _fork_for(connection: socket.socket, server: socket.socket) -> None:
    """Fork the process that stays between; the next one is taken at once."""
    threads, child = len(os.listdir("/proc/self/task")), None
    try:
        assert threads == 1, f"the fork server has {threads} threads: a fork would be unsafe"
        child = os.fork()
    except (AssertionError, OSError) as error:  # such as no more processes for this user
        _refuse(connection, error)
    if child == 0:
        server.close()
        _relay(connection)
    connection.close()


def _refuse(connection: socket.socket, error: Exception) -> None:
    with contextlib.suppress(OSError):
        connection.send(f"{type(error).__name__}: {error}".encode())


def _relay(connection: socket.socket) -> None:
    """Fork what is asked for, pass signals on to it, report its end. Never returns."""
    message, files, _, _ = socket.recv_fds(connection, 1 << 20, 4)
    if not message:
        os._exit(0)
    request = json.loads(message)
    os.setsid()  # a session of its own: its members can be found whatever they start
    woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    try:
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)  # pid, uid, gid
        linux.enter(request.get("host") or int.from_bytes(peer[:4], sys.byteorder))
        inner = os.fork()
    except OSError as error:
        _refuse(connection, error)
        os._exit(1)
    if inner == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (connection.detach(), woken, waker):
            os.close(end)
        linux.die_with_parent()
        _become(request, files)
    for file in files:
        os.close(file)
    with contextlib.suppress(OSError):  # whoever asked may be gone
        connection.send(str(inner).encode())
        while not (ended := os.waitpid(inner, os.WNOHANG))[0]:
            ready = select.select([connection.fileno(), woken], [], [])[0]
            if woken in ready:  # it has ended, or was stopped or continued
                os.read(woken, 100)
            if connection.fileno() in ready:
                number = connection.recv(1)
                os.kill(inner, number[0] if number else signal.SIGKILL)
                if not number:
                    os._exit(0)
        connection.send(str(os.waitstatus_to_exitcode(ended[1])).encode())
    os._exit(0)


def _become(request: dict, files: list[int]) -> None:
    """Turn this process into what is asked for, and run it to its end. Never returns."""
    for target, file in enumerate(files[:3]):
        os.dup2(file, target)
        os.close(file)
    sys.stdout, sys.stderr = (os.fdopen(k, "w", buffering=1, closefd=False) for k in (1, 2))
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    os.sched_setaffinity(0, request["cores"])
    first = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    sys.path[:] = dict.fromkeys([*first, *sys.path])
    for name in {"torch", "numpy.random"} & sys.modules.keys():
        sys.modules[name].seed()  # as in a fresh process: forks would draw the same numbers
    argv, kind = request["argv"], request.get("kind")
    if kind == "store":
        serve_store(*files[3:])
    if kind == "rank":
        run_rank(argv)
    if argv[0] != "torchrun":
        sys.exit(run_script(argv))
    from torch.distributed.run import main as torchrun

    linux.name_process("torchrun")
    os.environ["PYTHON_EXEC"] = "python"  # the shim's name: its workers start warm
    sys.argv = argv
    sys.exit(torchrun())


def run_rank(argv: list[str]) -> None:
    """Run a script as one rank of a launch. Never returns."""
    code = 1
    try:
        linux.name_process(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}")
        code = run_script(argv, answers=True)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # nothing is freed: tearing down a process group can hang


def serve_store(listening: int | None = None) -> None:
    """Serve the store of a run's rendezvous as long as the process that started this one lives.

    All ranks are its clients: rank 0 may end before the others have met. listening: at its port.
    """
    from torch.distributed import TCPStore

    linux.name_process("store of the ranks")
    parent = os.getppid()
    how = {"is_master": True, "wait_for_workers": False, "master_listen_fd": listening}
    _served = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), **how)
    while os.getppid() == parent:  # macOS does not end a child with its parent
        time.sleep(1)
    os._exit(0)


def run_script(argv: list[str], answers: bool = False) -> int:
    """Run a script and return its exit code. answers: at SIGUSR1 it says where it stands."""
    sys.argv = argv
    sys.path.insert(0, os.path.dirname(os.path.abspath(argv[0])))  # started with -P: none is there
    if answers:
        from bootcamp.records import flight_recorder  # that which the script would import

        flight_recorder.start_answering(Path(os.environ["BOOTCAMP_RUN"]), int(os.environ["RANK"]))
    sys.modules["__main__"] = main_module = types.ModuleType("__main__")
    main_module.__file__ = argv[0]
    try:
        exec(compile(Path(argv[0]).read_bytes(), argv[0], "exec"), main_module.__dict__)
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next  # the reader's script first, not the launcher's inside
        error.__traceback__ = trace
        sys.excepthook(type(error), error, trace)
        return 1
    return 0


if __name__ == "__main__":
    del sys.path[0]  # a fork finds the package where its script does
    for name in [name for name in sys.modules if name.partition(".")[0] == "bootcamp"]:
        del sys.modules[name]
    kind, *words = sys.argv[1:]
    if kind in ("rank", "store"):  # cold
        linux.die_with_parent()
        run_rank(words) if kind == "rank" else serve_store(*map(int, words))
    main()
