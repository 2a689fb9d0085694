"""Guess first, measure then: `guess = predict("ddp_speed", "...?", unit="samples/s")`.

Nothing raises: what is no amount is shown as such, so that Run All always goes through. But with
BOOTCAMP_PREDICT_FIRST=1 (make lab PREDICT_FIRST=1) no run starts while a question is open.
"""

import html
import math
import os
import re
from dataclasses import dataclass

from bootcamp.classroom import journal
from bootcamp.launcher import launch, progress
from bootcamp.units import number

MEASURED = "Measured"
AMOUNT = re.compile(r"(\d+|\d{1,3}(?:,\d{3})+)?(\.\d*)?(e[+-]?\d+)?", re.IGNORECASE)


class PredictFirst(Exception):
    """A run that waits for the reader's prediction. Its text says which."""


class Prediction:
    """A question with the reader's answer, if there is one. `refused`: an answer that is none.

    scored: whether it has been held against a measurement. typed: what the field holds.
    """

    def __init__(self, name: str, question: str, unit: str, answer):
        self.name, self.question, self.unit = name, question, unit
        self.scored, self.typed = False, ""
        self.set(answer)

    def set(self, answer) -> None:
        """Take a number, or what was typed, as the answer; None is none."""
        self.answer = amount(answer, self.unit)
        self.refused = repr(answer) if answer is not None and self.answer is None else ""

    @property
    def open(self) -> bool:
        return self.answer is None and not self.scored

    def in_unit(self, value: float) -> str:
        return f"{number(value)} {self.unit}".strip()

    def __str__(self) -> str:
        said = "none yet. Give it as answer=."
        if self.refused:
            said = f"{self.refused} is no amount such as {f'120 {self.unit}'.strip()}."
        elif self.answer is not None:
            said = self.in_unit(self.answer)
        return f"{self.question}\nYour prediction: {said}"

    __repr__ = __str__

    def _ipython_display_(self) -> None:
        if library := progress.widgets():
            self._show_field(library)
        else:
            print(self)

    def _show_field(self, ipywidgets) -> None:
        typed = self.typed or ("" if self.answer is None else f"{self.answer:g}")
        field = ipywidgets.Text(typed, placeholder="your prediction", continuous_update=False)
        note = ipywidgets.Label(self._note())

        def take(change: dict) -> None:
            self.typed = change["new"].strip()
            self.set(self.typed or None)
            note.value = self._note()

        field.observe(take, names="value")
        question = ipywidgets.HTML(f"<b>Predict.</b> {html.escape(self.question)}")
        row = ipywidgets.HBox([field, ipywidgets.Label(self.unit), note])
        progress.show(ipywidgets.VBox([question, row]), str(self))

    def _note(self) -> str:
        if self.refused:
            return f"{self.refused} is no amount such as 120."
        return "" if self.answer is None else "Noted."

    def score(self, measured: float, within: float = 0.25, how: str = MEASURED) -> "Score":
        """Compare the answer with what was measured, and note it in the journal.

        within: the relative error up to which a prediction counts as right. how: where the number
        is from, if nothing was measured: "The planner says".
        """
        self.scored, found = True, f"{how}: {self.in_unit(measured)}"
        if self.answer is None:
            return Score(None, f"{found}. You made no prediction; try the next one.")
        right = bool(abs(self.answer - measured) <= within * abs(measured))
        about = {"question": self.question, "unit": self.unit, "answer": self.answer}
        about |= {"measured": float(measured), "how": how}
        journal.note_prediction(self.name, right, **about)
        text = f"{found}. You said {self.in_unit(self.answer)}"
        if right:
            return Score(right, f"{text}: within {within:.0%}, well predicted.")
        if measured:
            text += f", {number(self.answer / measured)} times that"
        return Score(right, f"{text}. What did you expect to be different?")


@dataclass(frozen=True, repr=False)
class Score:
    """How far a prediction was from the measurement. `right` is None without a prediction."""

    right: bool | None
    text: str

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def amount(answer, unit: str = "") -> float | None:
    """The number in an answer such as 150, "150" or "150 ms"; None for what is no amount.

    All questions ask for amounts: what is negative, infinite or not a number is none.
    """
    if isinstance(answer, str):
        text = answer.strip().removesuffix(unit).strip()
        found = text and AMOUNT.fullmatch(text)
        answer = float(text.replace(",", "")) if found and any(map(str.isdigit, text)) else None
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        return None
    return answer if math.isfinite(answer) and answer >= 0 else None


def predict(name: str, question: str, unit: str = "", answer=None) -> Prediction:
    """A question to answer before the run. name: what the reader's progress calls it.

    A cell that is run again keeps what was typed into its field. From the first question on, a
    launch asks wait_for_answers.
    """
    if wait_for_answers not in launch.before:
        launch.before.append(wait_for_answers)
    before = asked.get(name)
    asked[name] = prediction = Prediction(name, question, unit, answer)
    if answer is None and before and before.typed and before.question == question:
        prediction.typed = before.typed
        prediction.set(before.typed)
    return prediction


def wait_for_answers() -> None:
    """Raise PredictFirst if a question is open and the reader wishes to be held to it."""
    waiting = next((each for each in asked.values() if each.open), None)
    if waiting and os.environ.get("BOOTCAMP_PREDICT_FIRST", "0") != "0":
        raise PredictFirst(
            f"Predict first: {waiting.question} Type a number into the field under the "
            "question, or into its cell as answer=, then run this cell again."
        )


asked: dict[str, Prediction] = {}  # the last of each name
