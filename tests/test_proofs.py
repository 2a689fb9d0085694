"""Each script, fault, exercise and rejection has its proof: the marks of tests say so."""

import proofs
import pytest


@pytest.mark.parametrize("mark", proofs.TO_PROVE)
def test_proofs_are_there_for_everything_and_nothing_else(mark):
    to_prove, marked = set(proofs.TO_PROVE[mark]), set(proofs.marked(mark))
    assert sorted(to_prove - marked) == [], "has no proof"
    assert sorted(marked - to_prove) == [], "is a name of nothing"


def test_rejections_are_marked():
    assert len(proofs.marked("rejects")) > 30, "the mistakes of strategy_table.py among them"


def test_lost_marks_leave_their_script_unproved(monkeypatch):
    fsdp = proofs.marked("proves")["fsdp"]
    left = {name: test for name, test in proofs.tests().items() if name not in fsdp}
    monkeypatch.setattr(proofs, "tests", lambda: left)
    assert "fsdp" not in proofs.marked("proves")
    assert proofs.row("fsdp", [proofs.NOBODY]) in proofs.page().splitlines()
