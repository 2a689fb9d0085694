"""Lesson 08c's silent bugs: no curve shows them, the proof rejects each, and a fix is accepted."""

import pytest

from bootcamp.classroom import tasks
from bootcamp.experiments import equality
from bootcamp_lessons import exercise
from bootcamp_lessons.labs.silent_bugs import CASES

# what looks like a fix: pieces of the starting point -> what replaces them
LOOKS_RIGHT = {
    "silent_summed": {
        "        optimizer.step()": "        optimizer.param_groups[0]['lr'] = args.lr / 2\n"
        "        optimizer.step()"
    },
    "silent_divided": {"/= args.micro_batches\n": "*= args.micro_batches\n"},
    "silent_clipped": {
        "        torch.nn.utils.clip": "        norm = norm.full_tensor()\n"
        "        dist.all_reduce(norm, group=pipe.get_group())\n        torch.nn.utils.clip"
    },
    "silent_norms": {
        "            gradient /= copies.size()": "            gradient /= copies.size()\n"
        "            if parameter.shape == (64,) and not isinstance(parameter, DTensor):\n"
        '                dist.all_reduce(gradient, group=mesh["tensor"].get_group())\n'
        "                gradient /= 2"
    },
    "silent_copies": {
        "        optimizer.step()": "        for parameter in model.parameters():\n"
        "            if not isinstance(parameter, DTensor):\n"
        "                dist.broadcast(parameter.data, group=copies.get_group(), group_src=0)\n"
        "        optimizer.step()"
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

    def write(name, changes=None):
        path = CASES[name].path
        path.unlink(missing_ok=True)
        exercise.start(name)
        text = path.read_text()
        for old, new in (changes or {}).items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path.write_text(text)
        return path

    return write


@pytest.mark.solves(*CASES)
@pytest.mark.parametrize("name", CASES)
def test_the_proof_rejects_each_with_sgd(name, written):
    assert CASES[name].proof(written(name)).failed


@pytest.mark.parametrize("name", CASES)
def test_what_only_looks_like_a_fix_is_rejected(name, written):
    with pytest.raises(equality.NotTheSame):
        CASES[name].check_script(written(name, LOOKS_RIGHT[name]))


@pytest.mark.parametrize("name", CASES)
def test_a_fix_is_accepted(name, written, monkeypatch):
    """With both optimizers one of them; the scripts themselves are proved with both elsewhere."""
    if name != "silent_clipped":
        monkeypatch.setattr(equality, "PROVEN_WITH", ("sgd",))
    written(name).write_text(CASES[name].solution_path().read_text())
    result = exercise.check(name)
    assert result.solved, result
