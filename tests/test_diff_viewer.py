"""The reasons beside the lines of a script's diff, and the viewer of diffs, without a browser."""

import difflib
import re
import sys

import pytest

from bootcamp.scripts import diff as compare
from bootcamp.scripts import strategies
from bootcamp.widgets import controls, diff_viewer


def list_added_blocks(script: strategies.Script) -> list[list[str]]:
    """The blocks of code lines that a script adds to its parent; the baseline is one block."""
    after, parent = compare.list_code_lines(script.path), strategies.SCRIPTS.get(script.parent)
    before = compare.list_code_lines(parent.path) if parent else []
    changes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return [after[j1:j2] for kind, *_, j1, j2 in changes if kind != "equal"]


def says_something(block: list[str]) -> bool:
    """Whether a block is more than imports and closing brackets."""
    words = [line.strip() for line in block if any(map(str.isalnum, line))]
    return not all(re.match(r"import |from |\w+,$", line) for line in words)


@pytest.mark.parametrize("script", strategies.SCRIPTS.values(), ids=lambda s: s.name)
def test_script_gives_a_reason_for_each_block_that_it_adds_and_no_other(script):
    reasons = {line: why for line, why in compare.pair_lines_with_reasons(script.path) if why}
    blocks = list_added_blocks(script)
    mute = [block for block in blocks if says_something(block) and not reasons.keys() & set(block)]
    assert not mute, "these blocks have no comment above any of their lines"
    gone = reasons.keys() - {line for block in blocks for line in block}
    assert not gone, "these lines have a comment, and are the parent's"
    for reason in reasons.values():
        assert re.fullmatch(r"[A-Z0-9`](?!.*\. ).{,108}\.", reason), f"no plain sentence: {reason}"


def test_diff_shows_the_reason_beside_the_line():
    diff = compare.script_diff("ddp")
    why = dict(zip(diff.lines, diff.reasons(), strict=True))
    assert "averages the gradients" in why["+model = DistributedDataParallel(model)"]
    assert why["-rank, world = 0, 1"] == "Was: One process: it is rank 0 of a world of 1."
    assert "averages the gradients" in diff._repr_html_()
    assert "averages the gradients" not in str(diff), "the plain diff stays a diff"
    moved = compare.script_diff("accumulate")
    why = dict(zip(moved.lines, moved.reasons(), strict=True))
    assert why["-        loss.backward()"] == "", "it has only moved"
    assert "parts before it" in why["+            loss.backward()"]
    nearest = compare.read_reasons(strategies.SCRIPTS["hsdp"].path)
    own = dict(compare.pair_lines_with_reasons(strategies.SCRIPTS["fsdp"].path))
    assert nearest["    model = models.build(args)"] == own["    model = models.build(args)"]


def test_diff_of_a_readers_script_has_comments_as_reasons_and_not_as_lines(tmp_path):
    mine, parent = tmp_path / "mine.py", tmp_path / "parent.py"
    mine.write_text("# 1. Processes\n# Why it\n# is there.\nx = '# no comment'  # beside\n")
    parent.write_text("")
    diff = compare.ScriptDiff(mine, parent)
    assert diff.lines[3:] == ["+# 1. Processes", "+x = '# no comment'"]
    assert diff.reasons()[3:] == ["", "Why it is there."]
    parent.write_text(mine.read_text().replace("no ", ""))  # the comment spoke of its line
    assert compare.ScriptDiff(mine, parent).reasons()[4:] == ["Was: Why it is there.", ""]


def test_drop_downs_choose_any_two_and_refuse_a_script_with_itself(picture):
    chosen = diff_viewer.show("ddp")
    assert all(control.description for control in chosen.values())
    for script in strategies.SCRIPTS:
        chosen["script"].value = script
        assert ("Not possible" in picture.html) == (script == "cpu"), "it has no parent"
    chosen["against"].value = "gpu"
    chosen["script"].value = "fsdp"
    assert "_train_fsdp.py: " in picture.html
    assert "added to _train_gpu.py" in picture.html
    chosen["script"].value = "gpu"
    assert "Not possible" in picture.html


def test_controls_without_widgets_show_what_they_are_called_with(monkeypatch, displayed, capsys):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert diff_viewer.show("ddp", "gpu") == {}
    assert "added to _train_gpu.py" in displayed.html
    assert "this is one choice: script 'ddp', against 'gpu'." in capsys.readouterr().out
    options = [("first", "a"), ("second", "b")]
    runs = controls.control("SelectMultiple", "runs", (), options=options)
    size = controls.steps("bucket", 25, [1, 25, 100])
    controls.follow(lambda **chosen: f"{chosen}", runs=runs, size=size)
    assert displayed.html == "{'runs': (), 'size': 25}"
