"""Exercises of lesson 09b: whom a set of logs blames, and the batch of a world that has shrunk."""

from bootcamp.classroom.function_task import FunctionTask


def look_first(logs):
    """The rank to look at first, from what each rank wrote last; -1 if there is nothing to go by.

    logs: a dictionary for each rank, in order of rank: "seconds" when it wrote, None if it wrote
    nothing, and its "error". An error of its own comes before the silence of another.
    """
    own = [rank for rank, log in enumerate(logs) if log["error"] and not _of_another(log["error"])]
    if own:
        return min(own, key=lambda rank: logs[rank]["seconds"])
    silent = [rank for rank, log in enumerate(logs) if log["error"] is None]
    return silent[0] if silent else -1


def _of_another(error):
    return "by peer" in error or "Timed out" in error


def _by_time(logs):
    told = [rank for rank, log in enumerate(logs) if log["error"]]
    return min(told, key=lambda rank: logs[rank]["seconds"])


def _last(logs):
    told = [rank for rank, log in enumerate(logs) if log["error"]]
    return max(told, key=lambda rank: logs[rank]["seconds"])


def _silent_first(logs):
    silent = [rank for rank, log in enumerate(logs) if log["error"] is None]
    return silent[0] if silent else look_first(logs)


PEER = "RuntimeError: Connection closed by peer [10.0.0.2]:4711"
LATE = "RuntimeError: Timed out waiting 1800000ms for recv operation to complete"
FULL = "OSError: [Errno 28] No space left on device"
LOOK_FIRST = FunctionTask(
    hint="Which of these errors does a rank raise because of itself? And what does a rank write "
    "that was killed?",
    stronger='First the errors that are neither "by peer" nor "Timed out": of these the '
    "earliest. If there is none, the first rank that wrote nothing. If all wrote, -1.",
    solved_by=look_first,
    cases=(
        (
            [
                {"seconds": 7.1, "error": PEER},
                {"seconds": 7.3, "error": PEER},
                {"seconds": None, "error": None},
                {"seconds": 7.2, "error": PEER},
            ],
        ),
        (
            [
                {"seconds": 5.2, "error": PEER},
                {"seconds": 5.4, "error": FULL},
                {"seconds": None, "error": None},
                {"seconds": 5.9, "error": FULL},
            ],
        ),
        ([{"seconds": 30.0, "error": LATE}, {"seconds": 30.1, "error": LATE}],),
    ),
    unit="rank",
    mistakes={
        "That is the first error of all. A closed connection may be noted before the rank that "
        "closed it has written its own.": _by_time,
        "That is the last error of all. It is the furthest from the cause.": _last,
        "A silent rank is the culprit only if no other has an error of its own: it may have been "
        "ended before it could write.": _silent_first,
    },
)


def micro_batches(global_batch, micro_batch, ranks):
    """How many micro-batches each rank computes in a step, so that the global batch stays."""
    share = -(-global_batch // ranks)
    return -(-share // micro_batch)


MICRO_BATCHES = FunctionTask(
    hint="First the samples of the rank that has most, then the passes for them. Both round up.",
    stronger="Rounding up without floats: -(-a // b).",
    solved_by=micro_batches,
    cases=((512, 8, 16), (512, 8, 15), (30, 4, 4), (16, 32, 2)),
    unit="passes",
    mistakes={
        "Rounded down, some samples are left out of the step, and it is another training.": (
            lambda global_batch, micro_batch, ranks: global_batch // ranks // micro_batch
        ),
        "That is the number for all ranks together.": (
            lambda global_batch, micro_batch, ranks: -(-global_batch // micro_batch)
        ),
        "That leaves each rank's number as it was in the larger world: the global batch shrinks "
        "with the ranks.": lambda global_batch, micro_batch, ranks: micro_batch,
    },
)

TASKS = [LOOK_FIRST, MICRO_BATCHES]
