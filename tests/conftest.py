"""What holds for every test, and how tests and notebooks are dealt out to workers.

Records go to a folder of the worker's own, and no process of the course is left. A file's tests,
and a notebook's cells, run in one worker; those marked `alone` are run by tools/test.py after the
others.
"""

import contextlib
import itertools
import os
import sys
import tempfile
from pathlib import Path

_SCRATCH = Path(tempfile.mkdtemp(prefix="bootcamp-test-"))
os.environ["BOOTCAMP_LOGS"] = str(_SCRATCH / "logs")
os.environ["BOOTCAMP_WORK"] = str(_SCRATCH / "work")
os.environ["IPYTHONDIR"] = str(_SCRATCH / "ipython")
os.environ["BOOTCAMP_CLAIM_SECONDS"] = "0"  # one pair: that a claim runs, not what holds here
os.environ["OMP_NUM_THREADS"] = "1"  # workers with two threads each would wait for each other
if _worker := os.environ.get("PYTEST_XDIST_WORKER"):  # their ranks begin with different cores
    os.environ["BOOTCAMP_FIRST_CORE"] = _worker.removeprefix("gw")

import shutil  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import faults  # noqa: E402
import interrupts  # noqa: E402
import pytest  # noqa: E402
import records  # noqa: E402
import run_cache  # noqa: E402
import trained  # noqa: E402
import warm  # noqa: E402

from bootcamp.experiments import equality  # noqa: E402
from bootcamp.launcher import launch  # noqa: E402
from bootcamp.launcher.connection import Connection  # noqa: E402

with contextlib.suppress(ImportError):  # a GPU machine may lack all of the notebook side
    import legible  # a figure that can't be read fails its test, or a notebook's cell

    legible.watch()
    legible.watch_kernels(_SCRATCH / "ipython")

interrupts.accept()
# only what trained.py wraps, and the notebooks' kernels, may be answered by an earlier launch
trained.CACHE = os.environ.get("BOOTCAMP_TEST_RUNS") or str(_SCRATCH / "runs")
Path(trained.CACHE).mkdir(exist_ok=True)
equality.baseline = trained.baseline
run_cache.install(trained.CACHE)


def pytest_addoption(parser):
    parser.addoption(
        "--without-ranks",
        action="store_true",
        help="skip a test as soon as it starts ranks, and those marked slow: what is left is quick",
    )


class EveryItem:
    """Hooks for the cells of notebooks too: those of a conftest.py see the items below it alone."""

    @staticmethod
    def pytest_itemcollected(item):
        if item.config.getoption("without_ranks") and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip("slow: make test runs it"))

    @staticmethod
    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(item):
        """Launches of a notebook may be answered, and it starts warm, torchrun's workers too.

        Its kernel starts with its first cell, and has the environment of that moment.
        """
        with contextlib.ExitStack() as stack:
            if item.path.suffix == ".ipynb":
                stack.enter_context(trained.shared())
                stack.enter_context(warm.workers())
                stack.enter_context(warm.kernels(_SCRATCH / "jupyter"))
            yield


def pytest_configure(config):
    config.pluginmanager.register(EveryItem)
    if config.getoption("without_ranks"):
        Connection.__init__ = _no_connection


def _no_connection(*_):
    pytest.skip("starts ranks: make test runs it")


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
    """After a test that launched, supervisor and fork server may be there, and nothing else."""
    before = run_cache.CachedRuns.requests
    yield
    if run_cache.CachedRuns.requests > before:
        left = faults.leftovers(os.getpid(), allow_launcher=True)
        assert not left, f"ranks outlived the test: {left}"


@pytest.fixture
def picture(displayed):
    """What a widget shows last, as `picture.html`."""
    pytest.importorskip("ipywidgets")
    return displayed


@pytest.fixture
def displayed(monkeypatch):
    """What is displayed last, as `displayed.html`."""
    ipython = pytest.importorskip("IPython.display")

    class Picture:
        html = ""

        def update(self, shown):
            self.html = shown.data

    shown = Picture()

    def display(first, **_):
        shown.html = getattr(first, "data", "")
        return shown

    monkeypatch.setattr(ipython, "display", display)
    return shown


@pytest.fixture
def quick_proofs(monkeypatch):
    """Checkers of exercises prove with the quickest model: for what shows in any of them."""
    settings = equality.settings
    monkeypatch.setattr(equality, "settings", lambda ranks: {**settings(ranks), "model": "mlp"})


@pytest.fixture
def make_run(tmp_path):
    """make_run("ddp", 2, speed=100.0) -> a Run that is written here; see records.write_run."""
    numbers = itertools.count()
    return lambda *args, **how: records.write_run(tmp_path / f"run{next(numbers)}", *args, **how)
