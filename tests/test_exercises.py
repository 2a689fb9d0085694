"""Exercises that are a function in a cell: their checker, and the journal of what a reader does."""

import functools
import json
import operator

import pytest

from bootcamp.classroom import journal, tasks
from bootcamp.classroom.predict import predict
from bootcamp.classroom.tasks import FunctionTask
from bootcamp_lessons import exercise, exercises

FUNCTIONS = [t for t in exercises.EXERCISES.values() if isinstance(t, FunctionTask)]


def ring(megabytes, ranks):
    """What a rank sends in MB."""
    return 2 * (ranks - 1) / ranks * megabytes


def make_task(solution, *cases, **fields):
    fields = {"hint": "h", "stronger": "s", "cases": cases} | fields
    return FunctionTask.from_solution(**fields)(solution).exercise


RING = make_task(
    ring,
    (100, 2),
    (100, 4),
    hint="Two rounds.",
    stronger="2(N-1)/N",
    unit="MB",
    mistakes={operator.mul: "That is everything to everybody."},
)


@pytest.fixture
def work(monkeypatch, tmp_path):
    monkeypatch.setattr(tasks, "WORK", tmp_path)
    monkeypatch.setattr(journal, "WORK", tmp_path)
    return tmp_path


@pytest.mark.solves(*(task.name for task in FUNCTIONS))
@pytest.mark.parametrize("task", FUNCTIONS, ids=lambda task: task.name)
def test_the_solution_is_accepted_and_the_stub_is_not(task):
    assert exercise.try_out(task, task.solved_by).solved
    result = exercise.try_out(task, lambda *case: None)
    assert not result.solved
    assert "not written yet" in str(result)


@pytest.mark.parametrize("task", FUNCTIONS, ids=lambda task: task.name)
def test_three_typical_mistakes_are_each_named(task):
    assert len(task.mistakes) >= 3
    for mistake, says in task.mistakes.items():
        result = exercise.try_out(task, task.make_mistake(mistake))
        assert not result.solved
        assert says in str(result)
        assert "Expected: " in str(result)
        assert "Seen: " in str(result)


@pytest.mark.parametrize("task", exercises.EXERCISES.values(), ids=lambda task: task.name)
def test_every_exercise_has_two_hints(task):
    assert task.hint
    assert task.stronger
    assert task.stronger != task.hint


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "Seen: no function"),
        (7, "which can't be called"),
        (lambda a, b: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda a: a, "TypeError"),
        (lambda a, b: "100 MB", "Seen: '100 MB' MB\nThat is a string."),
        (lambda a, b: True, "Seen: True"),
        (lambda a, b: 7.5, "Expected: <lambda>(100, 2) to return 100 MB"),
        (lambda a, b: a * b, "That is everything to everybody."),
    ],
)
def test_a_wrong_function_is_told_what_was_expected_and_seen(given, says):
    result = exercise.try_out(RING, given)
    assert not result.solved
    assert says in str(result)


def test_numbers_in_messages_have_six_digits():
    halved = make_task(lambda numbers: [1 / 3, *numbers], ([],))
    assert "to return [0.333333]." in str(exercise.try_out(halved, lambda numbers: [2 / 3]))


def test_a_function_that_changes_its_callers_list_is_wrong():
    def spoilt(numbers):
        numbers.sort()
        return 3

    first = make_task(lambda numbers: numbers[0], ([3, 1, 2],))
    for _ in range(2):  # the next reader gets the cases as they were
        result = exercise.try_out(first, spoilt)
        assert not result.solved
        assert "it turned them into [1, 2, 3]" in str(result)
        assert exercise.try_out(first, lambda numbers: numbers[0]).solved
    assert "your function([3" in str(exercise.try_out(first, functools.partial(spoilt, 1, 2)))


def test_samples_of_rank_leaves_the_callers_order_alone():
    def padding_in_place(order, rank, world):
        order += order[: -len(order) % world]
        return order[rank::world]

    result = exercise.try_out(exercise.find("samples_of_rank"), padding_in_place)
    assert not result.solved
    assert "to leave its arguments as they are" in str(result)


def test_printing_in_place_of_returning_is_an_attempt_with_its_own_hint(work, monkeypatch, capsys):
    monkeypatch.setitem(exercises.EXERCISES, "ring", RING)
    result = exercise.check("ring", lambda a, b: print("sent", a * b))
    assert "None, and printed: sent 200" in str(result)
    assert "only return gives it" in str(result)
    assert "Hint: Two rounds." in str(result), "it counts as an attempt"
    assert capsys.readouterr().out == "sent 200\n", "the reader still sees what was printed"


def test_sequences_are_compared_entry_by_entry():
    order = make_task(lambda: ["a", 1.0], ())
    assert exercise.try_out(order, lambda: ("a", 1.0001)).solved
    assert not exercise.try_out(order, lambda: ["a"]).solved
    assert not exercise.try_out(order, lambda: [1.0, "a"]).solved


def test_the_second_attempt_gets_the_stronger_hint(work, monkeypatch):
    monkeypatch.setitem(exercises.EXERCISES, "ring", RING)
    wrong = lambda a, b: 0.5  # noqa: E731
    for _ in range(2):  # Run All with the stub is no attempt, and gives no hint away
        assert "Try it first" in str(exercise.check("ring", lambda a, b: None))
    assert "Stronger" not in str(exercise.check("ring", wrong))
    assert "Stronger hint: 2(N-1)/N" in str(exercise.check("ring", wrong))
    assert exercise.check("ring", ring).solved
    assert "Stronger" not in str(exercise.check("ring", wrong))
    assert "def ring(megabytes, ranks):" in exercise.solution("ring")
    assert exercise.start("ring") == "Write ring(megabytes, ranks): What a rank sends in MB."


def notebook(folder, *cells):
    content = {"cells": [{"cell_type": "code", "source": [text]} for text in cells]}
    (folder / "04_ddp.ipynb").write_text(json.dumps(content))


def test_progress_counts_what_was_done_of_what_there_is(work, monkeypatch):
    monkeypatch.setattr(journal, "NOTEBOOKS", work)
    monkeypatch.setitem(exercises.EXERCISES, "ring", RING)
    asked = 'guess = predict(\n    "ring_speed",\n    f"One process: {x} samples/s. Two?"\n)'
    notebook(work, asked, 'predict("ring_mb", "MB?")', 'exercise.check("ring", f)', "%magic")

    def row():
        return journal.progress()[0]

    assert row()["predictions made"] == "0 of 2"
    assert row()["exercises solved"] == "0 of 1"
    assert row()["still to solve"] == "ring"
    predict("ring_mb", "How many MB?").score(5)
    assert row()["predictions made"] == "0 of 2", "an empty prediction is none"
    predict("ring_speed", "How many?", answer=7).score(2000)
    predict("something_else", "How many?", answer=7).score(7)
    assert (row()["predictions made"], row()["right"]) == ("1 of 2", 0)
    predict("ring_speed", "How many, measured again?", answer=2000).score(2000)
    assert (row()["predictions made"], row()["right"]) == ("1 of 2", 1)
    exercise.check("ring", ring)
    exercise.check("ring", lambda a, b: 0)
    assert row()["exercises solved"] == "1 of 1", "what was solved once stays solved"
    assert row()["still to solve"] == ""


def test_a_journal_that_cannot_be_read_or_written_stops_nobody(work, monkeypatch):
    (work / journal.FILE).write_text("{half")
    assert journal.note_exercise("ring", solved=False) == 1
    monkeypatch.setattr(journal, "WORK", work / journal.FILE)
    assert journal.note_exercise("ring", solved=False) == 1
    predict("ring_mb", "How many MB?", answer=1).score(1)
