"""What torch's process group says of itself, once a script has made one."""

from bootcamp.train import environment


def _group():
    import torch.distributed as dist

    return dist if dist.is_available() and dist.is_initialized() else None


def backend() -> str | None:
    """Return the group's backend, such as "gloo"; None without a group."""
    return _group().get_backend() if _group() else None


def size(framework: int) -> int:
    """Count its ranks, 1 without a group.

    framework: the number that the script got, the answer for Horovod, which has no torch group.
    """
    if group := _group():
        return group.get_world_size()
    return framework if environment.has_a_group_of_its_own() else 1


def from_all_ranks(mine) -> list:
    """Gather an object from each rank, in order of rank; only one's own without a group."""
    if not (group := _group()):
        return [mine]
    found = [None] * group.get_world_size()
    group.all_gather_object(found, mine)
    return found
