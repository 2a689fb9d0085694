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
