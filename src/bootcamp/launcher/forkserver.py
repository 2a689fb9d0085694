"""python -P src/bootcamp/launcher/forkserver.py PLACE [LIBRARY ...]

Python that starts warm: a process that has torch loaded and forks itself for each that is asked.

A cold rank spends seconds importing torch and, at the first DistributedDataParallel, torch._dynamo.
A fork of a process that has both starts in milliseconds. The rules that make forking safe: this
process has one thread and has touched no tensor and no GPU. A fork imports the project's modules
anew, for a rank must see the reader's latest edit.

PLACE is a folder for a Unix socket to listen at (warm_shim.py, installed there, connects), or the
number of an inherited socket, over which the supervisor sends its connections as files. A
connection is for one process:

    <- {"argv": [...], "env": {...}, "folder": path, ...}, and its input, output and errors as files
    -> its process id, or why it was not started
    <- one byte: a signal for it
    -> its exit code, or minus the signal that killed it

Between this server and a fork stays a process that passes these on. It outlives the server, and
kills the fork when the connection is closed. Linux only: elsewhere ranks start cold, by `run`.
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
import traceback
import types
from pathlib import Path

if __name__ == "__main__":  # started with -P as a file: the package lies one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bootcamp import linux
from bootcamp.launcher.warm_shim import SOCKET

PRELOADED = (
    "numpy",
    "filelock",
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch._dynamo",
)
OF_TORCHRUN = (
    "torch.distributed.run",
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


def install(folder: Path) -> None:
    """Write warm_shim.py under its names into a new folder, such as the first in the PATH of jobs.

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
    """Load the libraries, then fork for each connection until the supervisor has gone."""
    linux.die_with_parent()
    place, *libraries = sys.argv[1:]
    server = socket.socket(fileno=int(place)) if place.isdigit() else _listen_in(place)
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    for library in (*PRELOADED, *libraries):
        __import__(library)
    gc.freeze()  # else a fork's collections walk over all that, and copy its pages
    signal.signal(signal.SIGCHLD, _take_exits)
    for connection in _sent_over(server) if place.isdigit() else _accepted_at(server):
        _fork_for(connection, server)


def _listen_in(folder: str) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(os.path.join(folder, SOCKET))
    server.listen(128)  # from now on shims wait
    return server


def _accepted_at(server: socket.socket):
    for library in OF_TORCHRUN:
        __import__(library)
    while True:
        yield server.accept()[0]


def _sent_over(server: socket.socket):
    """Say how many GPUs there are; then yield connections, each sent with the ranks' framework."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for end in (1, 2):  # frameworks print as they are imported
        os.dup2(nowhere, end)
    gpus = _in_a_fork(lambda: sys.modules["torch"].cuda.device_count())
    server.send(str(gpus).encode())
    while files := (received := socket.recv_fds(server, 100, 1))[1]:
        if not gpus:  # some frameworks look for GPUs as they are imported
            _preload(received[0].decode())
        yield socket.socket(fileno=files[0])


_tried = set()


def _preload(framework: str) -> None:
    """Load a framework for these ranks and all later ones, if forking stays safe then.

    A fork tries that first. Where the framework starts a thread or can't be imported, the ranks
    import it themselves.
    """
    if framework in _tried or framework not in FRAMEWORKS:
        return
    _tried.add(framework)

    def load() -> int:
        __import__(FRAMEWORKS[framework])
        return len(os.listdir("/proc/self/task"))

    if _in_a_fork(load) == 1:
        load()
        gc.freeze()


def _in_a_fork(function) -> int:
    """Return the result of a function that may start CUDA or threads, 0 if it raises."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        with contextlib.suppress(BaseException):
            os.write(writer, str(function()).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        return int(pipe.read() or 0)


def _take_exits(*_) -> None:
    """Reap what has ended; its processor time becomes this process's."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


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
        _stay_between(connection)
    connection.close()


def _refuse(connection: socket.socket, error: Exception) -> None:
    with contextlib.suppress(OSError):
        connection.send(f"{type(error).__name__}: {error}".encode())


def _stay_between(connection: socket.socket) -> None:
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
        linux.enter(request.get("host") or _peer(connection))
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
            ready = select.select([connection, woken], [], [])[0]
            if woken in ready:  # it has ended, or was stopped or continued
                os.read(woken, 100)
            if connection in ready:
                number = connection.recv(1)
                os.kill(inner, number[0] if number else signal.SIGKILL)
                if not number:
                    os._exit(0)
        connection.send(str(os.waitstatus_to_exitcode(ended[1])).encode())
    os._exit(0)


def _peer(connection: socket.socket) -> int:
    """Return the process id of whoever made the connection."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return struct.unpack("3i", credentials)[0]


def _become(request: dict, files: list[int]) -> None:
    """Turn this process into what is asked for, and run it to its end. Never returns.

    files: its input, output and errors; for the rank that keeps the store, also a socket.
    """
    for target, file in enumerate(files[:3]):
        os.dup2(file, target)
        os.close(file)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    os.sched_setaffinity(0, request["cores"])
    first = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*first, *(path for path in sys.path if path not in first)]
    for name in {"torch", "numpy.random"} & sys.modules.keys():
        sys.modules[name].seed()  # as in a fresh process: forks would draw the same numbers
    argv = request["argv"]
    if request.get("rank"):
        run_rank(argv, *files[3:])
    sys.exit(run_torchrun(argv) if argv[0] == "torchrun" else run_script(argv))


def run_torchrun(argv: list[str]) -> int:
    """Run torchrun's own main function; its exit code. Its workers start warm."""
    from torch.distributed.run import main as torchrun

    linux.name_process("torchrun")
    os.environ["PYTHON_EXEC"] = "python"  # the shim's name
    sys.argv = argv
    return torchrun() or 0


def run_rank(argv: list[str], store: int | None = None) -> None:
    """Run a script as one rank of a launch. Never returns.

    store: a listening socket at MASTER_PORT for rank 0, which serves the store of the rendezvous;
    without one it makes its own. All ranks are clients, as under torchrun's agent.
    """
    code = 1
    try:
        linux.name_process(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}")
        _kept = _serve_store(store) if os.environ["RANK"] == "0" else None
        code = run_script(argv, answers=True)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # nothing is freed: tearing down a process group can hang


def _serve_store(listening: int | None):
    from torch.distributed import TCPStore

    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    how = {"is_master": True, "wait_for_workers": False, "master_listen_fd": listening}
    return TCPStore(*place, **how)


def run_script(argv: list[str], answers: bool = False) -> int:
    """Run a script as `python script.py ...` would; its exit code.

    answers: whether it says where it stands at SIGUSR1, as the ranks of a launch do.
    """
    sys.argv = argv
    sys.path.insert(0, os.path.dirname(os.path.abspath(argv[0])))  # started with -P: none is there
    if answers:
        from bootcamp.records import flight_recorder  # that which the script would import

        flight_recorder.answer(Path(os.environ["BOOTCAMP_RUN"]), int(os.environ["RANK"]))
    main_module = types.ModuleType("__main__")
    main_module.__file__ = argv[0]
    sys.modules["__main__"] = main_module
    try:
        with open(argv[0], "rb") as file:
            source = file.read()
        exec(compile(source, argv[0], "exec"), main_module.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
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
    if sys.argv[1] == "rank":  # cold: `forkserver.py rank STORE SCRIPT ...`
        linux.die_with_parent()
        run_rank(sys.argv[3:], int(sys.argv[2]) if sys.argv[2] else None)
    main()
