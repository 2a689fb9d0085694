"""Runs that tests read and never change, each trained once in a run of the suite.

`trained("ddp", 2, steps=10)` is `launch` with a memory: an identical launch of another test, of
another worker or of a notebook answers it (see run_cache.py). Use `launch.launch`
itself where the launch is what is tested.
"""

import contextlib
import os

import run_cache

from bootcamp.experiments import equality
from bootcamp.launcher import launch
from bootcamp.records.runs import Run
from bootcamp.scripts import strategies

PROOF = equality.settings(ranks=4)  # and for 1, 2 and 3: lessons prove with the same
CACHE: str | None = None  # the folder of this run of the suite; conftest.py sets it
_folders: dict[tuple, object] = {}
_baseline = equality.baseline


@contextlib.contextmanager
def shared():
    """Launches in here may be answered by identical ones of this run of the suite."""
    os.environ[run_cache.VARIABLE] = CACHE
    try:
        yield
    finally:
        os.environ.pop(run_cache.VARIABLE, None)


def trained(script, ranks: int | None = None, **flags) -> Run:
    """The run of a script on CPU ranks with these flags; its record is shared, so only read it."""
    device = {"device": "cpu"} if strategies.describe(script).takes_course_flags else {}
    flags = {**device, "quiet": True, **flags}
    text = strategies.find(script).read_text()
    key = (str(script), text, ranks, *sorted((name, str(value)) for name, value in flags.items()))
    if key not in _folders:
        with shared():
            _folders[key] = launch.launch(script, ranks, **flags).folder
    return Run(_folders[key])


def baseline(**flags) -> Run:
    """As equality.baseline, shared too; conftest.py puts it in that one's place."""
    with shared():
        return _baseline(**flags)


def proved(script, ranks: int | None = None, **flags) -> list[equality.Proof]:
    """As equality.prove, with shared runs: the proofs with both optimizers."""
    proofs = []
    for optimizer in equality.PROVEN_WITH:
        own = {**PROOF, **flags, "optimizer": optimizer}
        same = {name: value for name, value in own.items() if name in equality.SAME_SETTINGS}
        proofs.append(equality.same_training(trained(script, ranks, **own), baseline(**same)))
    return proofs
