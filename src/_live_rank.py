"""One live rank of a notebook: an ipyparallel engine with a process group.

See bootcamp/launcher/live_ranks.py.

The launcher runs this file once for each rank. Arguments: the folder with the controller's
connection file, and the backend. A rank lives as long as the notebook's kernel. Its cells find
`torch`, `dist`, `rank`, `world_size` and `device`; the process group is made by `join`, and made
anew after a cell in which the ranks did not meet.

A thread of its own keeps watch: it says in which collective the rank waits, and frees it when the
notebook writes into the pipe `ranks/<rank>.cut`.
"""

import contextlib
import json
import os
import select
import signal
import socket
import stat
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from ipyparallel.engine.app import IPEngine

from bootcamp.train import config, environment

TICK_SECONDS = 0.2
STATE_BYTES = 160
BACKSTOP = timedelta(seconds=60)  # a waiting rank is noticed sooner; this is for what is not seen
IDLE_SHARE = 0.2  # a rank that uses less of a core than this does not compute
LOST = ("Connection closed by peer", "Connection reset", "Broken pipe", "Socket", "abort")
C10D = "torch/distributed/distributed_c10d.py"

private, backend, ranks = Path(sys.argv[1]), sys.argv[2], Path(os.environ["BOOTCAMP_RUN"]) / "ranks"
rank, world_size = environment.rank(), environment.count()
device = (
    torch.device("cuda", environment.local_rank()) if backend == "nccl" else torch.device("cpu")
)
engine = IPEngine.instance()
left = []  # process groups: freeing one that something still uses can hang for ever


def main() -> None:
    """Be an engine until the supervisor ends this process."""
    sys.modules["live_rank"] = sys.modules["__main__"]  # IPython puts a module of its own there
    threading.Thread(target=keep_watch, daemon=True).start()
    engine.initialize(
        [
            f"--profile-dir={private}",
            f"--IPEngine.id={rank}",
            "--IPEngine.enable_nanny=False",  # the supervisor watches, the kernel sends signals
            "--IPEngine.max_heartbeat_misses=0",
            "--IPEngine.wait_for_url_file=60",
            "--IPEngine.timeout=60",
            "--InteractiveShell.xmode=Plain",
            "--InteractiveShell.colors=nocolor",
        ]
    )
    engine.user_ns = {"torch": torch, "dist": dist, "device": device}
    engine.user_ns |= {"rank": rank, "world_size": world_size}
    use_device()
    engine.start()


def use_device() -> None:
    """Keep to the core or the GPU of this rank, as the ranks of a training run do."""
    if backend == "nccl":
        torch.cuda.set_device(device)
    config.use_cores(device.type, cores_per_rank=1)


def interrupt_cells_alone() -> None:
    """Ignore interrupts but in a cell's code: the launcher repeats them until the cell ends.

    ipykernel lets them end the taking of a message, too, which is never answered then.
    """
    engine.kernel.pre_handler_hook = engine.kernel.post_handler_hook = lambda: None
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def join(generation: int) -> tuple[int, int]:
    """Meet all ranks in a new process group. Returns process id and count of collectives."""
    interrupt_cells_alone()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, is_master=False, timeout=BACKSTOP)
    store = dist.PrefixStore(f"group {generation}", store)
    meeting = {"store": store, "rank": rank, "world_size": world_size, "timeout": BACKSTOP}
    dist.init_process_group(backend, **meeting)
    dist.barrier()
    return os.getpid(), calls()


def calls() -> int | None:
    """How many collectives this rank has called in its process group."""
    if not dist.is_initialized():
        return None
    return dist.distributed_c10d._get_default_group()._get_sequence_number_for_group()


def leave() -> None:
    """Leave the process group, if there is one. All ranks leave before one of them joins again."""
    cut()
    left.extend(dist.distributed_c10d._world.pg_names)
    if dist.is_initialized():
        dist.destroy_process_group()


def cut() -> None:
    """Shut what connects this rank with the others, so that every collective it is in ends.

    gloo can't abort a collective, but it notices at once that a connection is gone. Shut are all
    TCP connections but those with the controller and those of the store's server; also this rank's
    own one to the store, where it may wait for others too.
    """
    if backend == "nccl":
        for group in list(dist.distributed_c10d._world.pg_names):
            with contextlib.suppress(RuntimeError):
                group.abort()
    spared = controller_ports()
    for end in tcp_connections():
        with contextlib.suppress(OSError), end:
            here, there = end.getsockname()[1], end.getpeername()[1]
            if here != int(os.environ["MASTER_PORT"]) and not spared & {here, there}:
                end.shutdown(socket.SHUT_RDWR)


def tcp_connections() -> list[socket.socket]:
    """Every TCP socket of this process, whatever library holds it, as copies to be closed."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.append(socket.socket(fileno=os.dup(int(name))))
    return [end for end in found if end.family in (socket.AF_INET, socket.AF_INET6)]


def controller_ports() -> set[int]:
    """Ports of the connections that bring the notebook's cells and take the results."""
    ports = set()
    for value in engine.connection_info.values():
        ports |= set(value if isinstance(value, list) else [value])
    return ports


def keep_watch() -> None:
    """Cut when the notebook says so; else write down in which collective this rank waits idly."""
    os.mkfifo(ranks / f"{rank}.cut", 0o600)
    orders = os.open(ranks / f"{rank}.cut", os.O_RDWR | os.O_NONBLOCK)
    path = os.open(ranks / f"{rank}.state", os.O_WRONLY | os.O_CREAT, 0o600)
    main_thread, last, since, used = threading.main_thread().ident, None, 0.0, 0.0
    while True:
        if select.select([orders], [], [], TICK_SECONDS)[0]:
            os.read(orders, 100)
            cut()
            continue
        call = collective_of(sys._current_frames().get(main_thread))
        now, cpu = time.monotonic(), time.process_time()
        computes = backend != "nccl" and cpu - used > IDLE_SHARE * (now - since)
        if call != last or computes:
            last, since, used = call, now, cpu
        said = {"in": call[0], "seconds": now - since, "calls": calls()} if call else {}
        os.pwrite(path, json.dumps(said).ljust(STATE_BYTES).encode(), 0)


def collective_of(frame) -> tuple[str, int] | None:
    """(name, which call) of the collective that a frame is in, None if it is in none."""
    while frame:
        if frame.f_code.co_filename.endswith(C10D):
            return frame.f_code.co_name, id(frame)
        frame = frame.f_back
    return None


class Screen:
    """What a cell prints and shows, as one text in the order in which it does so."""

    def __init__(self, shell):
        self.shell, self.publish_before, self.parts = shell, shell.display_pub.publish, []

    def write(self, text: str) -> int:
        self.parts.append(text)
        return len(text)

    def flush(self) -> None:
        pass

    def show_value(self, value) -> None:
        if value is not None:
            self.publish(self.shell.display_formatter.format(value)[0])

    def publish(self, data: dict, *_, **__) -> None:
        self.write(data.get("text/plain", "") + "\n")

    def __enter__(self):
        self.before = sys.stdout, sys.stderr, sys.displayhook
        sys.stdout = sys.stderr = self
        sys.displayhook, self.shell.display_pub.publish = self.show_value, self.publish
        return self

    def __exit__(self, *_):
        sys.stdout, sys.stderr, sys.displayhook = self.before
        self.shell.display_pub.publish = self.publish_before


def run_cell(code: str) -> dict:
    """Run a cell as IPython does: what it printed, its error if any, how many collectives so far.

    The count tells whether the ranks still agree: they do if all have called as many.
    """
    shell = engine.kernel.shell
    with shell.display_trap, Screen(shell) as screen:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            done = shell.run_cell(code)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    error = done.error_before_exec or done.error_in_exec
    return {
        "text": "".join(screen.parts),
        "error": describe(error, shell) if error else None,
        "calls": calls(),
    }


def describe(error: BaseException, shell) -> dict:
    """An error as the notebook shows it. `lost` names the collective that it was cut out of."""
    trace, call = error.__traceback__, None
    while trace:
        call = collective_of(trace.tb_frame) or call
        trace = trace.tb_next
    lost = isinstance(error, RuntimeError) and any(words in str(error) for words in LOST)
    return {
        "name": type(error).__name__,
        "message": str(error),
        "traceback": "\n".join(part.strip("\n") for part in shell._last_traceback or [] if part),
        "lost": call[0] if call and lost else None,
    }


main()
