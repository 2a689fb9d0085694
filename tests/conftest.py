"""Every test's records go to a folder of their own; at the end no process of the course is left."""

import os
import tempfile
from pathlib import Path

_SCRATCH = Path(tempfile.mkdtemp(prefix="bootcamp-test-"))
os.environ["BOOTCAMP_LOGS"] = str(_SCRATCH / "logs")
os.environ["BOOTCAMP_WORK"] = str(_SCRATCH / "work")

import shutil  # noqa: E402

import faults  # noqa: E402
import pytest  # noqa: E402

from bootcamp.launcher import launch  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def no_process_left():
    """One warm launcher serves all tests; when they are over, nothing of it remains."""
    yield
    launch.shut_down()
    left = faults.leftovers(os.getpid())
    shutil.rmtree(_SCRATCH, ignore_errors=True)
    assert not left, f"processes outlived the tests: {left}"


@pytest.fixture(autouse=True)
def no_rank_left():
    """After each test the supervisor and its fork server may be there, and nothing else."""
    yield
    left = faults.leftovers(os.getpid(), allow_launcher=True)
    assert not left, f"ranks outlived the test: {left}"
