"""The reasons beside the lines of a script's diff, and the viewer of diffs, without a browser."""

import difflib
import re

import pytest

from bootcamp.scripts import diff as compare
from bootcamp.scripts import strategies
from bootcamp.widgets import diff_viewer

SCRIPTS = list(strategies.SCRIPTS.values())


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


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.name)
def test_script_gives_a_reason_for_each_block_that_it_adds_and_no_other(script):
    reasons = {line: why for line, why in compare.pair_lines_with_reasons(script.path) if why}
    blocks = list_added_blocks(script)
    mute = [block for block in blocks if says_something(block) and not reasons.keys() & set(block)]
    assert not mute, "these blocks have no comment above any of their lines"
    gone = reasons.keys() - {line for block in blocks for line in block}
    assert not gone, "these lines have a comment, and are the parent's"
    if script.name == "cpu":
        assert set(blocks[0]) == set(reasons), "every step of the baseline has one"
    for reason in reasons.values():
        assert re.fullmatch(r"[A-Z0-9`](?!.*\. ).{,108}\.", reason), f"no plain sentence: {reason}"


def test_line_has_the_reason_of_the_nearest_ancestor():
    found = compare.read_reasons(strategies.SCRIPTS["hsdp"].path)
    own = dict(compare.pair_lines_with_reasons(strategies.SCRIPTS["fsdp"].path))
    model = "    model = models.build(args)"
    assert found[model] == own[model]
    assert "on the CPU" not in found[model]
    assert "on the CPU" in found[model.strip()], "the baseline's line"


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


def test_diff_of_a_readers_script_has_comments_as_reasons_and_not_as_lines(tmp_path):
    mine, parent = tmp_path / "mine.py", tmp_path / "parent.py"
    mine.write_text("# 1. Processes\n# Why it\n# is there.\nx = '# no comment'  # beside\n")
    parent.write_text("")
    diff = compare.ScriptDiff(mine, parent)
    assert diff.lines[3:] == ["+# 1. Processes", "+x = '# no comment'"]
    assert diff.reasons()[3:] == ["", "Why it is there."]
    mine.write_text(strategies.find("cpu").read_text() + "print('mine')\n")
    shown = compare.ScriptDiff(mine, strategies.find("cpu"))._repr_html_()
    assert "print(&#x27;mine&#x27;)" in shown
    assert ">why<" not in shown


@pytest.mark.parametrize("script", strategies.SCRIPTS)
def test_viewer_compares_any_two_and_refuses_a_script_with_itself(script):
    for against in (diff_viewer.PARENT, "ddp", "cpu"):
        if script == against or (script, against) == ("cpu", diff_viewer.PARENT):
            with pytest.raises(ValueError, match="differ from itself|is the baseline"):
                diff_viewer.draw(script, against)
        else:
            assert "<table" in diff_viewer.draw(script, against)


def test_drop_downs_choose(picture):
    controls = diff_viewer.show("ddp")
    controls["script"].value = "fsdp"
    assert "_train_fsdp.py: " in picture.html
    assert "added to _train_ddp.py" in picture.html
    controls["against"].value = "gpu"
    assert "added to _train_gpu.py" in picture.html
    controls["script"].value = "gpu"
    assert "Not possible" in picture.html
    assert all(control.description for control in controls.values())
