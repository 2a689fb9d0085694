"""One live rank of a notebook: an ipyparallel engine with a process group.

The launcher (bootcamp/launcher/live_ranks.py) runs this file once for each rank, with the folder of
the controller's connection file. A rank lives as long as the notebook's kernel. Its cells find
`torch`, `dist`, `rank` and `world_size`; the process group is made by `join`, and made anew after a
cell in which the ranks did not meet.

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
from IPython.utils.capture import capture_output

from bootcamp.train import config, environment

TICK_SECONDS = 0.2
STATE_BYTES = 160
BACKSTOP = timedelta(seconds=60)  # a waiting rank is noticed sooner; this is for what is not seen
IDLE_SHARE = 0.2  # a rank that uses less of a core than this does not compute
LOST = ("Connection closed by peer", "Connection reset", "Broken pipe", "Socket", "abort")
C10D = "torch/distributed/distributed_c10d.py"

ranks = Path(os.environ["BOOTCAMP_RUN"]) / "ranks"
rank, world_size = environment.rank(), environment.count()
engine = IPEngine.instance()
left = []  # process groups: freeing one that something still uses can hang for ever


def main() -> None:
    """Be an engine until the supervisor ends this process."""
    sys.modules["live_rank"] = sys.modules["__main__"]  # IPython puts a module of its own there
    threading.Thread(target=keep_watch, daemon=True).start()
    engine.initialize(
        [
            f"--profile-dir={sys.argv[1]}",
            f"--IPEngine.id={rank}",
            "--IPEngine.enable_nanny=False",  # the supervisor watches, the kernel sends signals
            "--IPEngine.max_heartbeat_misses=0",
            "--IPEngine.wait_for_url_file=60",
            "--IPEngine.timeout=60",
            "--InteractiveShell.xmode=Plain",
            "--InteractiveShell.colors=nocolor",
        ]
    )
    engine.user_ns = {"torch": torch, "dist": dist, "rank": rank, "world_size": world_size}
    config.use_cores("cpu", cores_per_rank=1)
    engine.start()


def join(meeting: int) -> int:
    """Meet all ranks in a new process group. Returns the process id.

    From now on interrupts end nothing but a cell's code: ipykernel lets them end the taking of a
    message, too, which is never answered then. The launcher repeats them until the cell ends.
    """
    engine.kernel.pre_handler_hook = engine.kernel.post_handler_hook = lambda: None
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, is_master=False, timeout=BACKSTOP)
    store = dist.PrefixStore(f"group {meeting}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=BACKSTOP)
    dist.barrier()
    return os.getpid()


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
    spared = set()
    for value in engine.connection_info.values():
        spared |= set(value if isinstance(value, list) else [value])
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
        if call != last or cpu - used > IDLE_SHARE * (now - since):
            last, since, used = call, now, cpu
        state = {"in": call[0], "seconds": now - since, "calls": calls()} if call else {}
        os.pwrite(path, json.dumps(state).ljust(STATE_BYTES).encode(), 0)


def collective_of(frame) -> tuple[str, int] | None:
    """(name, which call) of the collective that a frame is in, None if it is in none."""
    while frame:
        if frame.f_code.co_filename.endswith(C10D):
            return frame.f_code.co_name, id(frame)
        frame = frame.f_back
    return None


def run_cell(code: str) -> dict:
    """Run a cell as IPython does: what it printed and showed, its error if any, `calls` so far.

    The ranks still agree if all have called as many collectives.
    """
    shell = engine.kernel.shell
    with shell.display_trap, capture_output() as captured:
        sys.stderr = sys.stdout  # in the order in which they were written
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            done = shell.run_cell(code)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    values = [output.data.get("text/plain", "") + "\n" for output in captured.outputs]
    error = done.error_before_exec or done.error_in_exec
    return {
        "text": captured.stdout + "".join(values),
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
