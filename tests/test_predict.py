"""The field under a question, and the lock that holds readers to it. Nothing is launched here."""

import subprocess
import sys

import lab
import pytest

from bootcamp.classroom import predict as predictions
from bootcamp.classroom.predict import PredictionMissing, check_answered, predict
from bootcamp.launcher import launch, progress
from bootcamp.paths import ROOT

VARIABLE = "BOOTCAMP_PREDICT_FIRST"


@pytest.fixture(autouse=True)
def no_earlier_question(monkeypatch):
    monkeypatch.setattr(predictions, "predictions", {})
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def shown(monkeypatch):
    """shown(prediction) -> (its field, the note beside it), as a notebook displays them."""
    ipywidgets = pytest.importorskip("ipywidgets")

    def show(prediction):
        boxes = []
        monkeypatch.setattr(progress, "show", lambda box, text: boxes.append(box))
        prediction._ipython_display_()
        ((question, row),) = [box.children for box in boxes]
        assert isinstance(question, ipywidgets.HTML)
        field, unit, note = row.children
        assert unit.value == prediction.unit
        return question, field, note

    return show


def test_the_field_stands_under_the_question(shown):
    question, field, note = shown(predict("speed", "2 < 3 samples?", unit="ms"))
    assert question.value == "<b>Predict.</b> 2 &lt; 3 samples?"
    assert (field.value, note.value) == ("", "")


@pytest.mark.parametrize("typed", ["120", " 120 ms ", "1.2e2", "120.0"])
def test_what_is_typed_is_taken(shown, typed):
    guess = predict("speed", "How long?", unit="ms")
    _, field, note = shown(guess)
    field.value = typed
    assert (guess.answer, note.value, guess.is_open) == (120.0, "Noted.", False)
    assert guess.score(100.0).right


@pytest.mark.parametrize("typed", ["fast", "-3", "inf", "12 MB", "1,2"])
def test_what_is_no_amount_is_named_and_can_be_typed_again(shown, typed):
    guess = predict("speed", "How long?", unit="ms")
    _, field, note = shown(guess)
    field.value = typed
    assert (guess.answer, guess.is_open) == (None, True)
    assert note.value == f"{typed!r} is not an amount such as 120 ms."
    field.value = "80"
    assert (guess.answer, note.value) == (80.0, "Noted.")
    field.value = ""
    assert (guess.answer, note.value, guess.is_open) == (None, "", True)


def test_an_answer_of_the_cell_stands_in_the_field(shown):
    _, field, note = shown(predict("speed", "How long?", unit="ms", answer=1500))
    assert (field.value, note.value) == ("1500", "Noted.")


def test_a_cell_that_is_run_again_keeps_what_was_typed(shown):
    _, field, _ = shown(predict("speed", "How long?", unit="ms"))
    field.value = "120"
    again = predict("speed", "How long?", unit="ms")
    assert again.answer == 120
    assert shown(again)[1].value == "120"
    assert predict("speed", "Another question?", unit="ms").is_open
    assert predict("speed", "Another question?", unit="ms", answer=7).answer == 7


def test_a_page_that_shows_no_widgets_shows_the_question_as_a_text(monkeypatch):
    pytest.importorskip("ipywidgets")
    import IPython.display

    sent = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, raw: sent.append(bundle))
    predict("speed", "How long?", unit="ms")._ipython_display_()
    assert sent[0][progress.VIEW]["model_id"]
    assert sent[0]["text/plain"].startswith("How long?\nYour prediction: none yet.")
    assert "%env BOOTCAMP_WIDGETS=0" in sent[0]["text/plain"]


@pytest.mark.parametrize("why", ["missing", "unwanted"])
def test_without_widgets_the_question_is_a_text(why, monkeypatch, capsys):
    if why == "missing":
        monkeypatch.setitem(sys.modules, "ipywidgets", None)
    else:
        monkeypatch.setenv(progress.VARIABLE, "0")
    predict("speed", "How long?", unit="ms")._ipython_display_()
    assert capsys.readouterr().out.startswith("How long?\nYour prediction: none yet.")


def test_once_a_question_is_asked_the_launcher_waits_for_its_answer(monkeypatch):
    monkeypatch.setattr(launch, "before", [])
    predict("speed", "How long?")
    assert launch.before == [check_answered]


@pytest.mark.parametrize("value", [None, "0"])
def test_nobody_is_held_to_a_question_unless_asked_to(monkeypatch, value):
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    predict("speed", "How long?")
    check_answered()


def test_a_launch_is_refused_while_a_question_is_open(monkeypatch, shown):
    class Begun(Exception):
        """The launch went on after it had asked."""

    def begin(*given, **named):
        raise Begun

    monkeypatch.setattr(launch, "before", [check_answered, begin])
    monkeypatch.setenv(VARIABLE, "1")
    first, second = predict("speed", "How long?"), predict("memory", "How much?", unit="MB")
    _, field, _ = shown(first)
    with pytest.raises(
        PredictionMissing, match=r"Predict first: How long\? Type a number into the"
    ):
        launch.launch("cpu", 1, steps=1)
    field.value = "long"
    with pytest.raises(PredictionMissing, match="How long"):
        launch.launch("cpu", 1, steps=1)
    field.value = "120"
    with pytest.raises(PredictionMissing, match=r"How much\?"):
        launch.launch("cpu", 1, steps=1)
    second.score(3.0)  # its measurement is known: there is nothing left to predict
    with pytest.raises(Begun):
        launch.launch("cpu", 1, steps=1)


@pytest.mark.parametrize(("given", "told"), [("1", "1"), ("0", "0"), ("", None), (None, None)])
def test_make_lab_hands_it_to_the_kernels(monkeypatch, given, told):
    monkeypatch.delenv("PREDICT_FIRST", raising=False)
    if given is not None:
        monkeypatch.setenv("PREDICT_FIRST", given)
    assert lab.environment().get(VARIABLE) == told


def test_make_exports_it():
    said = subprocess.run(
        ["make", "-s", "-f", "-", "show", "PREDICT_FIRST=1"],
        input="include Makefile\nshow:\n\t@echo first $$PREDICT_FIRST\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert said.stdout == "first 1\n", said.stderr
