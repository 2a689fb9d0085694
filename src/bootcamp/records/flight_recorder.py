"""A rank writes its stack and its last collectives when somebody asks it where it stands.

torch's flight recorder keeps the last 2000 collectives of a process (TORCH_FR_BUFFER_SIZE), gloo's
and NCCL's. NCCL's watchdog writes them when a collective times out; gloo has no watchdog. So here a
rank does it itself. The files are in torch's format: `torchfrtrace <run_dir>/flight_recorder -p
rank_` reads them too; standstill.py explains them.
"""

import contextlib
import faulthandler
import io
import os
import pickle
import signal
import socket
import sys
import threading
from pathlib import Path

from bootcamp.files import replacing

FOLDER = "flight_recorder"
_rank: dict = {}  # what this process writes about itself, once it answers


def start_answering(run_dir: Path, rank: int) -> None:
    """Make this process write where it stands: on SIGUSR1, and when an exception ends it.

    The stack goes to `<run_dir>/ranks/<rank>.stack`, the collectives to
    `<run_dir>/flight_recorder/rank_<rank>`. A rank that waits inside a collective runs no Python
    of its main thread, so that no signal handler of Python's would ever begin: faulthandler writes
    the stack in C, and Python's part of the signal only wakes a thread, which does the rest.
    """
    run_dir = Path(run_dir)
    if _rank.get("run_dir") == run_dir:
        return
    listens = "run_dir" in _rank or _listen()
    path = run_dir / "ranks" / f"{rank}.stack"
    path.parent.mkdir(parents=True, exist_ok=True)
    stack = open(path, "w")  # noqa: SIM115 (open as long as the rank)
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True, chain=listens)
    _rank.update(run_dir=run_dir, rank=rank, stack=stack)


def _listen() -> bool:
    """Start the thread that writes; False where Python allows no handler: beside the main thread.

    Without a handler behind faulthandler's, SIGUSR1 would end the process.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    show = sys.excepthook

    def write_when_asked():
        while True:
            if signal.SIGUSR1 in os.read(reader, 4096):  # a byte for each signal
                _write()

    def show_and_write(kind, error, trace):
        show(kind, error, trace)
        _write(raised=f"{kind.__name__}: {error}")

    threading.Thread(target=write_when_asked, daemon=True).start()
    sys.excepthook = show_and_write
    return True


def _write(raised: str | None = None) -> None:
    """Write this rank's collectives. raised: the exception that is about to end it.

    A rank that has been asked before and has met no collective since keeps that answer: it raised
    because the others were ended. Fails in silence: the run's own error must be the first.
    """
    with contextlib.suppress(Exception):
        dump = {"rank": _rank["rank"], "host": socket.gethostname(), "raised": raised} | _dump()
        newest = max((entry["record_id"] for entry in dump["entries"]), default=None)
        if raised and newest == _rank.get("newest"):
            return
        _rank["newest"] = newest
        path = path_of(_rank["run_dir"], _rank["rank"])
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as beside:
            beside.write_bytes(pickle.dumps(dump))


def _dump() -> dict:
    """Return what torch's recorders hold, with the ranks of each group, unknown to gloo's."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    dump: dict = {"version": "", "entries": [], "pg_config": {}}
    for recorder in ("_dump_fr_trace", "_dump_nccl_trace"):  # the second is there on GPUs only
        if hasattr(c10d, recorder):
            found = pickle.loads(getattr(c10d, recorder)())
            entries = [*dump["entries"], *found.get("entries", [])]
            dump |= {**found, "entries": sorted(entries, key=lambda e: e["time_created_ns"])}
    module = sys.modules.get("torch.distributed.distributed_c10d")
    groups = dict(module._world.pg_group_ranks) if module else {}
    dump["pg_config"] = {
        name: {"name": name, "desc": group.group_desc, "ranks": str(sorted(ranks))}
        for group, ranks in groups.items()
        if (name := getattr(group, "group_name", None))  # other ranks' groups have none here
    }
    return dump


class _PlainData(pickle.Unpickler):
    """Reads dictionaries, lists, numbers and texts: a file from elsewhere can run nothing."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name} is no plain data")


def read(run_dir: Path | str) -> dict[int, dict]:
    """Read the dump of each rank that has written one, also those that NCCL's watchdog wrote."""
    found = {}
    for path in (Path(run_dir) / FOLDER).glob("*_[0-9]*"):
        number = path.name.rpartition("_")[2]
        if number.isdigit():  # else it is being written
            with contextlib.suppress(OSError, pickle.UnpicklingError, EOFError):
                found[int(number)] = _PlainData(io.BytesIO(path.read_bytes())).load()
    return found


def path_of(run_dir: Path, rank: int) -> Path:
    return run_dir / FOLDER / f"rank_{rank}"
