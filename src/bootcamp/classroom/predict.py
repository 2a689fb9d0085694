"""Guess first, measure then: `guess = predict("ddp_speed", "...?", unit="samples/s", answer=None)`.

A reader writes a number in place of None and scores it against the measured one. Nothing raises: an
empty prediction, or one that is no amount, is shown as such, so that Run All always goes through.
"""

import math
import re

from bootcamp.classroom import journal
from bootcamp.units import number

AMOUNT = re.compile(r"(\d+|\d{1,3}(?:,\d{3})+)?(\.\d*)?(e[+-]?\d+)?", re.IGNORECASE)


class Prediction:
    """A question with the reader's answer, if there is one. `refused`: an answer that is none."""

    def __init__(self, name: str, question: str, unit: str, answer):
        self.name, self.question, self.unit = name, question, unit
        self.answer = amount(answer, unit)
        self.refused = repr(answer) if answer is not None and self.answer is None else ""

    def _text(self, value: float) -> str:
        return f"{number(value)} {self.unit}".strip()

    def __str__(self) -> str:
        if self.refused:
            example = f"120 {self.unit}".strip()
            refused = f"Your prediction: {self.refused} is no amount such as {example}."
            return f"{self.question}\n{refused}"
        if self.answer is None:
            return f"{self.question}\nYour prediction: none yet. Write a number after answer=."
        return f"{self.question}\nYour prediction: {self._text(self.answer)}"

    __repr__ = __str__

    def score(self, measured: float, within: float = 0.25) -> "Score":
        """Compare the answer with what was measured.

        within: the relative error up to which a prediction counts as right.
        """
        return Score(self, measured, within)


class Score:
    """How far a prediction was from the measurement. `right` is None without a prediction."""

    def __init__(self, prediction: Prediction, measured: float, within: float):
        self.prediction, self.measured, self.within = prediction, measured, within
        self.right = None
        if prediction.answer is not None:
            self.right = abs(prediction.answer - measured) <= within * abs(measured)
            journal.note_prediction(prediction.name, self.right)

    def __str__(self) -> str:
        measured = self.prediction._text(self.measured)
        if self.right is None:
            return f"Measured: {measured}. You made no prediction; try the next one."
        said = f"Measured: {measured}. You said {self.prediction._text(self.prediction.answer)}"
        if self.right:
            return f"{said}: within {self.within:.0%}, well predicted."
        if self.measured:
            said += f", {number(self.prediction.answer / self.measured)} times that"
        return f"{said}. What did you expect to be different?"

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
    """A question to answer before the run. name: what the reader's progress calls it."""
    return Prediction(name, question, unit, answer)
