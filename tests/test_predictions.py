"""The collection of a reader's predictions: distances from the journal, kinds, its figure."""

import json

import pytest

pytest.importorskip("matplotlib")

from bootcamp import machine
from bootcamp.classroom import journal, prediction_scores
from bootcamp.classroom.predict import predict
from bootcamp.drawing import style

LAPTOP, SERVER = "laptop CPU", "server CPU"


@pytest.fixture(autouse=True)
def work(monkeypatch, tmp_path):
    """A course of two lessons and an empty journal, on a machine with a name."""
    monkeypatch.setattr(journal, "WORK", tmp_path)
    monkeypatch.setattr(journal, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(machine, "cpu_name", lambda: LAPTOP)
    for lesson, names in (("04_ddp", "abcd"), ("02b_memory", "efghij")):
        cells = [{"cell_type": "code", "source": [f'predict("{name}", "?")']} for name in names]
        (tmp_path / f"{lesson}.ipynb").write_text(json.dumps({"cells": cells}))
    return tmp_path


def answer(name, said, measured, unit="ms", **how):
    return predict(name, f"How much is {name}?", unit=unit, answer=said).score(measured, **how)


def test_without_predictions_it_says_so(capsys):
    predict("a", "How long?", unit="ms").score(3.0)  # unanswered
    prediction_scores.show()
    assert capsys.readouterr().out.startswith("No predictions yet: type one into the field")
    assert len(prediction_scores.table()) == 0
    with pytest.raises(ValueError, match="No predictions yet"):
        prediction_scores.figure()


def test_rows_are_in_the_order_of_lessons_with_the_distance_from_the_journal(work):
    answer("d", 200, 100)
    answer("mine", 7, 7, unit="")
    answer("e", 25, 100.0, unit="MB")
    answer("f", 100, 110, unit="MB", within=0.2, how="The planner says")
    table = prediction_scores.table()
    assert table.column("lesson") == ["02b", "02b", "04", "your own"]
    assert table.column("off by a factor of") == pytest.approx([4, 1.1, 2, 1])
    assert table.column("result") == ["wrong", "right", "wrong", "right"]
    assert (table[0]["you said"], table[0]["it was"]) == ("25 MB", "100.0 MB")
    assert table.column("how").count("The planner says") == 1
    assert table.caption == "Your predictions: 4. Questions of the course without one: 7."
    assert "what the planner says: 1." in prediction_scores.figure()._supxlabel.get_text()
    # a measurement that is changed in the journal is another distance
    kept = json.loads((work / journal.FILE).read_text())
    planted = next(one for one in kept["scored"] if one["name"] == "d")
    planted["measured"] = 2.0
    (work / journal.FILE).write_text(json.dumps(kept))
    assert prediction_scores.table().column("off by a factor of") == pytest.approx([4, 1.1, 100, 1])


def test_of_several_answers_the_first_counts_for_each_machine(monkeypatch):
    answer("a", 300, 100)
    answer("a", 100, 100)  # after the measurement was seen
    assert journal.progress()[1]["right"] == 1, "progress counts the last"
    (only,) = prediction_scores.list_predictions()
    assert (only["answer"], only["right"]) == (300, False)
    assert "machine" not in prediction_scores.table().columns
    monkeypatch.setattr(machine, "cpu_name", lambda: SERVER)
    answer("a", 40, 50.0)
    table = prediction_scores.table()
    assert [row["machine"].partition(",")[0] for row in table] == [LAPTOP, SERVER]
    assert table.column("result") == ["wrong", "right"]
    assert f"Measured on {LAPTOP}" in prediction_scores.figure()._supxlabel.get_text()


@pytest.mark.parametrize(("said", "measured"), [(0, 5), (5, 0.0), (5, float("nan")), (5, -2.0)])
def test_what_has_no_ratio_is_listed_and_not_drawn(said, measured):
    answer("a", said, measured)
    answer("b", 1, 1000.0)
    (first, second) = prediction_scores.table().column("off by a factor of")
    assert first is None
    assert second == pytest.approx(1000)
    foot = prediction_scores.figure()._supxlabel.get_text()
    assert "Without a ratio" in foot
    assert "At the edge" in foot


def test_the_worst_kind_is_named():
    assert "1 of 1 predictions were right." in str(
        answer("a", 3, 3) and prediction_scores.verdict()
    )
    answer("b", 300, 100)
    assert "Too few to compare kinds" in prediction_scores.verdict()
    answer("c", 50, 100)
    for name in "efg":
        answer(name, 100, 100, unit="MB")
    said = prediction_scores.verdict()
    assert "4 of 6 predictions were right. Worst: times and speeds, 1 of 3 right" in said
    assert "typically off by a factor of 2." in said
    assert "too large" not in said, "two wrong ones have no direction yet"
    answer("h", 400, 100, unit="%")
    assert "Of 3 wrong ones 2 were too large." in prediction_scores.verdict()


def test_a_kind_without_a_ratio_is_off_by_no_factor():
    for name in "abc":
        answer(name, 0, 5)
    for name in "efg":
        answer(name, 100, 100, unit="MB")
    assert prediction_scores.verdict().endswith("Worst: times and speeds, 0 of 3 right.")


@pytest.mark.parametrize(
    ("unit", "kind"),
    [("samples/s", "times and speeds"), ("MB", "sizes"), ("%", "ratios"), ("steps", "counts")],
)
def test_the_kind_follows_from_the_unit(unit, kind):
    assert prediction_scores.find_kind(unit).startswith(kind)


@pytest.mark.parametrize("count", [1, 10])
def test_the_figure_can_be_read(count):
    for number, name in enumerate("abcdefghij"[:count]):
        unit = ("ms", "MB", "%", "steps", "")[number % 5]
        answer(name, 10.0 ** (number - 5), 1.0, unit=unit)
    figure = prediction_scores.figure()
    style.png(figure)
    assert figure.alt.startswith(prediction_scores.verdict())


def test_an_older_or_broken_journal_is_read_as_far_as_it_goes(work):
    path = work / journal.FILE
    path.write_text(json.dumps({"predictions": {"a": True}, "exercises": {}}))
    assert prediction_scores.list_predictions() == []
    assert journal.progress()[1]["predictions made"] == "1 of 4"
    answer("b", 5, 10)
    assert len(prediction_scores.list_predictions()) == 1
    for broken in ("{half", '{"scored": 7}', '{"scored": [1, {}, {"name": "a"}]}'):
        path.write_text(broken)
        assert prediction_scores.list_predictions() == []
        answer("c", 5, 10)
        assert len(prediction_scores.list_predictions()) == 1
