"""Say which rank this process is, by its launcher's variables and by torch's process group."""

import os

import torch.distributed as dist

MARKS_OF_LAUNCHERS = {"TORCHELASTIC_RUN_ID": "torchrun", "HOROVOD_RANK": "horovodrun"}
MARKS_OF_LAUNCHERS |= {"OMPI_COMM_WORLD_RANK": "mpirun", "BOOTCAMP_RUN": "bootcamp.launch"}


def _read_number(*names: str, default):
    return next((int(os.environ[name]) for name in names if name in os.environ), default)


def rank() -> int:
    return _read_number("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", default=0)


def world_size() -> int:
    """Return the number of processes that the launcher started, on all hosts together."""
    return _read_number("WORLD_SIZE", "HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", default=1)


def local_rank() -> int:
    """Return the rank within this host: the number of its GPU or of its cores."""
    return _read_number("LOCAL_RANK", "HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", default=0)


def local_world_size(unknown: int | str = 1) -> int | str:
    """Return the number of processes on this host; unknown: if the launcher does not say it."""
    names = ("LOCAL_WORLD_SIZE", "HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
    return _read_number(*names, default=unknown if world_size() > 1 else 1)


def link_rate() -> str | None:
    """Return the rate of the link between simulated hosts, "open" for any; None elsewhere."""
    return os.environ.get("BOOTCAMP_LINK")


def attempt() -> int:
    """Return how often torchrun has restarted the ranks of this run."""
    return _read_number("TORCHELASTIC_RESTART_COUNT", default=0)


def launcher() -> str:
    """Return the name of what started this process."""
    return next((name for mark, name in MARKS_OF_LAUNCHERS.items() if mark in os.environ), "python")


def has_group() -> bool:
    """Return whether a script has made a process group, which not every build of torch can."""
    return dist.is_available() and dist.is_initialized()


def backend() -> str | None:
    """Return the process group's backend, such as "gloo"; None without a group."""
    return dist.get_backend() if has_group() else None


def count_ranks(framework_size: int) -> int:
    """Count the group's ranks; without a group, what Horovod or MPI say (framework_size), or 1."""
    if has_group():
        return dist.get_world_size()
    return framework_size if {"HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE"} & os.environ.keys() else 1


def gather_objects(mine) -> list:
    """Gather an object from each rank, in order of rank; only one's own without a group."""
    if not has_group():
        return [mine]
    objects = [None] * dist.get_world_size()
    dist.all_gather_object(objects, mine)
    return objects
