"""Questions to answer before a run: `guess = predict("ddp_speed", "...?", unit="samples/s")`.

No prediction raises an exception, missing or malformed: Run All always runs to the end. But with
BOOTCAMP_PREDICT_FIRST=1 (make lab PREDICT_FIRST=1) no run starts while a question is open.
"""

import html
import os
import re

from bootcamp.classroom import journal
from bootcamp.launcher import launch, progress
from bootcamp.units import number

MEASURED = "Measured"
AMOUNT = re.compile(r"(\d{1,3}(,\d{3})+|\d+)(\.\d*)?(e[+-]?\d\d?)?|\.\d+")  # 1,500.5, 2e9, .5


class PredictionMissing(Exception):
    """No run was started because a question has no answer; the message repeats the question."""


class Score(str):
    """The verdict on a prediction, as a sentence; `right` is None if no prediction was made."""

    def __new__(cls, right: bool | None, text: str):
        score = super().__new__(cls, text)
        score.right = right
        return score

    __repr__ = str.__str__


class Prediction:
    """A question, and what is given as its answer: a number or a text, None if nothing is."""

    def __init__(self, name: str, question: str, unit: str, given):
        self.name, self.question, self.unit, self.given = name, question, unit, given
        self.scored = False  # whether a measurement has been compared with the answer

    @property
    def answer(self) -> float | None:
        return parse_amount(self.given, self.unit)

    @property
    def note(self) -> str:
        """What to say of the answer: that it is noted, or what is wrong with it."""
        if self.given is None:
            return ""
        wrong = f"{self.given!r} is not an amount such as {self._with_unit(120)}."
        return wrong if self.answer is None else "Noted."

    @property
    def is_open(self) -> bool:
        return self.answer is None and not self.scored

    def _with_unit(self, value) -> str:
        one = value == 1 and re.fullmatch("(?!times)[A-Za-z]{3,}s", self.unit)
        return f"{number(value)} {self.unit[:-1] if one else self.unit}".strip()

    def __str__(self) -> str:
        answer = self.note or "none yet. Give it as answer=."
        if self.answer is not None:
            answer = self._with_unit(self.answer)
        return f"{self.question}\nYour prediction: {answer}"

    __repr__ = __str__

    def _ipython_display_(self) -> None:
        if library := progress.load_widgets():
            self._show_field(library)
        else:
            print(self)

    def _show_field(self, ipywidgets) -> None:
        text = "" if self.given is None else str(self.given)
        field = ipywidgets.Text(text, placeholder="your prediction", continuous_update=False)
        note = ipywidgets.Label(self.note)

        def take(change: dict) -> None:
            self.given = change["new"].strip() or None
            note.value = self.note

        field.observe(take, names="value")
        question = ipywidgets.HTML(f"<b>Predict.</b> {html.escape(self.question)}")
        row = ipywidgets.HBox([field, ipywidgets.Label(self.unit), note])
        progress.show(ipywidgets.VBox([question, row]), str(self))

    def score(self, measured: float, within: float = 0.25, how: str = MEASURED) -> Score:
        """Compare the answer with what was measured, and note it in the journal.

        within: the largest relative error of a right prediction. how: the words that introduce a
        number that was not measured, such as "The planner says".
        """
        self.scored, found = True, f"{how}: {self._with_unit(measured)}"
        if self.answer is None:
            return Score(None, f"{found}. You made no prediction; try the next one.")
        right = bool(abs(self.answer - measured) <= within * abs(measured))
        about = {"question": self.question, "unit": self.unit, "answer": self.answer}
        about |= {"measured": float(measured), "how": how}
        journal.note_prediction(self.name, right, **about)
        text = f"{found}. You said {self._with_unit(self.answer)}"
        if right:
            near = f"within {within:.0%}" if within else "exactly"
            return Score(right, f"{text}: {near}, well predicted.")
        if measured:
            text += f", {number(self.answer / measured)} times that"
        return Score(right, f"{text}. What did you expect to be different?")


def parse_amount(answer, unit: str) -> float | None:
    """Return the number, 0 or more, in an answer such as 150, "1,500" or "150 ms"; else None."""
    text = str(answer).strip().removesuffix(unit).strip().lower()
    read = int if text.replace(",", "").isdecimal() else float
    return read(text.replace(",", "")) if AMOUNT.fullmatch(text) else None


def predict(name: str, question: str, unit: str = "", answer=None) -> Prediction:
    """Ask a question before the run. name: the key of the prediction in the reader's journal.

    A cell run again keeps its field's text. The first call makes later launches run check_answered.
    """
    if check_answered not in launch.before:
        launch.before.append(check_answered)
    previous = predictions.get(name)
    if answer is None and previous and previous.question == question:
        answer = previous.given
    predictions[name] = Prediction(name, question, unit, answer)
    return predictions[name]


def check_answered() -> None:
    """Raise PredictionMissing if a question is open and BOOTCAMP_PREDICT_FIRST is set."""
    unanswered = next((each for each in predictions.values() if each.is_open), None)
    if unanswered and os.environ.get("BOOTCAMP_PREDICT_FIRST", "0") != "0":
        raise PredictionMissing(
            f"Predict first: {unanswered.question} Type a number into the field under the "
            "question, or into its cell as answer=, then run this cell again."
        )


predictions: dict[str, Prediction] = {}  # by name, the newest of each
