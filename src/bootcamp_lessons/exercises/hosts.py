"""Exercises of lesson 09 that are a function in a cell."""

import re

from bootcamp.classroom.function_task import FunctionTask


def place_of_rank(rank, gpus):
    """The host of a rank and its LOCAL_RANK, on hosts that need not have as many GPUs each."""
    for host, count in enumerate(gpus):
        if rank < count:
            return host, rank
        rank -= count
    raise ValueError("there are fewer GPUs than that")


def _as_large_as_the_first(rank, gpus):
    return divmod(rank, gpus[0])


def _rank_modulo_device_count(rank, gpus):
    host, _ = place_of_rank(rank, gpus)
    return host, rank % gpus[host]


def _dealt_out_in_turn(rank, gpus):
    places = [(local, host) for host, count in enumerate(gpus) for local in range(count)]
    local, host = sorted(places)[rank]
    return host, local


PLACE = FunctionTask(
    hint="Walk along the hosts. How many ranks are on those before?",
    stronger="For each host with its count: if rank < count, this is the host, and rank is what "
    "is left, the LOCAL_RANK. Otherwise take count away from rank.",
    solved_by=place_of_rank,
    cases=((5, [4, 4]), (5, [4, 2]), (3, [2, 4]), (3, [3, 2]), (8, [2, 4, 8]), (0, [1, 1])),
    mistakes={
        "That takes every host to have as many GPUs as the first. Look at each host's own "
        "count.": _as_large_as_the_first,
        "The hosts are right. But rank % device_count is another number than LOCAL_RANK where the "
        "hosts before have other counts: it shifts the GPUs, and what is bound to LOCAL_RANK, "
        "such as cores, is then near another GPU.": _rank_modulo_device_count,
        "That deals ranks out in turn, as --distribution=cyclic does. torchrun numbers them host "
        "by host.": _dealt_out_in_turn,
        "Host and LOCAL_RANK have changed places.": lambda rank, gpus: place_of_rank(rank, gpus)[
            ::-1
        ],
        "Hosts are counted from 0.": lambda rank, gpus: (
            place_of_rank(rank, gpus)[0] + 1,
            place_of_rank(rank, gpus)[1],
        ),
    },
)


def hosts_of(nodelist, padded=True, last=1):
    """The names of the hosts in a list as Slurm shortens it."""
    names = []
    for prefix, numbers in re.findall(r"([^,\[]+)(?:\[([^\]]+)\])?", nodelist):
        if not numbers:
            names.append(prefix)
            continue
        for part in numbers.split(","):
            begin, _, end = part.partition("-")
            width = len(begin) if padded else 0
            for number in range(int(begin), int(end or begin) + last):
                names.append(f"{prefix}{number:0{width}d}" if width else f"{prefix}{number}")
    return names


def _split_at_each_comma(nodelist):
    return nodelist.split(",")


def _first_range_only(nodelist):
    found = re.fullmatch(r"([^\[,]+)\[(\d+)-(\d+).*", nodelist)
    return hosts_of(f"{found[1]}[{found[2]}-{found[3]}]") if found else [nodelist]


def _first_group_only(nodelist):
    return hosts_of(re.match(r"[^,\[]+(\[[^\]]+\])?", nodelist)[0])


HOSTS = FunctionTask(
    hint="There are commas of two kinds, inside brackets and between groups. "
    'What does "gpu[08-11]" begin and end with, as text?',
    stronger=r're.findall(r"([^,\[]+)(?:\[([^\]]+)\])?", nodelist) gives each group\'s beginning '
    "and what is in its brackets. Of a range such as 08-11 keep the width of its first number: "
    'f"{number:0{width}d}".',
    solved_by=hosts_of,
    cases=(
        ("host[0-1]",),
        ("login1",),
        ("gpu[08-11]",),
        ("gpu[08-09,12]",),
        ("a[1-2],b7",),
        ("a[1-2],b[3,5-6]",),
    ),
    mistakes={
        "The zeros are lost: gpu[08-11] begins with gpu08, and there is no host gpu8.": {
            "padded": False
        },
        "The last number of a range is a host too: range() ends before its end.": {"last": 0},
        "A comma inside brackets separates numbers, not groups: cut the list into groups "
        "first.": _split_at_each_comma,
        "Only the first range is there. In brackets there may be several, and single "
        "numbers.": _first_range_only,
        "Only the first group is there. After its bracket a comma and another group may "
        "follow.": _first_group_only,
    },
)

TASKS = [PLACE, HOSTS]
