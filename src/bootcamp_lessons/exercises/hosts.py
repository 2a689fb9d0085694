"""Exercises of lessons 09 and 09b: places of ranks, lists of hosts, culprits."""

import re

from bootcamp.classroom.tasks import FunctionTask


@FunctionTask.from_solution(
    hint="Walk along the hosts. How many ranks are on those before?",
    stronger="For each host with its count: if rank < count, this is the host, and rank is what "
    "is left, the LOCAL_RANK. Otherwise take count away from rank.",
    cases=((5, [4, 4]), (5, [4, 2]), (3, [2, 4]), (3, [3, 2]), (8, [2, 4, 8]), (0, [1, 1])),
    mistakes={
        (lambda rank, gpus: divmod(rank, gpus[0])): "Look at each host's count, not the first's.",
        ("host, rank\n", "host, (rank + sum(gpus[:host])) % count\n"): "The hosts are right. But "
        "rank % device_count is another number than LOCAL_RANK where the hosts before have other "
        "counts: it shifts the GPUs, and what is bound to LOCAL_RANK, as cores, is near another.",
        (
            lambda rank, gpus: sorted(
                (n, host) for host, count in enumerate(gpus) for n in range(count)
            )[rank][::-1]
        ): "That deals ranks out in turn (--distribution=cyclic). torchrun goes host by host.",
        ("return host, rank", "return rank, host"): "Host and LOCAL_RANK have changed places.",
    },
)
def place_of_rank(rank, gpus):
    """The host of a rank and its LOCAL_RANK, on hosts that need not have as many GPUs each."""
    for host, count in enumerate(gpus):
        if rank < count:
            return host, rank
        rank -= count
    raise ValueError("there are fewer GPUs than that")


def _first_range_only(nodelist):
    found = re.fullmatch(r"([^\[,]+)\[(\d+)-(\d+).*", nodelist)
    return hosts_of(f"{found[1]}[{found[2]}-{found[3]}]") if found else [nodelist]


@FunctionTask.from_solution(
    hint="There are commas of two kinds, inside brackets and between groups. "
    'What does "gpu[08-11]" begin and end with, as text?',
    stronger=r're.findall(r"([^,\[]+)(?:\[([^\]]+)\])?", nodelist) gives each group\'s beginning '
    "and what is in its brackets. Of a range such as 08-11 keep the width of its first number: "
    'f"{number:0{width}d}".',
    cases=(
        ("host[0-1]",),
        ("login1",),
        ("gpu[08-11]",),
        ("gpu[08-09,12]",),
        ("a[1-2],b7",),
        ("a[1-2],b[3,5-6]",),
    ),
    mistakes={
        ("len(begin)", "0"): "The zeros are lost: gpu[08-11] begins with gpu08, not gpu8.",
        (" + 1)", ")"): "The last number of a range is a host too: range() ends before its end.",
        (lambda nodelist: nodelist.split(",")): "A comma inside brackets separates no groups.",
        _first_range_only: "Only the first range is there. Brackets may hold several, and numbers.",
        (lambda nodelist: hosts_of(re.match(r"[^,\[]+(\[[^\]]+\])?", nodelist)[0])): "Only the "
        "first group is there. After its bracket a comma and another group may follow.",
    },
)
def hosts_of(nodelist):
    """The names of the hosts in a list as Slurm shortens it."""
    names = []
    for prefix, numbers in re.findall(r"([^,\[]+)(?:\[([^\]]+)\])?", nodelist):
        if not numbers:
            names.append(prefix)
            continue
        for part in numbers.split(","):
            begin, _, end = part.partition("-")
            for number in range(int(begin), int(end or begin) + 1):
                names.append(f"{prefix}{number:0{len(begin)}d}")
    return names


def _logs(*ranks):
    """Make a case: for each rank the seconds at which it wrote, and its error."""
    return ([{"seconds": seconds, "error": error} for seconds, error in ranks],)


CLOSED = "RuntimeError: Connection closed by peer [10.0.0.2]:4711"
TIMED_OUT = "RuntimeError: Timed out waiting 1800000ms for recv operation to complete"
DISK_FULL = "OSError: [Errno 28] No space left on device"


@FunctionTask.from_solution(
    hint="Which errors does a rank raise because of itself? What does a killed rank write?",
    stronger='First the errors that are neither "by peer" nor "Timed out": of these the '
    "earliest. If there is none, the first rank that wrote nothing. If all wrote, -1.",
    cases=(
        _logs((7.1, CLOSED), (7.3, CLOSED), (None, None), (7.2, CLOSED)),
        _logs((5.2, CLOSED), (5.4, DISK_FULL), (None, None), (5.9, DISK_FULL)),
        _logs((30.0, TIMED_OUT), (30.1, TIMED_OUT)),
    ),
    unit="(rank)",
    mistakes={
        (' if not re.search("by peer|Timed out", error)', ""): "That is the first error of all. A "
        "closed connection may be noted before the rank that closed it has written its own.",
        (' if not re.search("by peer|Timed out", error)', "", "min(", "max("): "That is the last "
        "error of all. It is the furthest from the cause.",
        ("if own:", "if own and len(errors) == len(logs):"): "A silent rank is the culprit only if "
        "no other has an error of its own: it may have been ended before it could write.",
    },
)
def look_first(logs):
    """The rank to look at first, from what each rank wrote last; -1 if there is nothing to go by.

    logs: a dictionary for each rank, in order of rank: "seconds" when it wrote, None if it wrote
    nothing, and its "error". An error of its own comes before the silence of another.
    """
    errors = {rank: log["error"] for rank, log in enumerate(logs) if log["error"]}
    own = [rank for rank, error in errors.items() if not re.search("by peer|Timed out", error)]
    if own:
        return min(own, key=lambda rank: logs[rank]["seconds"])
    silent = [rank for rank in range(len(logs)) if rank not in errors]
    return silent[0] if silent else -1
