"""Sharded strategies: what crosses the link of hosts, and what a rank needs to initialise.

That they train what the baseline trains: test_equality.py. What they hold and call, and what each
rank sends: test_run_bytes.py.
"""

import os

import pytest
from trained import trained

from bootcamp.costs import sharding
from bootcamp.launcher import simulated_hosts
from bootcamp_lessons import excerpts
from bootcamp_lessons.labs import hsdp_lab

WITH_HOSTS = pytest.mark.skipif(
    simulated_hosts.why_not() is not None, reason="no hosts on this machine"
)


@WITH_HOSTS
@pytest.mark.parametrize("name", hsdp_lab.SCRIPTS)
def test_link_of_two_hosts_carries_the_bytes_of_the_formula(name):
    """What host0's two ranks send to host1's: of HSDP only the gradients of a shard."""
    script, flags = hsdp_lab.SCRIPTS[name]
    flags = {**flags, **hsdp_lab.SETTING, "hosts": 2, "link": None, "steps": hsdp_lab.STEPS}
    counted = hsdp_lab.crossing_bytes(trained(script, 4, **flags))
    for other in hsdp_lab.SCRIPTS:
        near = counted == pytest.approx(hsdp_lab.predict_link_bytes(other), rel=0.02)
        assert near == (other == name)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="Linux bounds the memory")
@pytest.mark.parametrize("way", ["meta", "complete"])
def test_model_that_no_rank_could_hold_is_initialised_in_shards(way):
    run = trained(excerpts.SNIPPETS / "initialise_sharded.py", 4, way=way, device="cpu")
    for rank in excerpts.parse_printed(run):
        assert rank["room"] < 0.7 * rank["model"]
        if way == "complete":
            assert "can't allocate memory" in rank["error"]
            continue
        peak = rank["model"] / 4 + rank["largest"]  # one unit after another
        assert rank["grown"] == pytest.approx(peak, rel=0.05)
        assert rank["held"] == rank["model"] / 4


@pytest.mark.parametrize(
    ("strategy", "how", "ring", "gloo"),
    [
        ("ddp", {}, 1.5, 1.5),
        ("ddp", {"number": 0.5}, 0.75, 0.75),
        ("fsdp", {}, 2.25, 3.0),
        ("fsdp", {"root": 0.5}, 1.875, 2.625),
        ("fsdp", {"keep_gathered": True}, 1.5, 2.25),
        ("zero1", {}, 1.5, 2.25),
        ("hsdp", {"shard": 2}, 1.0, 1.0),
        ("hsdp", {"shard": 2, "number": 0}, 0, 0),  # its gathers stay inside a host
    ],
)
def test_bytes_between_two_hosts_of_two_are_those_by_hand(strategy, how, ring, gloo):
    for factors, expected in ((sharding.RING, ring), (sharding.GLOO, gloo)):
        assert sharding.link_bytes(strategy, 1.0, 4, 2, factors, **how) == expected
    assert sharding.link_bytes(strategy, 1.0, 4, 1, sharding.RING, **how) == 0
