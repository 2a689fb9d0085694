"""Read which rank this process is, of torchrun, Horovod or MPI, and choose its cores."""

import os

from bootcamp import machine

LOCAL_COUNT = ("LOCAL_WORLD_SIZE", "HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")


def rank() -> int:
    return _number("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", default=0)


def count() -> int:
    """Return the number of processes that the launcher started, on all hosts together."""
    return _number("WORLD_SIZE", "HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", default=1)


def local_rank() -> int:
    """Return the rank within this host: the number of its GPU or of its cores."""
    return _number("LOCAL_RANK", "HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", default=0)


def local_count() -> int:
    """Return the number of processes on this host."""
    return _number(*LOCAL_COUNT, default=1)


def _number(*names: str, default: int) -> int:
    return next((int(os.environ[name]) for name in names if name in os.environ), default)


def knows_its_host() -> bool:
    """Whether the launcher said how many processes are on this host, or there is only one."""
    return count() == 1 or any(name in os.environ for name in LOCAL_COUNT)


def own_cores(count: int) -> set[int]:
    """Choose this rank's cores; ranks beyond the cores share them in turn.

    BOOTCAMP_FIRST_CORE moves all ranks, so that two launches at once need not meet on one core.
    Simulated hosts share the machine's cores, so there the global rank counts.
    """
    cores = machine.cores()
    place = _number("BOOTCAMP_FIRST_CORE", default=0) + (rank() if link() else local_rank())
    return {cores[(place * count + i) % len(cores)] for i in range(count)}


def shares_gpus() -> bool:
    """Whether ranks may share GPUs, over gloo: NCCL refuses two ranks on one GPU."""
    return os.environ.get("BOOTCAMP_SHARE_GPUS") == "1"


def hosts() -> int:
    """Return the number of hosts that the processes are spread over."""
    return max(1, count() // local_count())


def link() -> str | None:
    """Return the rate of the link between simulated hosts, "open" for any; None elsewhere."""
    return os.environ.get("BOOTCAMP_LINK")


def run_folder() -> str | None:
    """Return the folder for the record that the launcher of this course chose."""
    return os.environ.get("BOOTCAMP_RUN")


def attempt() -> int:
    """Return how often torchrun has restarted the ranks of this run."""
    return _number("TORCHELASTIC_RESTART_COUNT", default=0)


def launcher() -> str:
    """Name what started this process."""
    marks = {
        "TORCHELASTIC_RUN_ID": "torchrun",
        "HOROVOD_RANK": "horovodrun",
        "OMPI_COMM_WORLD_RANK": "mpirun",
        "BOOTCAMP_RUN": "bootcamp.launch",
    }
    return next((name for mark, name in marks.items() if mark in os.environ), "python")


def has_a_group_of_its_own() -> bool:
    """Whether Horovod or MPI connects the ranks: torch's process group knows nothing of that."""
    return any(name in os.environ for name in ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE"))
