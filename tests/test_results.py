"""What three learners have done, a file each, and the page that sums them up for their teacher."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
import chromium  # noqa: E402
import results  # noqa: E402

from bootcamp.classroom import journal  # noqa: E402
from bootcamp.experiments import claims  # noqa: E402
from bootcamp.files import update_json  # noqa: E402

SENTENCE = "Two ranks send the gradients <once>."


def act(answer: float, solved: tuple[str, ...], verdict: str) -> None:
    """Do what a learner's cells do: a prediction, exercises, and a claim that was tested."""
    about = {"question": "How many MB?", "unit": "MB", "answer": answer, "measured": 2.0, "how": ""}
    journal.note_prediction("sent_bytes", answer == 2.0, **about)
    for name in solved:
        journal.note_exercise(name, solved=True)
    times = {"04_ddp": {"0": 60 * len(solved)}} if solved else {}
    update_json(journal.WORK / journal.FILE, lambda kept: kept.update(times=times))
    claims._note(claims.Claim("bytes", SENTENCE, "bytes", verdict, "2 MB", text=""))


@pytest.fixture
def files(monkeypatch, tmp_path) -> list[Path]:
    """The files of three learners, each with folders of their own."""
    done = {
        "ada": (2.0, ("data_parallel", "samples_of_rank", "first_run"), claims.SUPPORTED),
        "ben": (8.0, ("data_parallel",), claims.SUPPORTED),
        "Cleo D.": (0.5, (), claims.CONTRADICTED),
    }
    found = []
    for name, what in done.items():
        monkeypatch.setattr(journal, "WORK", tmp_path / name / "work")
        for module in (claims, results):
            monkeypatch.setattr(module, "LOGS", tmp_path / name / "logs")
        act(*what)
        monkeypatch.setattr(sys, "argv", ["results.py", "--name", name])
        assert results.main() == 0
        found += (tmp_path / name / "logs" / "results").iterdir()
    monkeypatch.setattr(results, "OWN", tmp_path)
    return found


def test_results_have_what_a_learner_has_done(files):
    assert [path.name for path in files] == ["ada.json", "ben.json", "Cleo-D-.json"]
    ben = json.loads(files[1].read_text())
    solved = [lesson["lesson"] for lesson in ben["lessons"] if results.count_solved(lesson)]
    assert solved == ["04_ddp"]
    (asked,) = ben["predictions"]
    assert (asked["answer"], asked["factor"], asked["right"]) == (8.0, 4.0, False)
    assert ben["claims"]["bytes"]["verdict"] == claims.SUPPORTED


def test_class_is_summed_up_with_those_who_need_help_first(files):
    learners = [json.loads(path.read_text()) for path in files]
    table = results.table_learners(learners)
    assert table.column("learner") == ["Cleo D.", "ben", "ada"]
    assert table.column("exercises solved") == [0, 1, 3]
    assert table.column("typically off by a factor of") == [4.0, 4.0, 1.0]
    assert table.column("claims contradicted") == [1, 0, 0]
    table = results.table_lessons(learners)
    assert table.column("lesson") == ["00_start_here", "04_ddp"]
    assert table.column("learners") == [1, 2]
    assert table.column("minutes (median)") == [None, 2.0]
    assert "samples_of_rank (1)" in table[1]["not solved (by how many)"]
    (asked,) = results.table_predictions(learners)
    assert (asked["answers"], asked["right"]) == (3, 1)
    assert (asked["said"], asked["measured"]) == ("0.500 to 8 MB", "2 MB")
    (claim,) = results.table_claims(learners)
    assert (claim["claim"], claim[claims.SUPPORTED], claim[claims.CONTRADICTED]) == (SENTENCE, 2, 1)


def test_page_of_the_class_loads_nothing_and_escapes_what_people_typed(
    files, monkeypatch, tmp_path
):
    monkeypatch.setattr(sys, "argv", ["results.py", "--class", *map(str, files)])
    assert results.main() == 0
    page = tmp_path / "slides" / "build" / "class.html"
    assert "&lt;once&gt;" in page.read_text()
    if chromium.why_not() is None:
        with chromium.tab() as tab:
            tab.goto(page.as_uri())
            assert tab.locator("table").count() == 4
