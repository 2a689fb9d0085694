"""python -P src/bootcamp/launcher/forkserver.py

Ranks that start warm: one process that has torch loaded and forks itself once for each rank.

A cold rank spends seconds importing torch and, at the first DistributedDataParallel, torch._dynamo.
A fork of a process that has both starts in milliseconds. A framework that a script needs is loaded
in the same way before its first ranks. The rules that make forking safe: this process has one
thread, has touched no tensor and no GPU, and has imported none of the project's own modules (a rank
must see the reader's latest edit). It checks the first of them before every fork.

It speaks with the supervisor in lines of JSON over its standard input and output:

    <- {"run": id, "ranks": [{"env": {...}, "argv": [...], "out": path, "err": path}, ...], ...}
    -> {"run": id, "pids": [...]}

A forked rank's parent leaves at once, so that the rank belongs to the supervisor, the next process
above that adopts orphans. Linux only: elsewhere the supervisor starts `become_rank` cold.
"""

import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
import types

PRELOADED = (
    "numpy",
    "filelock",
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch._dynamo",
)
# what the scripts that need a framework import of it; loaded before the first of them starts
FRAMEWORKS = {
    "accelerate": "accelerate",
    "deepspeed": "deepspeed.runtime.zero.muon.muon_optimizer",  # what initialize() imports last
    "horovod": "horovod.torch",
    "lightning": "lightning",
    "megatron": "megatron.core.tensor_parallel",
}
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME = 1, 4, 15
HOROVOD = "HOROVOD_GLOO_RENDEZVOUS_ADDR"  # in the environment of a rank that Horovod connects
SET_BY_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
STORE_PORT = 29400  # on a host of our own nobody else can have taken it


def main() -> None:
    """Load the libraries, say ready, then fork the ranks of each request until the input ends."""
    die_with_parent()
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    for library in PRELOADED:
        __import__(library)
    gc.freeze()  # else a rank's collections walk over all that, and copy its pages
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not end up among the answers
    gpus = _in_a_fork(lambda: __import__("torch").cuda.device_count())
    say(answers, {"ready": True, "gpus": gpus})
    for line in sys.stdin:
        request = json.loads(line)
        if not gpus:  # some frameworks look for GPUs as they are imported
            preload(request.get("framework"))
        try:
            fork_ranks(request, answers)
        except Exception:
            say(answers, {"run": request["run"], "error": traceback.format_exc()})


_tried = {None}


def preload(framework: str | None) -> None:
    """Load a framework for the ranks of this run and all later ones, if forking stays safe then.

    A fork tries that first. Where the framework starts a thread or can't be imported, the ranks
    import it themselves.
    """
    if framework in _tried:
        return
    _tried.add(framework)

    def load() -> int:
        with _nothing_printed():
            __import__(FRAMEWORKS[framework])
        return threads()

    if _in_a_fork(load) == 1:
        load()
        gc.freeze()


@contextlib.contextmanager
def _nothing_printed():
    """Let what a library prints as it is imported go nowhere, warnings of its C code too."""
    kept = {end: os.dup(end) for end in (1, 2)}
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for end in kept:
        os.dup2(nowhere, end)
    try:
        yield
    finally:
        for end, own in kept.items():
            os.dup2(own, end)
            os.close(own)
        os.close(nowhere)


def say(answers: int, message: dict) -> None:
    """One line to the supervisor, short enough to be written whole (PIPE_BUF)."""
    os.write(answers, json.dumps(message).encode() + b"\n")


def fork_ranks(request: dict, answers: int) -> None:
    """Fork every rank of one run and tell the supervisor their process ids in order of rank.

    request: `ranks` (see become_rank) and `supervisor`, the process that is to adopt them. The
    process between answers itself: if this server is killed meanwhile, the ranks are still known.
    """
    assert threads() == 1, f"the fork server has {threads()} threads: a fork would be unsafe"
    store = listen(request.get("port", 0))
    between = os.fork()
    if between == 0:
        _fork_and_answer(request, store, answers)
    store.close()
    os.waitpid(between, 0)


def _fork_and_answer(request: dict, store: socket.socket, answers: int) -> None:
    """In the process between: fork the ranks, answer, leave. Never returns."""
    pids = []
    try:
        os.setsid()  # the run's own session: its members can be found whatever they start
        for rank in request["ranks"]:
            pids.append(os.fork())
            if pids[-1] == 0:
                os.close(answers)
                become_rank(rank, store, request["supervisor"])
        if HOROVOD in request["ranks"][0]["env"] and os.fork() == 0:
            os.close(answers)
            _serve_horovod(store, request["supervisor"])
        say(answers, {"run": request["run"], "pids": pids})
    except BaseException as error:  # such as no more processes for this user
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        say(answers, {"run": request["run"], "error": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(0)


def listen(port: int = 0, address: str = "127.0.0.1") -> socket.socket:
    """A listening socket for the run's store: bound now, so no other run can take its port."""
    store = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    store.bind((address, port))
    store.listen(128)
    return store


def become_rank(rank: dict, store: socket.socket, supervisor: int | None) -> None:
    """Turn this process into one rank and run its script to the end. Never returns.

    rank: `env` whole, `argv` (the script first), `out` and `err` files for what it prints,
    `stack` for the answer to SIGUSR1, `host` to enter, if it is on a simulated host. Rank 0
    keeps the store of the rendezvous on the inherited socket, or on one of its host; every rank
    finds it through MASTER_ADDR and MASTER_PORT as under torchrun.
    """
    code = 1
    try:
        if supervisor:
            _wait_for_adoption(supervisor)
        _redirect(rank["out"], rank["err"])
        os.environ.clear()  # the kernel's environment of now, not the one this server began with
        os.environ.update(rank["env"])
        if rank.get("host"):
            enter(rank["host"])
            store = _store_of_this_host(store)
        os.environ["MASTER_PORT"] = str(store.getsockname()[1] if store else STORE_PORT)
        _name(f"rank {rank['env']['RANK']} of {rank['env']['WORLD_SIZE']}")
        if HOROVOD in os.environ:
            os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = os.environ["MASTER_PORT"]
            for name in (*SET_BY_LAUNCHERS, "MASTER_PORT"):  # horovodrun does not set them either
                del os.environ[name]
        kept = _serve_store(store, rank)
        _seed_anew()
        code = run_script(rank["argv"], keep=[kept], stack=rank["stack"])
        if code == 0 and "horovod.torch" in sys.modules:
            sys.modules["horovod.torch"].shutdown()  # or the last ranks find the first ones gone
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # nothing is freed: tearing down a process group can hang


def _seed_anew() -> None:
    """Seeds of its own, as a fresh process has: forks would draw the same numbers unseeded."""
    for name in {"torch", "numpy.random"} & sys.modules.keys():
        sys.modules[name].seed()


def enter(host: dict) -> None:
    """Move this process, which must have one thread, into a simulated host (simulated_hosts.py).

    The user namespace, where there is one, comes first: it gives the right to the others. Who is
    in it already, on another of these hosts, may not enter it again.
    """
    folder = os.getcwd()
    for kind in ("user", "net", "uts", "mnt"):
        path = host[kind]
        if path and os.readlink(path) != os.readlink(f"/proc/self/ns/{kind}"):
            with open(path) as namespace:
                system_call("setns", namespace.fileno(), 0)
    os.chdir(folder)  # with the mount namespace a process gets the root as its folder
    # the kernel takes these two back when a process gets other rights
    system_call("prctl", PR_SET_DUMPABLE, 1)
    die_with_parent()


def system_call(function: str, *arguments: int | bytes | None) -> None:
    """Call a function of libc that returns 0 when all is well. Raises OSError otherwise."""
    library = ctypes.CDLL(None, use_errno=True)
    whole = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    if getattr(library, function)(*whole) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), function)


def _store_of_this_host(store: socket.socket) -> socket.socket | None:
    """For rank 0 a listening socket inside its host; the other ranks only need the port."""
    store.close()
    if os.environ["RANK"] != "0":
        return None
    return listen(STORE_PORT, os.environ["MASTER_ADDR"])


def run_script(argv: list[str], keep: list, stack: str | None = None) -> int:
    """Run a script as `python script.py ...` would; its exit code. `keep` stays alive meanwhile.

    stack: the file for the answer to SIGUSR1, `<run>/ranks/<rank>.stack`, if it is to answer.
    """
    sys.argv = argv
    sys.path.insert(0, os.path.dirname(os.path.abspath(argv[0])))  # started with -P: none is there
    if stack:
        answer_signals(stack)
    main_module = types.ModuleType("__main__")
    main_module.__file__ = argv[0]
    main_module.__kept__ = keep
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


def answer_signals(stack: str) -> None:
    """Let this rank say where it stands, by the package that its script would import."""
    from bootcamp.records import flight_recorder

    ranks, name = os.path.split(stack)
    flight_recorder.answer(os.path.dirname(ranks), int(name.partition(".")[0]))


def _serve_store(store: socket.socket | None, rank: dict):
    """Rank 0 serves the store; all ranks are its clients, as under torchrun's agent."""
    for_torch = HOROVOD not in rank["env"]
    if for_torch:
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    if not for_torch or rank["env"]["RANK"] != "0":
        if store:
            store.close()
        return None
    from torch.distributed import TCPStore

    host, port = store.getsockname()
    return TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=store.detach()
    )


def _serve_horovod(store: socket.socket, supervisor: int) -> None:
    """Serve the table in which ranks find each other, as horovodrun does. Never returns."""
    _wait_for_adoption(supervisor)
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    class OnThisSocket(RendezvousHTTPServer):
        def server_bind(self):
            self.socket.close()
            self.socket, self.server_address = store, store.getsockname()

        def server_activate(self):
            """It listens already."""

    OnThisSocket(store.getsockname(), RendezvousHandler, verbose=0).serve_forever()


def _wait_for_adoption(supervisor: int) -> None:
    deadline = time.monotonic() + 5
    while os.getppid() != supervisor:
        if time.monotonic() > deadline:
            os._exit(1)  # the supervisor is gone: nobody would ever end this rank
        time.sleep(0.0005)
    die_with_parent()
    if os.getppid() != supervisor:
        os._exit(1)


def _redirect(out: str, err: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for target, path in ((1, out), (2, err)):
        file = os.open(path, flags, 0o644)
        os.dup2(file, target)
        os.close(file)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux, prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _name(name: str) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


def threads() -> int:
    """Threads of this process, as the kernel counts them."""
    return len(os.listdir("/proc/self/task"))


def _in_a_fork(function) -> int:
    """The result of a function that may start CUDA, which must not happen in this process."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            os.write(writer, str(function()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return int(answer or 0)


def cold_rank() -> None:
    """`forkserver.py rank <json> <fd>`: one rank in its own process, on an inherited socket."""
    rank = {**json.loads(sys.argv[2]), "env": dict(os.environ)}
    store = socket.socket(fileno=int(sys.argv[3]))
    die_with_parent()
    become_rank(rank, store, supervisor=None)


if __name__ == "__main__":
    cold_rank() if sys.argv[1:2] == ["rank"] else main()
