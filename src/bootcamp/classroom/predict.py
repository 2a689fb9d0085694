"""Guess first, measure then: `guess = predict("...?", unit="samples/s", answer=None)`.

A reader writes a number in place of None and scores it against the measured one. An empty
prediction says so and raises nothing, so that Run All always goes through.
"""

from bootcamp.classroom import journal
from bootcamp.units import number


class Prediction:
    """A question with the reader's answer, if there is one."""

    def __init__(self, question: str, unit: str, answer: float | None):
        self.question, self.unit, self.answer = question, unit, answer

    def _text(self, value: float) -> str:
        return f"{number(value)} {self.unit}".strip()

    def __str__(self) -> str:
        if self.answer is None:
            return f"{self.question}\nYour prediction: none yet. Write a number after answer=."
        return f"{self.question}\nYour prediction: {self._text(self.answer)}"

    __repr__ = __str__

    def score(self, measured: float, within: float = 0.25) -> "Score":
        """Hold the answer against what was measured.

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
            journal.note_prediction(prediction.question, self.right)

    def __str__(self) -> str:
        measured = self.prediction._text(self.measured)
        if self.right is None:
            return f"Measured: {measured}. You made no prediction; try the next one."
        said = self.prediction._text(self.prediction.answer)
        if self.right:
            return (
                f"Measured: {measured}. You said {said}: within {self.within:.0%}, well predicted."
            )
        if self.measured == 0:
            return f"Measured: {measured}. You said {said}. What did you expect to be different?"
        factor = self.prediction.answer / self.measured
        return (
            f"Measured: {measured}. You said {said}, {number(factor)} times that. "
            "What did you expect to be different?"
        )

    __repr__ = __str__


def predict(question: str, unit: str = "", answer: float | None = None) -> Prediction:
    """A question to answer before the run. Raises TypeError if the answer is no number."""
    if answer is not None and (isinstance(answer, bool) or not isinstance(answer, int | float)):
        raise TypeError(f"answer={answer!r}: give a number such as 120, or None to pass")
    return Prediction(question, unit, answer)
