"""Predictions: asked, typed into a field, scored, waited for, and collected from the journal.

Nothing is launched here.
"""

import json
import subprocess
import sys

import lab
import pytest

pytest.importorskip("matplotlib")
from figures import read_foot

from bootcamp import machine
from bootcamp.classroom import journal, prediction_scores
from bootcamp.classroom import predict as predictions
from bootcamp.classroom.predict import PredictionMissing, check_answered, predict
from bootcamp.launcher import launch, progress
from bootcamp.paths import ROOT

VARIABLE = "BOOTCAMP_PREDICT_FIRST"
LAPTOP, SERVER = "laptop CPU", "server CPU"


@pytest.fixture(autouse=True)
def work(monkeypatch, tmp_path):
    """A course of two lessons, no earlier question, and an empty journal on a named machine."""
    monkeypatch.setattr(predictions, "predictions", {})
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(journal, "WORK", tmp_path)
    monkeypatch.setattr(journal, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(machine, "cpu_name", lambda: LAPTOP)
    for lesson, names in (("04_ddp", "abcd"), ("02b_memory", "efghij")):
        cells = [{"cell_type": "code", "source": [f'predict("{name}", "?")']} for name in names]
        (tmp_path / f"{lesson}.ipynb").write_text(json.dumps({"cells": cells}))
    return tmp_path


@pytest.fixture
def shown(monkeypatch):
    """shown(prediction) -> (question, field, note), as a notebook displays them."""
    pytest.importorskip("ipywidgets")

    def show(prediction):
        boxes = []
        monkeypatch.setattr(progress, "show", lambda box, text: boxes.append(box))
        prediction._ipython_display_()
        ((question, row),) = [box.children for box in boxes]
        field, unit, note = row.children
        assert unit.value == prediction.unit
        return question, field, note

    return show


@pytest.mark.parametrize(
    ("typed", "amount"),
    [
        ("150", 150), (" 150 ms", 150), ("1.5e2", 150), ("150.0", 150), ("1,500", 1500),
        ("0", 0), ("fast", None), ("-5", None), ("150 s", None), ("12 MB", None), ("1,50", None),
        ("inf", None), ("nan", None),
    ],
)  # fmt: skip
def test_amounts_are_taken_and_others_named(shown, typed, amount):
    guess = predict("speed", "2 < 3 ms?", unit="ms")
    assert "none yet" in str(guess)
    question, field, note = shown(guess)
    assert question.value == "<b>Predict.</b> 2 &lt; 3 ms?"
    assert (field.value, note.value) == ("", "")
    wrong = f"{typed.strip()!r} is not an amount such as 120 ms."
    field.value = typed
    assert (guess.answer, guess.is_open) == (amount, amount is None)
    assert note.value == (wrong if amount is None else "Noted.")
    field.value = "80"
    assert (guess.answer, note.value) == (80, "Noted.")
    field.value = ""
    assert (guess.answer, note.value, guess.is_open) == (None, "", True)
    assert predict("speed", "How long?", unit="ms", answer=typed).answer == amount


def test_predictions_are_scored_relative_to_the_measurement():
    for answer, right in ((100, True), (76, True), (74, False), (126, False), (None, None)):
        score = predict(f"{answer}", "How fast?", unit="samples/s", answer=answer).score(100.0)
        assert score.right is right
        assert "100 samples/s" in str(score)
        assert ("no prediction" if answer is None else f"You said {answer} samples/s") in str(score)
    assert predict("none", "How many?", answer=0).score(0).right


def test_cells_that_are_run_again_keep_what_was_typed(shown):
    guess = predict("speed", "How long?", unit="ms", answer=1500)
    _, field, note = shown(guess)
    assert (field.value, note.value) == ("1500", "Noted.")
    field.value = "120"
    again = predict("speed", "How long?", unit="ms")
    assert again.answer == 120
    assert shown(again)[1].value == "120"
    assert predict("speed", "Another question?", unit="ms").is_open
    assert predict("speed", "Another question?", unit="ms", answer=7).answer == 7


def test_questions_are_texts_where_no_widget_is_shown(monkeypatch, capsys):
    display = pytest.importorskip("IPython.display")
    sent = []
    with monkeypatch.context() as patch:
        patch.setattr(display, "display", lambda bundle, raw: sent.append(bundle))
        predict("speed", "How long?", unit="ms")._ipython_display_()
    assert sent[0][progress.VIEW]["model_id"]
    assert sent[0]["text/plain"].startswith("How long?\nYour prediction: none yet.")
    assert "%env BOOTCAMP_WIDGETS=0" in sent[0]["text/plain"]
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    predict("speed", "How long?", unit="ms")._ipython_display_()
    assert capsys.readouterr().out.count("How long?\nYour prediction: none yet.") == 1


def test_launches_are_refused_while_a_question_is_open(monkeypatch, shown):
    monkeypatch.setattr(launch, "before", [])
    first, second = predict("speed", "How long?"), predict("memory", "How much?", unit="MB")
    assert launch.before == [check_answered]
    check_answered()  # nobody is held to a question unless asked to
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(
        PredictionMissing, match=r"Predict first: How long\? Type a number into the"
    ):
        launch.launch("cpu", 1, steps=1)
    _, field, _ = shown(first)
    for typed, asked in (("long", "How long"), ("120", "How much")):
        field.value = typed
        with pytest.raises(PredictionMissing, match=asked):
            check_answered()
    second.score(3.0)  # its measurement is known: there is nothing left to predict
    check_answered()


def test_make_lab_hands_the_lock_to_the_kernels(monkeypatch):
    for given, told in (("1", "1"), ("0", "0"), ("", None)):
        monkeypatch.setenv("PREDICT_FIRST", given)
        assert lab.environment().get(VARIABLE) == told
    makefile = "include Makefile\nshow:\n\t@echo first $$PREDICT_FIRST\n"
    command = ["make", "-s", "-f", "-", "show", "PREDICT_FIRST=1"]
    said = subprocess.run(command, input=makefile, capture_output=True, text=True, cwd=ROOT)
    assert said.stdout == "first 1\n", said.stderr


# The collection of a reader's predictions


def answer(name, said, measured, unit="ms", **how):
    return predict(name, f"How much is {name}?", unit=unit, answer=said).score(measured, **how)


def test_collections_are_in_the_order_of_lessons_with_the_distances_of_the_journal():
    answer("d", 200, 100)
    answer("mine", 7, 7, unit="")
    answer("e", 25, 100.0, unit="MB")
    answer("f", 100, 110, unit="MB", within=0.2, how="The planner says")
    table = prediction_scores.table()
    assert table.column("lesson") == ["02b", "02b", "04", "your own"]
    assert table.column("off by a factor of") == pytest.approx([4, 1.1, 2, 1])
    assert table.column("result") == ["wrong", "right", "wrong", "right"]
    assert (table[0]["you said"], table[0]["it was"]) == ("25 MB", "100 MB")
    assert table.column("how").count("The planner says") == 1
    assert table.caption == "Your predictions: 4. Questions of the course without one: 7."
    assert "what the planner says: 1." in read_foot(prediction_scores.figure())


def test_verdict_compares_kinds_and_names_the_direction_of_errors():
    assert prediction_scores.verdict().startswith("No predictions yet")
    for name, said in (("a", 150), ("b", 200), ("c", 400), ("d", 100)):
        answer(name, said, 100)
    assert "Too few to compare kinds" in prediction_scores.verdict()
    for name in ("e", "f", "g"):
        answer(name, 10, 10, unit="MB")
    said = prediction_scores.verdict()
    for part in ("4 of 7 predictions", "1 of 4 right", "factor of 1.75", "Of 3 wrong ones 3"):
        assert part in said


def test_first_answers_count_for_each_machine(monkeypatch):
    answer("a", 300, 100)
    answer("a", 100, 100)  # after the measurement was seen
    assert journal.progress()[1]["right"] == 1, "progress counts the last"
    (only,) = prediction_scores.list_predictions()
    assert (only["answer"], only["right"]) == (300, False)
    monkeypatch.setattr(machine, "cpu_name", lambda: SERVER)
    answer("a", 40, 50.0)
    table = prediction_scores.table()
    assert [row["machine"].partition(",")[0] for row in table] == [LAPTOP, SERVER]
    assert table.column("result") == ["wrong", "right"]
    assert f"Measured on {LAPTOP}" in read_foot(prediction_scores.figure())


def test_journals_that_are_older_broken_or_not_written_stop_nobody(work, monkeypatch):
    path = work / journal.FILE
    path.write_text(json.dumps({"predictions": {"a": True}, "exercises": {}}))
    assert prediction_scores.list_predictions() == []
    assert journal.progress()[1]["predictions made"] == "1 of 4"
    for broken in ("{half", '{"scored": 7}', '{"scored": [1, {}, {"name": "a"}]}'):
        path.write_text(broken)
        assert prediction_scores.list_predictions() == []
        answer("c", 5, 10)
        assert len(prediction_scores.list_predictions()) == 1
        assert journal.note_exercise("ring", solved=False) == 1
    monkeypatch.setattr(journal, "WORK", path)  # a file, where a folder is wanted
    assert journal.note_exercise("ring", solved=False) == 1
    answer("d", 5, 10)
