"""`make lab` in a real browser: what an attendee does, from Run All to an interrupted run."""

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
import lab as lab_tool
import nbformat
import processes
import pytest
import trained
import warm

from bootcamp.launcher import process_tree
from bootcamp.paths import NOTEBOOKS

TOKEN = "for-the-test"
PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
IDLE = f"{PANEL} .jp-Notebook-ExecutionIndicator[data-status=idle]"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium.PATH is None, reason="no Chromium here: no browser is tested"),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """`make lab` on a copy of the notebooks, which saving changes: (address, token, folder)."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "notebooks").mkdir()
    for notebook in NOTEBOOKS.glob("*.ipynb"):
        shutil.copy(notebook, folder / "notebooks")
    # the first notebook's launches are proved by its own cells, a kernel's start by test_faults.py
    with trained.shared(), warm.kernels(folder / "jupyter"):
        environment = dict(os.environ)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, lab_tool.__file__, "--no-browser", f"--port={port}"]
    command += [f"--ServerApp.root_dir={folder}"]
    environment |= {"JUPYTER_TOKEN": TOKEN}
    with subprocess.Popen(command, env=environment) as server:
        try:
            processes.until(lambda: answers(port), 60, "an answer of JupyterLab")
            yield f"http://127.0.0.1:{port}", TOKEN, folder
            family = {server.pid} | process_tree.find_below({server.pid})
            told = [pid for pid in family if TOKEN in process_tree.read_command(pid)]
            assert not told, "the token is among a process's arguments, which every user can read"
        finally:
            server.send_signal(signal.SIGINT)  # and another, which answers its question
            server.send_signal(signal.SIGINT)


def answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token={TOKEN}", timeout=5).close()
        return True
    return False


OURS = re.compile(r"^(http://127\.0\.0\.1|ws://127\.0\.0\.1|data:|blob:)")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """One Chromium for all tests, which may ask this machine alone and meets no error."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(tmp_path_factory.mktemp("profile")),
            executable_path=chromium.PATH,
            args=chromium.FLAGS,
            viewport={"width": 1400, "height": 1000},
        )
        asked, wrong = [], []
        context.on("request", lambda request: asked.append(request.url))
        context.on("weberror", lambda error: wrong.append(str(error.error)))
        yield context
        context.close()
    assert not [url for url in asked if not OURS.match(url)], "it must work without a network"
    assert not wrong


@pytest.fixture
def page(browser):
    page = browser.new_page()
    yield page
    page.close()


def test_lab_lets_in_only_this_machine_with_the_token(lab):
    address, token, _ = lab
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{address}/api/contents", timeout=10)
    urllib.request.urlopen(f"{address}/api/contents?token={token}", timeout=10).close()


def open_notebook(page, lab, workspace: str, path: str) -> None:
    """Open a notebook in JupyterLab and wait until its kernel is there."""
    address, token, _ = lab
    page.goto(f"{address}/lab/workspaces/{workspace}/tree/{path}?token={token}")
    page.wait_for_selector(f"{PANEL} .jp-CodeCell", timeout=120_000)
    page.wait_for_selector("#jp-main-statusbar >> text=| Idle", timeout=120_000)


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
    first = "notebooks/00_start_here.ipynb"
    open_notebook(page, lab, "test", first)
    page.click("#jp-MainMenu >> text=Run")
    page.click("[data-command='runmenu:run-all']")
    code = []
    for _ in range(480):
        page.wait_for_timeout(500)
        page.wait_for_selector(IDLE, timeout=240_000)
        cells = saved_by(page, lab[2] / first).cells
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


KERNEL = {"kernelspec": {"display_name": "Python 3", "name": "python3"}}
CLASSROOM = {
    "explorer": "from bootcamp import simulators\n\ncontrols = simulators.pipeline_schedule()",
    "chosen": "print(repr(controls.choice['schedule']), controls.choice['ranks'])",
    "prediction": "from bootcamp import predict\n\n"
    'guess = predict("how_many", "How many?", unit="MB")\nguess',
    "scored": "print(guess.score(100.0))",
    "exercise": "from bootcamp import exercise\n\n\ndef throughput(seconds, samples, warm_up):\n"
    '    return 1.0\n\n\nprint(exercise.check("throughput", throughput))',
    "run": 'from bootcamp import launch\n\nrun = launch("ddp", 2, steps=100_000, device="cpu")',
    "after": 'print("still here")',
}


class Notebook:
    """A notebook in JupyterLab, cell by cell: CLASSROOM's names say which."""

    def __init__(self, page, lab, name: str):
        self.page = page
        open_notebook(page, lab, name, f"{name}.ipynb")

    def cell(self, name: str):
        return self.page.locator(f"{PANEL} .jp-CodeCell").nth(list(CLASSROOM).index(name))

    def start(self, name: str) -> None:
        """Run a cell with Shift and Enter, as a reader does."""
        self.cell(name).locator(".cm-content").click()
        self.page.keyboard.press("Shift+Enter")

    def run(self, name: str) -> str:
        """Run a cell to its end; the text of its output."""
        self.start(name)
        prompt = self.cell(name).locator(".jp-InputArea-prompt")
        self.until(lambda: re.search(r"\[\d+\]", prompt.inner_text()), f"{name} to end")
        return self.output(name)

    def output(self, name: str) -> str:
        return "\n".join(self.cell(name).locator(".jp-OutputArea-output").all_inner_texts())

    def until(self, true, what: str, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, f"waited in vain for {what}"
            self.page.wait_for_timeout(100)


@pytest.mark.timeout(420)
def test_reader_moves_predicts_checks_and_interrupts(lab, page):
    """One session in one browser: starting one takes longer than everything that is done in it."""
    cells = [nbformat.v4.new_code_cell(text) for text in CLASSROOM.values()]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), lab[2] / "cells.ipynb")
    notebook = Notebook(page, lab, "cells")
    moves_an_explorer(notebook)
    answers_a_prediction(notebook)
    assert "Seen: 1 samples/s" in notebook.run("exercise")
    interrupts_a_run(notebook)


def moves_an_explorer(notebook) -> None:
    """By keys and by mouse; the keys stay with the slider, and the kernel knows the choice."""
    notebook.run("explorer")
    cell = notebook.cell("explorer")
    picture, ranks = cell.locator(".explorer svg[role=img]"), cell.locator("input[name=ranks]")
    notebook.until(lambda: picture.count() == 1, "the explorer")
    assert "1f1b, 4 ranks, 8 micro-batches" in picture.get_attribute("aria-label")
    ranks.focus()
    for key in ("ArrowRight", "ArrowUp", "ArrowDown", "ArrowDown"):
        notebook.page.keyboard.press(key)
    assert "1f1b, 4 ranks, 8 micro-batches" in picture.get_attribute("aria-label")
    assert notebook.page.evaluate("document.activeElement.name") == "ranks"
    room = ranks.bounding_box()
    ranks.click(position={"x": room["width"] - 2, "y": room["height"] / 2})
    cell.locator("select[name=schedule]").select_option(label="gpipe")
    assert "gpipe, 8 ranks, 8 micro-batches" in picture.get_attribute("aria-label")
    assert "'gpipe' 8" in notebook.run("chosen")


def answers_a_prediction(notebook) -> None:
    """By typing into the field: what is not an amount is named, a number is taken."""
    notebook.run("prediction")
    cell = notebook.cell("prediction")
    field = cell.locator(".jp-OutputArea-output input[type=text]")
    for typed, said in (("many", "'many' is not an amount such as 120 MB."), ("120 MB", "Noted.")):
        field.fill(typed)
        field.press("Enter")
        notebook.until(lambda said=said: said in notebook.output("prediction"), said)
    assert "How many?" in notebook.output("prediction")
    assert "You said 120 MB: within 25%, well predicted." in notebook.run("scored")


def interrupts_a_run(notebook) -> None:
    """The square button while ranks train; the next cell runs."""
    notebook.start("run")
    notebook.until(lambda: "step" in notebook.output("run"), "the first steps")
    notebook.page.locator(f"{PANEL} [data-command='notebook:interrupt-kernel']").first.click()
    notebook.until(lambda: "KeyboardInterrupt" in notebook.output("run"), "the interrupt")
    notebook.until(lambda: "still here" in notebook.run("after"), "the next cell")
