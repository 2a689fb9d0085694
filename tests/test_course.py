"""`make course`: which lessons it runs, what an interrupt leaves, and the minutes of a lesson."""

import json
import os
import signal
import sys

import course
import nbformat
import pytest
import trained
import warm

import notebooks
from bootcamp.classroom import journal
from bootcamp.experiments import claims
from bootcamp.launcher import process_tree


@pytest.mark.parametrize("tool", [course, notebooks])
def test_names_of_no_lesson_are_refused_before_anything_runs(tool, monkeypatch, capsys):
    for wrong in ("99", "4", ""):
        monkeypatch.setattr(sys, "argv", ["tool.py", "04", wrong])
        assert tool.main() == 2
        said = capsys.readouterr().out
        assert said.startswith(f"There is no lesson {wrong!r}: there are 00, 01, 02, 02b,")
        assert said.count("\n") == 1


@pytest.fixture
def own_interrupts(tmp_path):
    """Give this process's SIGINT back to pytest; kernels start warm."""
    before = signal.getsignal(signal.SIGINT)
    with trained.shared(), warm.kernels(tmp_path):
        yield
    signal.signal(signal.SIGINT, before)


INTERRUPT = f"import os, time\nos.kill({{}}, {int(signal.SIGINT)})\ntime.sleep(60)"


@pytest.mark.slow
@pytest.mark.parametrize("when", ["in a cell", "at a kernel's start"])
def test_interrupts_leave_a_report_and_no_kernel(
    when, tmp_path, monkeypatch, capsys, own_interrupts
):
    kernels = []

    class Client(course.NotebookClient):
        async def async_start_new_kernel_client(self):
            kernels.append(self.km.provisioner.pid)
            if len(kernels) == 2 and when != "in a cell":
                os.kill(os.getpid(), signal.SIGINT)
            return await super().async_start_new_kernel_client()

    cells = {"00_short": "1 + 1", "01_long": INTERRUPT.format(os.getpid()), "02_never": "1 + 1"}
    for name, code in cells.items():
        cells = [nbformat.v4.new_markdown_cell(f"# {name}"), nbformat.v4.new_code_cell(code)]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / f"{name}.ipynb")
    monkeypatch.setattr(course, "NotebookClient", Client)
    monkeypatch.setattr(course, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(course, "LOGS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["course.py"])
    assert course.main() == 1
    said = capsys.readouterr().out
    assert "01_long: interrupted" in said
    assert "Interrupted: 1 of 3 lessons ran to their end." in said
    assert len(kernels) == 2
    assert not any(map(process_tree.is_alive, kernels))
    (report,) = tmp_path.glob("course/*/report.html")
    assert f"The report is {report}" in said
    assert "00_short" in report.read_text()


@pytest.mark.parametrize(
    ("error", "verdict", "code"),
    [(None, claims.SUPPORTED, 0), ("x", claims.SUPPORTED, 1), (None, claims.CONTRADICTED, 1)],
)
def test_claims_are_kept_and_contradicted_ones_fail_the_command(
    error, verdict, code, monkeypatch, tmp_path, own_interrupts
):
    claim = {"name": "speed", "kind": "time", "verdict": verdict, "measured": "", "sentence": "x"}
    monkeypatch.setattr(course, "LOGS", tmp_path)
    monkeypatch.setattr(course.Lesson, "run", lambda lesson: setattr(lesson, "error", error))
    monkeypatch.setattr(course.Lesson, "save", lambda lesson: None)
    monkeypatch.setattr(course, "report", lambda *_: tmp_path)
    monkeypatch.setattr(course.claims, "read_notes", lambda since: {"speed": claim})
    monkeypatch.setattr(course.quietness, "measure", lambda: "quiet")
    monkeypatch.setattr(sys, "argv", ["course", "00", "--claims"])
    assert course.main() == code
    (written,) = tmp_path.glob(f"course/*/{claims.FILE}")
    assert json.loads(written.read_text())["claims"] == {"speed": claim}


@pytest.mark.slow
def test_kernels_of_a_jupyter_server_note_their_lesson(tmp_path, own_interrupts):
    """A real kernel, told by its environment which notebook it is for."""
    cells = ["from bootcamp import exercise", "1 + 1"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    session = {"JPY_SESSION_NAME": "notebooks/04_ddp.ipynb", "BOOTCAMP_WORK": str(tmp_path)}
    client = course.NotebookClient(notebook)
    client.execute(env=os.environ | session)
    (times,) = json.loads((tmp_path / journal.FILE).read_text())["times"]["04_ddp"].items()
    assert 0 < times[1] - float(times[0]) < 600
