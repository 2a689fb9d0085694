"""Each fault once: see faults.py. `make drills` runs each ten times."""

import faults
import pytest


@pytest.mark.proves(*faults.FAULTS)
@pytest.mark.drill
@pytest.mark.parametrize("name", faults.FAULTS)
def test_fault(name):
    try:
        faults.FAULTS[name]()
    except faults.CannotProvoke as reason:
        pytest.skip(str(reason))
