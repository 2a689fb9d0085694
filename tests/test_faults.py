"""Each fault once: see faults.py. `make drills` runs each ten times, on an idle machine."""

import os

import faults
import pytest


@pytest.mark.proves(*faults.FAULTS)
@pytest.mark.drill
@pytest.mark.parametrize("name", faults.FAULTS)
def test_fault(name):
    try:
        seconds = faults.FAULTS[name]()
    except faults.CannotProvoke as reason:
        pytest.skip(str(reason))
    assert seconds <= faults.FAULTS[name].seconds or "BOOTCAMP_DRILLS" not in os.environ
