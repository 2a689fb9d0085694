"""One live rank of a notebook: run the cells that `%%ranks` sends (launcher/live_ranks.py).

Cells find `torch`, `dist`, `rank` and `world_size`. `join` makes the process group, and makes it
anew after a cell in which the ranks did not meet. A second thread receives what the notebook sends,
reports in which collective the rank waits, and frees it from there on request.
"""

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from datetime import timedelta
from multiprocessing.connection import Client, Connection
from pathlib import Path

if __name__ == "__main__":  # started as a file: the package lies two folders up
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import psutil
import torch
import torch.distributed as dist

from bootcamp.train import config, environment

TICK_SECONDS = 0.2
BACKSTOP = timedelta(seconds=60)  # a waiting rank is noticed sooner; for what nobody notices
IDLE_SHARE = 0.2  # a rank that uses less of a core than this does not compute
LOST = ("Connection closed by peer", "Connection reset", "Broken pipe", "Socket", "abort")
C10D = "torch/distributed/distributed_c10d.py"
HOST = os.environ.get("MASTER_ADDR", "")  # a cell may change the variables
STORE_PORT = int(os.environ.get("MASTER_PORT", 0))
left_groups = []  # freeing one that something still uses can hang for ever


def main() -> None:
    """Follow the orders of the notebook at this socket until the supervisor ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it interrupts cells only
    rank, world_size = environment.rank(), environment.world_size()
    config.use_cores("cpu", cores_per_rank=1)
    shell = make_shell({"torch": torch, "dist": dist, "rank": rank, "world_size": world_size})
    functions = {"join": join, "leave": leave, "run_cell": lambda code: run_cell(shell, code)}
    with Client(sys.argv[1]) as notebook:
        notebook.send((rank, os.getpid()))
        orders, sending = queue.SimpleQueue(), threading.Lock()
        threading.Thread(target=keep_watch, args=(notebook, orders, sending), daemon=True).start()
        while True:
            function, *arguments = orders.get()
            reply = functions[function](*arguments)
            with sending:
                notebook.send(("reply", reply))


def make_shell(names: dict):
    """Make the IPython shell that runs the cells; it keeps each error's traceback as `trace`."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Shell(InteractiveShell):
        """As in a kernel: no other environment's packages, no exit, no GUI."""

        def init_virtualenv(self, *_) -> None: ...

        ask_exit = enable_gui = init_virtualenv

    quiet = Config(HistoryManager={"enabled": False})
    shell = Shell.instance(user_ns=names, config=quiet, xmode="Plain", colors="nocolor")
    shell._showtraceback = lambda kind, error, lines: setattr(shell, "trace", lines)
    return shell


def join(meeting: int) -> None:
    """Meet all ranks in a new process group."""
    store = dist.TCPStore(HOST, STORE_PORT, is_master=False, timeout=BACKSTOP)
    store = dist.PrefixStore(f"group {meeting}", store)
    place = {"rank": environment.rank(), "world_size": environment.world_size()}
    dist.init_process_group("gloo", store=store, timeout=BACKSTOP, **place)
    dist.barrier()


def leave() -> None:
    """Leave the process group, if there is one. All ranks leave before one of them joins again."""
    cut_connections()
    left_groups.extend(dist.distributed_c10d._world.pg_names)
    if dist.is_initialized():
        dist.destroy_process_group()


def count_calls() -> int | None:
    """Count the collectives that this rank has called in its process group."""
    if not dist.is_initialized():
        return None
    return dist.distributed_c10d._get_default_group()._get_sequence_number_for_group()


def cut_connections() -> None:
    """Shut what connects this rank with the others, so that every collective it is in ends.

    gloo can't abort a collective, but it notices at once that a connection is gone. All connected
    TCP sockets are shut, whatever library holds them; also that to the store, where the rank may
    wait for others too. gloo needs those that listen.
    """
    for end in psutil.Process().net_connections("tcp"):
        if end.raddr:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(end.fd)) as copy:
                copy.shutdown(socket.SHUT_RDWR)


def keep_watch(notebook: Connection, orders: queue.SimpleQueue, sending: threading.Lock) -> None:
    """Pass the notebook's orders on, and report the collective in which the main thread waits."""
    main_thread, last, since, used = threading.main_thread().ident, None, 0.0, 0.0
    reported = {}
    try:
        while True:
            while notebook.poll(TICK_SECONDS):
                if (order := notebook.recv()) == ("cut_connections",):
                    cut_connections()
                else:
                    orders.put(order)
            call = find_collective(sys._current_frames()[main_thread])
            now, cpu = time.monotonic(), time.process_time()
            if call != last or cpu - used > IDLE_SHARE * (now - since):
                last, since, used = call, now, cpu
            waits = {"in": call[0], "seconds": now - since, "calls": count_calls()} if call else {}
            if waits or reported:
                with sending:
                    notebook.send(("state", waits))
            reported = waits
    finally:
        os._exit(1)  # nobody could reach it any more


def find_collective(frame) -> tuple[str, int] | None:
    """Return (name, which call) of the collective that a frame is in, None if it is in none."""
    for outer, _ in traceback.walk_stack(frame):
        if outer.f_code.co_filename.endswith(C10D):
            return outer.f_code.co_name, id(outer)
    return None


def run_cell(shell, code: str) -> dict:
    """Run a cell as IPython does: its text, its error if any, `calls` of collectives so far."""
    from IPython.utils.capture import capture_output

    shell.trace = []
    with shell.display_trap, capture_output() as captured:
        sys.stderr = sys.stdout  # in the order in which they were written
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            done = shell.run_cell(code)
            error = done.error_before_exec or done.error_in_exec
        except KeyboardInterrupt as interrupt:  # it came as the cell began or ended
            error = interrupt
        finally:
            while signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                with contextlib.suppress(KeyboardInterrupt):
                    signal.signal(signal.SIGINT, signal.SIG_IGN)
    values = [f"{output.data.get('text/plain', '')}\n" for output in captured.outputs]
    text, error = captured.stdout + "".join(values), error and describe(error, shell.trace)
    return {"text": text, "error": error, "calls": count_calls()}


def describe(error: BaseException, lines: list[str]) -> dict:
    """Describe an error as the notebook shows it. `lost` names the collective it was cut out of."""
    call = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        call = find_collective(frame) or call
    try:
        message = str(error)
    except Exception:
        message = f"<unprintable {type(error).__name__}>"
    lost = isinstance(error, RuntimeError) and any(words in message for words in LOST)
    return {
        "message": f"{type(error).__name__}: {message}",
        "traceback": "\n".join(line.strip("\n") for line in lines if line),
        "lost": call[0] if call and lost else None,
    }


if __name__ == "__main__":
    main()
