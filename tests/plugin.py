"""What holds for every run of tests and of notebooks' cells: the plugin of both conftest.py.

Records go to a folder of the worker's own, and no process of the course is left. A file's tests,
and a notebook's cells, run in one worker. Each failure is named as it happens, and a line for each
phase of a test is added to the file in BOOTCAMP_TEST_LOG: its name, outcome, seconds and error. A
skip whose reason BOOTCAMP_MAY_SKIP, a regular expression, does not match fails the run.
"""

import gc
import os
import tempfile
from pathlib import Path

gc.set_threshold(100_000, 50, 100)  # else a sixth of a worker's time goes into collections
_SCRATCH = Path(tempfile.mkdtemp(prefix="bootcamp-test-"))
os.environ["BOOTCAMP_LOGS"] = str(_SCRATCH / "logs")
os.environ["BOOTCAMP_WORK"] = str(_SCRATCH / "work")
os.environ["IPYTHONDIR"] = str(_SCRATCH / "ipython")
os.environ["BOOTCAMP_CLAIM_SECONDS"] = "0"  # one pair: that a claim runs, not what holds here
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"  # else each process compiles and loads a trial
os.environ["OMP_NUM_THREADS"] = "1"  # workers with two threads each would wait for each other
if _worker := os.environ.get("PYTEST_XDIST_WORKER"):  # their ranks begin with different cores
    os.environ["BOOTCAMP_FIRST_CORE"] = _worker.removeprefix("gw")

import contextlib  # noqa: E402
import json  # noqa: E402
import re  # noqa: E402
import shutil  # noqa: E402
import sys  # noqa: E402

import interrupts  # noqa: E402
import processes  # noqa: E402
import pytest  # noqa: E402
import run_cache  # noqa: E402
import trained  # noqa: E402
import warm  # noqa: E402

from bootcamp.experiments import equality  # noqa: E402
from bootcamp.launcher import launch  # noqa: E402

with contextlib.suppress(ImportError):  # a GPU machine may lack all of the notebook side
    import legible  # a figure that can't be read fails its test, or a notebook's cell

    legible.watch()
    legible.watch_kernels(_SCRATCH / "ipython")

LOG, MAY_SKIP = "BOOTCAMP_TEST_LOG", "BOOTCAMP_MAY_SKIP"


def pytest_configure(config):
    """Set this process up, for whichever conftest.py comes first."""
    if config.pluginmanager.has_plugin("bootcamp"):
        return
    interrupts.accept()
    config.add_cleanup(lambda: shutil.rmtree(_SCRATCH, ignore_errors=True))
    config.add_cleanup(gc.freeze)  # pytest collects at its end: a second
    # only what trained.py wraps, and the notebooks' kernels, may be answered by an earlier launch
    trained.CACHE = os.environ.get("BOOTCAMP_TEST_RUNS") or str(_SCRATCH / "runs")
    Path(trained.CACHE).mkdir(exist_ok=True)
    equality.baseline = trained.baseline
    run_cache.install(trained.CACHE)
    config.pluginmanager.register(sys.modules[__name__], "bootcamp")  # for cells too
    if not hasattr(config, "workerinput"):  # xdist's workers report to the process that has them
        config.pluginmanager.register(Reports(config), "bootcamp reports")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Launches of a notebook may be answered, and it starts warm, torchrun's workers too.

    Its kernel starts with its first cell, and has the environment of that moment.
    """
    with contextlib.ExitStack() as stack:
        if item.path.suffix == ".ipynb":
            stack.enter_context(trained.shared())
            stack.enter_context(warm.workers())
            stack.enter_context(warm.kernels(_SCRATCH / "jupyter"))
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def no_process_left():
    """One warm launcher serves all tests; when they are over, nothing of it remains."""
    gc.freeze()  # what is loaded stays
    yield
    launch.shut_down()
    processes.until_gone(os.getpid())  # what was killed takes a moment on a busy machine


@pytest.fixture(autouse=True)
def no_rank_left():
    """After a test that launched, supervisor and fork server may be there, and nothing else."""
    before = run_cache.CachedRuns.requests
    yield
    if run_cache.CachedRuns.requests > before:
        left = processes.leftovers(os.getpid(), allow_launcher=True)
        assert not left, f"ranks outlived the test: {left}"


class Reports:
    """Says what failed when it fails, keeps a log, and knows which skips are expected."""

    def __init__(self, config):
        self.config = config
        self.unexpected: dict[str, str] = {}

    def pytest_runtest_logreport(self, report):
        error = _error(report) if report.failed else ""
        if report.failed:
            terminal = self.config.pluginmanager.get_plugin("terminalreporter")
            terminal.ensure_newline()
            terminal.write_line(f"FAILED {report.nodeid} ({report.when}): {error}", red=True)
            terminal.flush()
        if report.skipped and not hasattr(report, "wasxfail"):
            self._note_skip(report)
        if LOG in os.environ:
            row = {"test": report.nodeid, "when": report.when, "outcome": report.outcome}
            row |= {"seconds": round(getattr(report, "duration", 0.0), 3), "error": error}
            with open(os.environ[LOG], "a") as log:
                log.write(json.dumps(row) + "\n")

    def pytest_collectreport(self, report):
        report.when = "collect"
        if report.failed or report.skipped:
            self.pytest_runtest_logreport(report)

    def _note_skip(self, report) -> None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not re.search(os.environ.get(MAY_SKIP, ""), reason):
            self.unexpected[report.nodeid] = reason

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        if self.unexpected and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        for name, reason in self.unexpected.items():
            terminalreporter.write_line(f"SKIPPED, which nobody expected: {name}: {reason}")


def _error(report) -> str:
    """Give the line that says what went wrong."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash else str(report.longrepr)).strip().splitlines()
    return (lines[0] if crash else lines[-1]) if lines else ""
