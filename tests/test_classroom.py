"""What a reader meets in any exercise: the checker's answers, hints, files, and the journal."""

import json
import operator

import pytest

from bootcamp.classroom import journal, tasks
from bootcamp.classroom.predict import predict
from bootcamp.classroom.tasks import FunctionTask
from bootcamp.experiments import equality
from bootcamp.launcher import launch
from bootcamp.records import summary
from bootcamp_lessons import exercise, exercises


@pytest.fixture
def work(monkeypatch, tmp_path):
    monkeypatch.setattr(tasks, "WORK", tmp_path)
    monkeypatch.setattr(journal, "WORK", tmp_path)
    return tmp_path


# Any function: what its checker says


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
ORDER = make_task(lambda: ["a", 1.0], ())
HALVED = make_task(lambda numbers: [1 / 3, *numbers], ([],))


WRONG = [
    (RING, None, "Seen: no function"),
    (RING, 7, "which can't be called"),
    (RING, lambda a, b: 1 / 0, "ZeroDivisionError: division by zero"),
    (RING, lambda a, b: str(ring(a, b)), "Seen: '100.0' MB\nThat is a string."),
    (RING, lambda a, b: True, "Seen: True"),
    (RING, lambda a, b: 1e6 * ring(a, b), "Seen: 1e+08 MB"),
    (RING, lambda a, b: 7.5, "Expected: <lambda>(100, 2) to return 100 MB"),
    (RING, lambda a, b: a * b, "That is everything to everybody."),
    (HALVED, lambda numbers: [2 / 3], "to return [0.333333]."),
    (ORDER, lambda: ["a"], "Seen: ['a']"),
]


def test_wrong_functions_hear_what_was_expected_and_seen():
    for task, given, says in WRONG:
        result = exercise.try_out(task, given)
        assert not result.solved
        assert says in str(result)
    assert exercise.try_out(ORDER, lambda: ("a", 1.0001)).solved, "entry by entry, nearly"


def test_functions_that_change_the_callers_list_are_wrong():
    def spoilt(numbers):
        numbers.sort()
        return 3

    first = make_task(lambda numbers: numbers[0], ([3, 1, 2],))
    for _ in range(2):  # the next reader gets the cases as they were
        assert "it turned them into [1, 2, 3]" in str(exercise.try_out(first, spoilt))
        assert exercise.try_out(first, lambda numbers: numbers[0]).solved


def test_printing_in_place_of_returning_has_its_own_hint(work, monkeypatch, capsys):
    monkeypatch.setitem(exercises.EXERCISES, "ring", RING)
    result = exercise.check("ring", lambda a, b: print("sent", a * b))
    assert "None, and printed: sent 200" in str(result)
    assert "only return gives it" in str(result)
    assert "Hint: Two rounds." in str(result), "it counts as an attempt"
    assert capsys.readouterr().out == "sent 200\n", "the reader still sees what was printed"


def test_third_attempts_get_the_stronger_hint(work, monkeypatch):
    monkeypatch.setitem(exercises.EXERCISES, "ring", RING)
    wrong = lambda a, b: 0.5  # noqa: E731
    for _ in range(2):  # Run All with the stub is no attempt, and gives no hint away
        assert "Try it first" in str(exercise.check("ring", lambda a, b: None))
    for _ in range(2):
        assert "Stronger" not in str(exercise.check("ring", wrong))
    assert "Stronger hint: 2(N-1)/N" in str(exercise.check("ring", wrong))
    assert exercise.check("ring", ring).solved
    assert "Stronger" not in str(exercise.check("ring", wrong))
    assert "def ring(megabytes, ranks):" in exercise.solution("ring")
    assert exercise.start("ring") == "Write ring(megabytes, ranks): What a rank sends in MB."


# A reader's way through an exercise, and the journal of it


def begin(line: str):
    """Start first_run, write this line into its gap, and return the script's path."""
    exercise.start("first_run")
    path = exercise.find("first_run").path
    path.write_text(path.read_text().replace(tasks.PLACE, line))
    return path


def test_scripts_are_started_edited_and_checked(work, quick_proofs):
    assert "Not started" in str(exercise.check("first_run"))
    assert "Wrote" in exercise.start("first_run")
    assert "still the starting point" in str(exercise.check("first_run"))
    assert "+        optimizer.step()" in str(exercise.solution("first_run"))
    path = begin("optimizer.step()  # mine")
    assert "Your script is" in exercise.start("first_run"), "it must not overwrite"
    assert "mine" in path.read_text()
    assert exercise.check("first_run").solved
    with pytest.raises(KeyError, match="choose one of first_run"):
        exercise.find("nothing")


def test_scripts_that_python_cannot_read_are_told_the_line(work):
    path = begin("optimizer.step(")
    lines = [line.strip() for line in path.read_text().splitlines()]
    number = lines.index("optimizer.step(") + 1
    result = str(exercise.check("first_run"))
    assert f"Seen: line {number} of {path}: '(' was never closed: optimizer.step(" in result


def test_loops_that_never_step_end_soon_and_are_told_their_line(work, monkeypatch, capsys):
    path, limits = begin("while True: pass"), []

    def hang(script, ranks, options):
        limits.append(options.hang_seconds)
        stack = f'rank 0, 0 steps done:\n  File "{script}", line 28 in <module>\n'
        said = "the ranks hang: no rank has finished a step for 60 s. If a step may take so long"
        raise launch.RunHung(summary.failure(None, "hang", said, stack))

    monkeypatch.setattr(equality, "prove", hang)
    result = str(exercise.check("first_run"))
    assert f"Running {path} on 1 CPU rank(s) ..." in capsys.readouterr().out
    assert "Seen: an error.\nthe ranks hang: no rank has finished a step for 60 s\n" in result
    assert f"rank 0 is in line 28: {path.read_text().splitlines()[27].strip()}" in result
    assert "one of them is stuck" in result
    assert limits[0] <= 10, "ten times that for a rank that computes"


def test_progress_counts_what_was_done_of_what_there_is(work, monkeypatch):
    monkeypatch.setattr(journal, "NOTEBOOKS", work)
    monkeypatch.setitem(exercises.EXERCISES, "ring", RING)
    asked = 'guess = predict(\n    "ring_speed",\n    f"One process: {x} samples/s. Two?"\n)'
    sources = [asked, 'predict("ring_mb", "MB?")', 'exercise.check("ring", f)', "%magic"]
    cells = [{"cell_type": "code", "source": [text]} for text in sources]
    (work / "04_ddp.ipynb").write_text(json.dumps({"cells": cells}))

    def row():
        return list(journal.progress()[0].values())[1:]

    predict("ring_mb", "How many MB?").score(5)  # an empty prediction is none
    assert row() == ["0 of 2", 0, "0 of 1", "ring"]
    predict("ring_speed", "How many?", answer=7).score(2000)
    predict("something_else", "How many?", answer=7).score(7)
    assert row()[:2] == ["1 of 2", 0]
    predict("ring_speed", "How many, measured again?", answer=2000).score(2000)
    exercise.check("ring", ring)
    exercise.check("ring", lambda a, b: 0)  # what was solved once stays solved
    assert row() == ["1 of 2", 1, "1 of 1", ""]
