"""The script diff viewer and the reasons beside the lines, without a browser."""

import difflib
import re

import pytest

from bootcamp.scripts import diff as compare
from bootcamp.scripts import strategies
from bootcamp.widgets import diff_viewer

SCRIPTS = list(strategies.SCRIPTS.values())


def added_blocks(script: strategies.Script) -> list[list[str]]:
    """The blocks of code lines that a script adds to its parent; the baseline is one block."""
    after = compare.list_code_lines(script.path)
    before = (
        compare.list_code_lines(strategies.SCRIPTS[script.parent].path) if script.parent else []
    )
    changes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return [after[j1:j2] for kind, *_, j1, j2 in changes if kind != "equal"]


def says_something(block: list[str]) -> bool:
    """Whether a block is more than imports and closing brackets."""
    words = [line.strip() for line in block if any(map(str.isalnum, line))]
    return not all(re.match(r"import |from |\w+,$", line) for line in words)


def own_reasons(script: strategies.Script) -> dict[str, str]:
    """The lines of a script with a comment above them, and these comments."""
    return {line: why for line, why in compare.pair_lines_with_reasons(script.path) if why}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.name)
def test_every_changed_block_has_a_comment_and_only_its_news_have_one(script):
    reasons_here, blocks = set(own_reasons(script)), added_blocks(script)
    mute = [block for block in blocks if says_something(block) and not reasons_here & set(block)]
    assert not mute, "these blocks have no comment above any of their lines"
    gone = reasons_here - {line for block in blocks for line in block}
    assert not gone, "these lines have a comment, and are the parent's"


def test_every_step_of_the_baseline_has_a_reason():
    (lines,) = added_blocks(strategies.SCRIPTS["cpu"])
    assert set(lines) == set(own_reasons(strategies.SCRIPTS["cpu"]))


def test_a_line_has_the_reason_of_the_nearest_ancestor():
    hsdp, model = strategies.SCRIPTS["hsdp"], "    model = models.build(args)"
    assert model not in own_reasons(hsdp)
    assert compare.read_reasons(hsdp.path)[model] == own_reasons(strategies.SCRIPTS["fsdp"])[model]
    assert "on the CPU" not in compare.read_reasons(hsdp.path)[model]
    assert "on the CPU" in compare.read_reasons(hsdp.path)[model.strip()], "the baseline's line"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.name)
def test_a_reason_is_one_plain_sentence(script):
    for line, reason in own_reasons(script).items():
        assert reason, line
        assert reason.endswith("."), reason
        assert re.match(r"[A-Z0-9`]", reason), reason
        assert len(reason) <= 110, reason
        assert ". " not in reason, f"more than one sentence: {reason}"


def test_the_diff_shows_the_reason_beside_the_line():
    diff = compare.script_diff("ddp")
    why = dict(zip(diff.lines, diff.reasons(), strict=True))
    assert "averages the gradients" in why["+model = DistributedDataParallel(model)"]
    assert why["-rank, world = 0, 1"] == "Was: One process: it is rank 0 of a world of 1."
    assert "averages the gradients" in diff._repr_html_()
    assert "averages the gradients" not in str(diff), "the plain diff stays a diff"
    assert "+import torch.distributed as dist" in str(diff)


def test_a_line_that_only_moved_is_not_called_gone():
    diff = compare.script_diff("accumulate")
    why = dict(zip(diff.lines, diff.reasons(), strict=True))
    assert why["-        loss.backward()"] == ""
    assert "parts before it" in why["+            loss.backward()"]


def test_comments_are_reasons_and_no_lines_of_the_diff(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("# 1. Processes\n# Why it\n# is there.\nx = '# no comment'  # beside\n")
    parent = tmp_path / "parent.py"
    parent.write_text("")
    diff = compare.ScriptDiff(mine, parent)
    assert diff.lines[3:] == ["+# 1. Processes", "+x = '# no comment'"]
    assert diff.reasons()[3:] == ["", "Why it is there."]


def test_a_script_of_the_reader_is_shown_without_reasons(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(strategies.find("cpu").read_text() + "print('mine')\n")
    shown = compare.ScriptDiff(mine, strategies.find("cpu"))._repr_html_()
    assert "print(&#x27;mine&#x27;)" in shown
    assert ">why<" not in shown


@pytest.mark.parametrize("script", strategies.SCRIPTS)
def test_the_viewer_compares_any_two(script):
    for against in {diff_viewer.PARENT, "ddp", "cpu"} - {
        script,
        diff_viewer.PARENT if script == "cpu" else "",
    }:
        assert "<table" in diff_viewer.draw(script, against)


def test_the_viewer_says_why_not():
    with pytest.raises(ValueError, match="differ from itself"):
        diff_viewer.draw("ddp", "ddp")
    with pytest.raises(ValueError, match="is the baseline"):
        diff_viewer.draw("cpu")


def test_the_drop_downs_choose(picture):
    controls = diff_viewer.show("ddp")
    controls["script"].value = "fsdp"
    assert "_train_fsdp.py: " in picture.html
    assert "added to _train_ddp.py" in picture.html
    controls["against"].value = "gpu"
    assert "added to _train_gpu.py" in picture.html
    controls["script"].value = "gpu"
    assert "Not possible" in picture.html
    assert all(control.description for control in controls.values())
