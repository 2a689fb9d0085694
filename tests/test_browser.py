"""`make lab` in a real browser: the first notebook by Run All, as an attendee opens it."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import chromium
import nbformat
import pytest

from bootcamp.paths import NOTEBOOKS, ROOT

PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
IDLE = f"{PANEL} .jp-Notebook-ExecutionIndicator[data-status=idle]"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        chromium.PATH is None, reason="no Chromium on this machine: the browser is not tested"
    ),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """`make lab` on a copy of the notebooks, which saving changes: (address, token, folder)."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "notebooks").mkdir()
    for notebook in NOTEBOOKS.glob("*.ipynb"):
        shutil.copy(notebook, folder / "notebooks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = open(folder / "lab.log", "w")  # noqa: SIM115
    server = subprocess.Popen(
        [
            sys.executable,
            "tools/lab.py",
            "--no-browser",
            f"--port={port}",
            f"--ServerApp.root_dir={folder}",
        ],
        cwd=ROOT,
        stdout=log,
        stderr=log,
        env={**os.environ, "JUPYTER_TOKEN": "for-the-test"},
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{address}/api/status?token=for-the-test")
        yield address, "for-the-test", folder
    finally:
        server.send_signal(signal.SIGINT)
        server.send_signal(signal.SIGINT)
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            server.kill()
        log.close()


def _wait_for(address: str) -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(f"{address} did not answer")


@pytest.fixture
def page(tmp_path):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(tmp_path / "profile"),
            executable_path=chromium.PATH,
            args=chromium.FLAGS,
            viewport={"width": 1400, "height": 1000},
        )
        outside = []
        context.on("request", lambda request: outside.append(request.url))
        yield context.pages[0]
        context.close()
        ours = re.compile(r"^(http://127\.0\.0\.1|ws://127\.0\.0\.1|data:|blob:)")
        assert not [url for url in outside if not ours.match(url)], "it must work without a network"


def test_only_this_machine_with_the_token_gets_in(lab):
    address, token, _ = lab
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{address}/api/contents", timeout=10)
    urllib.request.urlopen(f"{address}/api/contents?token={token}", timeout=10).close()


def saved_by(page, path):
    """The notebook as the browser has it, once it has been saved."""
    before = path.stat().st_mtime_ns
    page.keyboard.press("Control+s")
    for _ in range(100):
        page.wait_for_timeout(200)
        if path.stat().st_mtime_ns != before:
            with contextlib.suppress(nbformat.reader.NotJSONError):  # half-written
                return nbformat.read(path, 4)
    raise TimeoutError(f"{path.name} was not saved")


@pytest.mark.timeout(420)
def test_first_notebook_runs_by_run_all(lab, page):
    """Every cell, in order, without an error; a figure and a widget are on the page."""
    address, token, folder = lab
    first = "notebooks/00_start_here.ipynb"
    page.goto(f"{address}/lab/workspaces/test/tree/{first}?token={token}")
    page.wait_for_selector(f"{PANEL} .jp-CodeCell", timeout=120_000)
    page.wait_for_selector("#jp-main-statusbar >> text=| Idle", timeout=120_000)
    page.click("#jp-MainMenu >> text=Run")
    page.click("[data-command='runmenu:run-all']")
    code = []
    for _ in range(120):
        page.wait_for_timeout(2000)
        page.wait_for_selector(IDLE, timeout=240_000)
        cells = saved_by(page, folder / first).cells
        code = [cell for cell in cells if cell.cell_type == "code"]
        if all(cell.execution_count for cell in code):
            break
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    shown = [output.get("data", {}) for output in outputs]
    assert any("application/vnd.jupyter.widget-view+json" in data for data in shown)
    assert any("data:image/png" in data.get("text/html", "") for data in shown)
    figure = page.locator(f"{PANEL} .jp-OutputArea-output img[src^='data:image/png']")
    assert figure.count() > 0
    assert figure.first.get_attribute("alt"), "a figure says in words what it shows"
