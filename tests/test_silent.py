"""Lesson 08c's silent bugs: a fix is accepted, and what looks like one is rejected.

The lesson itself asserts that the proof rejects each bug, on two ranks.
"""

import dataclasses

import pytest
import trained

from bootcamp.classroom import tasks
from bootcamp.experiments import equality
from bootcamp_lessons import exercise
from bootcamp_lessons.labs import clinic
from bootcamp_lessons.labs.silent_bugs import CASES

# what looks like a fix: pieces of the starting point -> what replaces them
LOOKS_RIGHT = {
    "silent_summed": {
        "        optimizer.step()": "        optimizer.param_groups[0]['lr'] = args.lr / 2\n"
        "        optimizer.step()"
    },
    "silent_divided": {  # right with SGD
        "        optimizer.step()": "        optimizer.param_groups[0]['lr'] = args.lr * 2\n"
        "        optimizer.step()"
    },
    "silent_norms": {
        "            gradient /= copies.size()": "            gradient /= copies.size()\n"
        "            if parameter.shape == (64,) and not isinstance(parameter, DTensor):\n"
        '                dist.all_reduce(gradient, group=mesh["tensor"].get_group())\n'
        "                gradient /= 2"
    },
    "silent_resumed": {
        "if not isinstance(parameter, DTensor):\n        optimizer.state": "if "
        "isinstance(parameter, DTensor):\n        optimizer.state"
    },
}


@pytest.fixture
def written(monkeypatch, tmp_path):
    """The reader's copy of a case, with pieces replaced."""
    monkeypatch.setattr(tasks, "WORK", tmp_path)

    def write(name, changes):
        path = CASES[name].path
        path.write_text(clinic.replace_once(CASES[name].starting_point(), changes))
        return path

    return write


@pytest.mark.parametrize("name", LOOKS_RIGHT)
def test_what_only_looks_like_a_fix_is_rejected(name, written):
    with trained.shared(), pytest.raises(equality.NotTheSame):
        CASES[name].check_script(written(name, LOOKS_RIGHT[name]))


@pytest.mark.solves(*CASES)
@pytest.mark.parametrize("name", CASES)
def test_fix_is_accepted(name, written, monkeypatch):
    """With both optimizers one of them; the scripts themselves are proved with both elsewhere."""
    if name != "silent_clipped":
        monkeypatch.setattr(equality, "PROVEN_WITH", ("sgd",))
    written(name, {}).write_text(CASES[name].solution_path().read_text())
    with trained.shared():
        result = exercise.check(name)
        if name == "silent_divided":
            on_four = dataclasses.replace(CASES[name], ranks=4)
            on_four.proof(on_four.solution_path()).check()
            assert on_four.proof(on_four.broken()).failed
    assert result.solved, result
