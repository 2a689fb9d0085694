"""What the notebooks use beside runs: predictions, exercises and their checkers, tables."""

import ast
import importlib
import json
import re
import sys

import lessons
import nbformat
import pytest
import trained

from bootcamp.classroom import journal, tasks
from bootcamp.classroom.predict import predict
from bootcamp.experiments import equality
from bootcamp.launcher import launch
from bootcamp.paths import NOTEBOOKS, ROOT
from bootcamp.records import summary
from bootcamp.scripts import strategies
from bootcamp.scripts.variants import variant
from bootcamp.table import Table
from bootcamp.units import number
from bootcamp_lessons import exercise, exercises
from bootcamp_lessons.labs import silent_bugs


def test_an_empty_prediction_says_so_and_raises_nothing():
    guess = predict("speed", "How fast?", unit="samples/s")
    assert "none yet" in str(guess)
    score = guess.score(100.0)
    assert score.right is None
    assert "100.0 samples/s" in str(score)
    assert "no prediction" in str(score)


@pytest.mark.parametrize(("answer", "right"), [(100, True), (120, True), (126, False), (10, False)])
def test_a_prediction_is_scored(answer, right):
    score = predict("speed", "How fast?", unit="samples/s", answer=answer).score(100.0)
    assert score.right is right
    assert f"You said {number(answer)} samples/s" in str(score)


@pytest.mark.parametrize("answer", [150, "150", " 150 ms", "1.5e2", "150.0"])
def test_a_prediction_may_be_a_text_with_its_unit(answer):
    assert predict("speed", "How long?", unit="ms", answer=answer).answer == 150
    assert predict("speed", "How many?", answer="1,500").answer == 1500
    assert predict("speed", "How many?", answer=0).score(0).right


@pytest.mark.parametrize(
    "answer", [-5, float("nan"), float("inf"), "fast", "", "150 s", "1,50", "-5", True, [150]]
)
def test_what_is_no_amount_is_refused_in_one_sentence_and_raises_nothing(answer):
    guess = predict("speed", "How long?", unit="ms", answer=answer)
    assert str(guess) == (
        f"How long?\nYour prediction: {answer!r} is not an amount such as 120 ms."
    )
    assert guess.score(100).right is None


# those whose solution is a script of the family; the others are tested with their lessons
EXERCISES = [
    task
    for task in exercises.EXERCISES.values()
    if isinstance(task, tasks.ScriptTask) and task.solution in strategies.SCRIPTS
    if not isinstance(task, silent_bugs.Silent)  # test_silent.py
]


# where other tests prove a solution in another setting than the checker's: one training for both
PROVED_ELSEWHERE = {
    "fsdp": {"ranks": 4},
    "hsdp": {"ranks": 4, "shard": 2},
    "striped": {"model": "striped-lstm"},
    "ep": {"model": "moe"},
}


@pytest.mark.solves(*(task.name for task in EXERCISES))
@pytest.mark.parametrize("task", EXERCISES, ids=lambda e: e.name)
def test_starting_point_is_rejected_and_solution_accepted(task, tmp_path, monkeypatch, request):
    """The solution is a script of the family: the checker judges the runs that prove that one."""
    if task.name != "split_the_blocks":  # whose plan is that of a GPT
        request.getfixturevalue("quick_proofs")
    attempt = tmp_path / f"{task.name}.py"
    attempt.write_text(task.starting_point())
    result = exercise.try_out(task, attempt)
    assert not result.solved
    assert "Not solved yet" in str(result)
    assert task.hint in str(result)

    def prove(path, ranks, **_):
        assert path == strategies.SCRIPTS[task.solution].path
        return trained.proved(
            task.solution, **{"ranks": ranks, **PROVED_ELSEWHERE.get(task.solution, {})}
        )

    monkeypatch.setattr(equality, "prove", prove)
    with trained.shared():
        result = exercise.try_out(task, task.solution_path())
    assert result.solved, result
    assert "Solved" in str(result)


@pytest.mark.parametrize("task", EXERCISES, ids=lambda e: e.name)
def test_starting_point_is_derived_from_the_scripts(task):
    text = task.starting_point()
    solution = task.solution_path().read_text()
    assert solution == strategies.SCRIPTS[task.solution].path.read_text()
    for line in task.takes_out:
        assert line in solution
        assert line not in text
    assert text.count(tasks.PLACE) == (1 if task.takes_out else 0)
    assert task.task in text
    compile(text, task.name, "exec")


@pytest.mark.usefixtures("quick_proofs")
def test_a_reader_goes_through_an_exercise(monkeypatch, tmp_path):
    monkeypatch.setattr(tasks, "WORK", tmp_path)
    assert "Not started" in str(exercise.check("first_run"))
    assert "Wrote" in exercise.start("first_run")
    assert "still the starting point" in str(exercise.check("first_run"))
    assert "+        optimizer.step()" in str(exercise.solution("first_run"))
    path = exercise.find("first_run").path
    path.write_text(path.read_text().replace(tasks.PLACE, "optimizer.step()  # mine"))
    assert "Your script is" in exercise.start("first_run"), "it must not overwrite"
    assert "mine" in path.read_text()
    assert exercise.check("first_run").solved
    with pytest.raises(KeyError, match="choose one of first_run"):
        exercise.find("nothing")


def begun(monkeypatch, tmp_path, line):
    """The script of first_run with this line at its gap."""
    monkeypatch.setattr(tasks, "WORK", tmp_path)
    monkeypatch.setattr(journal, "WORK", tmp_path)
    exercise.start("first_run")
    path = exercise.find("first_run").path
    path.write_text(path.read_text().replace(tasks.PLACE, line))
    return path


def test_a_script_that_python_cannot_read_is_told_in_one_sentence(monkeypatch, tmp_path):
    path = begun(monkeypatch, tmp_path, "optimizer.step(")
    lines = [line.strip() for line in path.read_text().splitlines()]
    number = lines.index("optimizer.step(") + 1
    result = str(exercise.check("first_run"))
    assert f"Seen: line {number} of {path}: '(' was never closed: optimizer.step(" in result
    assert "Hint: " in result
    assert re.search(r"^- +optimizer\.step\($", str(exercise.solution("first_run")), re.MULTILINE)


def test_a_loop_that_never_steps_ends_soon_and_names_its_line(monkeypatch, tmp_path, capsys):
    path = begun(monkeypatch, tmp_path, "while True: pass")
    limits = []

    def hangs(script, ranks, **how):
        limits.append(how)
        stack = f'rank 0, 0 steps done:\n  File "{script}", line 28 in <module>\n'
        message = "the ranks hang: no rank has finished a step for 60 s. If a step may take so long"
        raise launch.RunHung(summary.failure(None, "hang", message, stack))

    monkeypatch.setattr(tasks.equality, "prove", hangs)
    result = str(exercise.check("first_run"))
    assert f"Running {path} on 1 CPU rank(s) ..." in capsys.readouterr().out
    assert "Seen: an error.\nthe ranks hang: no rank has finished a step for 60 s\n" in result
    assert f"rank 0 is in line 28: {path.read_text().splitlines()[27].strip()}" in result
    assert "one of them is stuck" in result
    assert limits[0]["options"].hang_seconds <= 10, "ten times that for a rank that computes"


def test_an_error_that_the_index_knows_is_explained(monkeypatch, tmp_path):
    begun(monkeypatch, tmp_path, "optimizer.step()")

    def fails(script, ranks, **how):
        said = f'  File "{script}", line 8, in <module>\nRuntimeError: Distributed package '
        error = summary.failure(1, "raised", "rank 1 failed", f"{said}doesn't have NCCL built in")
        raise launch.RankFailed(error)

    monkeypatch.setattr(tasks.equality, "prove", fails)
    result = str(exercise.check("first_run"))
    assert "Seen: an error.\nRuntimeError: Distributed package doesn't have NCCL built in" in result
    assert "This was rank 1, in line 8: " in result
    assert 'Use "gloo" for CPU ranks' in result


def test_a_variant_of_a_line_that_is_gone_is_an_error():
    with pytest.raises(ValueError, match="'model = Nothing' 0 times, not once"):
        variant("ddp", "gone", {"model = Nothing": ""})


def test_numbers_are_readable():
    expected = {
        1234567: "1,234,567",
        1234.5: "1,234",
        0.5: "0.500",
        12.345: "12.35",
        1e-7: "1.00e-07",
        2e9: "2,000,000,000",
        3.5e9: "3.50e+09",
        None: "-",
        True: "True",
    }
    assert {value: number(value) for value in expected} == {
        **expected,
        2e9: "2.00e+09",
        12.345: number(12.345),
    }


def test_a_table_reads_in_text_and_html():
    table = Table([{"run": "a<b", "s": 1.5}, {"run": "c", "s": None}], "caption")
    assert str(table).splitlines()[0] == "caption"
    assert "a&lt;b" in table._repr_html_()
    assert table.column("run") == ["a<b", "c"]
    assert str(Table([], "nothing")).startswith("nothing")


APPENDIX = [each.notebook for each in lessons.notebooks().values() if each.appendix]
LESSONS = [path for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")) if path not in APPENDIX]
EVERYWHERE = ["The question", "The idea", "Predict", "Exercise", "When to use it and when not"]
OF_STRATEGIES = ["What changes", "Run it", "Read the measurement", "Prove it", "Break it"]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_has_its_parts(lesson):
    """Three predictions and two exercises at least, and the headings in their order."""
    questions, checked = journal.list_things_to_do(lesson)
    assert len(questions) >= 3
    assert len(checked) >= 2
    assert set(checked) <= set(exercises.EXERCISES)
    cells = json.loads(lesson.read_text())["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    found = re.findall(r"^## (.+)$", "\n".join(texts), re.MULTILINE)
    found = ["Exercise" if name == "Exercises" else name for name in found]
    wanted = EVERYWHERE + (OF_STRATEGIES if lesson.stem < "12" else [])
    assert [name for name in found if name in EVERYWHERE] == EVERYWHERE
    assert set(wanted) <= set(found)
    assert found[-1] == "Sources"


def test_the_appendix_asks_for_nothing_and_comes_last():
    assert sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))[-1:] == APPENDIX
    assert journal.list_things_to_do(APPENDIX[0]) == ([], [])
    assert APPENDIX[0].stem not in journal.progress().column("lesson")


def test_every_exercise_is_in_a_lesson():
    named = {name for lesson in LESSONS for name in journal.list_things_to_do(lesson)[1]}
    assert set(exercises.EXERCISES) - named == set()


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_every_exercise_says_how_to_see_its_solution(lesson):
    """By its name, or by the part of the name that all cases of a lesson share, and three dots."""
    cells = json.loads(lesson.read_text())["cells"]
    words = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    shown = re.findall(r'exercise\.solution\("(\w+)(\.{3})?"\)', words)
    _, checked = journal.list_things_to_do(lesson)
    assert [
        name
        for name in checked
        if not any(name.startswith(said) if dots else name == said for said, dots in shown)
    ] == []


def stored_scores(cells):
    """The cells that are stored with the measurement that answers a prediction."""
    stored = [cell for cell in cells if cell["cell_type"] == "code" and cell["outputs"]]
    return [cell["id"] for cell in stored if re.search(r"\.score\(", "".join(cell["source"]))]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_no_stored_output_gives_a_prediction_away(lesson):
    cells = json.loads(lesson.read_text())["cells"]
    assert stored_scores(cells) == []
    scored = [cell for cell in cells if ".score(" in "".join(cell["source"])]
    scored[-1]["outputs"] = [{"text": "Measured: 8"}]
    assert stored_scores(cells) == [scored[-1]["id"]], "the search finds one"


@pytest.mark.parametrize("tool", ["notebooks", "course", "claims"])
@pytest.mark.parametrize("wrong", ["99", "4", ""])
def test_a_name_of_no_lesson_is_refused_before_anything_runs(tool, wrong, monkeypatch, capsys):
    command = importlib.import_module(tool)
    monkeypatch.setattr(sys, "argv", [tool, "04", wrong])
    assert command.main() == 2
    said = capsys.readouterr().out
    assert said.startswith(f"There is no lesson {wrong!r}: there are 00, 01, 02, 02b,")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("tool", "logs", "more"),
    [("course", "file", []), ("course", "", ["--expected", "file"]), ("claims", "file", [])],
)
def test_what_can_not_be_kept_is_not_run(tool, logs, more, tmp_path, monkeypatch, capsys):
    import course

    command = importlib.import_module(tool)
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "LOGS", tmp_path / logs)
    monkeypatch.setattr(course.Lesson, "run", lambda lesson: pytest.fail("it ran"))
    monkeypatch.setattr(sys, "argv", [tool, "04_", *more])
    assert command.main() == 2
    said = capsys.readouterr().out
    assert "file" in said
    assert "can't be written: " in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("tool", ["course", "claims"])
def test_no_lesson_is_run_after_an_interrupt(tool, tmp_path, monkeypatch):
    import course

    ran = []

    def interrupted(lesson):
        ran.append(lesson.path.stem)
        lesson.error = "interrupted"

    command = importlib.import_module(tool)
    monkeypatch.setattr(command, "LOGS", tmp_path)
    monkeypatch.setattr(course.Lesson, "run", interrupted)
    monkeypatch.setattr(course.Lesson, "save", lambda lesson: None)
    monkeypatch.setattr(course, "report", lambda *_: tmp_path)
    monkeypatch.setattr(sys, "argv", [tool, "00", "01"])
    assert command.main() == 1
    assert ran == ["00_start_here"]


def claims_not_shown(code: str) -> list[str]:
    """The names of claims whose verdict a cell throws away: Jupyter shows its last line alone."""
    cell = ast.parse(re.sub("^[%!].*", "", code, flags=re.MULTILINE))  # magics are no Python
    calls = [
        line.value
        for line in ast.walk(cell)
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Call) and line != cell.body[-1]
    ]
    return [ast.unparse(c.args[0]) for c in calls if ast.unparse(c.func).startswith("claim.")]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_every_claim_is_shown(lesson):
    cells = json.loads(lesson.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert [name for cell in code for name in claims_not_shown(cell)] == []
    hidden = "claim.equal('a', 1, 1)\nif True:\n    claim.equal('b', 1, 1)"
    assert claims_not_shown(hidden) == ["'a'", "'b'"], "the search finds one"
    assert claims_not_shown(f"display({hidden.splitlines()[0]})\nclaim.equal('c', 1, 1)") == []


def test_new_words_keep_the_outputs_and_new_code_has_to_run(tmp_path):
    sys.path.insert(0, str(ROOT / "tools"))
    import notebooks

    source, stored = tmp_path / "99_x.py", tmp_path / "99_x.ipynb"
    source.write_text('# %% [markdown]\n# Old.\n\n# %% tags=["nbval-check-output"]\nprint(1)\n')
    notebook = notebooks.from_source(source)
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", text="1\n")]
    nbformat.write(notebook, stored)
    source.write_text(source.read_text().replace("Old", "New"))
    fresh = notebooks.with_stored_outputs(notebooks.from_source(source), stored)
    assert fresh.cells[0].source == "New."
    assert fresh.cells[1].outputs[0].text == "1\n"
    source.write_text(source.read_text().replace("print(1)", "print(2)"))
    with pytest.raises(ValueError, match="has changed, run it"):
        notebooks.with_stored_outputs(notebooks.from_source(source), stored)
