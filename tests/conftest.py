"""What tests share. What holds for notebooks' cells too is in plugin.py."""

import itertools

import plugin  # first: it names the folders that the package reads from its environment
import pytest
import records

from bootcamp.experiments import equality
from bootcamp.hosts import slurm
from bootcamp.launcher import simulated_hosts
from bootcamp.launcher.connection import Connection

pytest_configure = plugin.pytest_configure


def pytest_addoption(parser):
    parser.addoption("--without-ranks", action="store_true", help="skip a test as it starts ranks")


@pytest.fixture(scope="session", autouse=True)
def ranks_or_none(request):
    """Without ranks, a test is over when it wants some."""
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("without_ranks"):
            for started in (Connection, slurm.Cluster):
                patch.setattr(started, "__init__", _no_ranks)
        yield


def _no_ranks(*_, **__):
    pytest.skip("starts ranks: make test runs it")


@pytest.fixture(scope="session")
def needs_hosts():
    if why := simulated_hosts.why_not():
        pytest.skip(f"no hosts here: {why}")


@pytest.fixture(scope="session")
def needs_slurm():
    if why := slurm.why_not():
        pytest.skip(f"no Slurm here: {why}")


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
