"""Sharded strategies: collectives and bytes of a step, who sends what to whom, what is refused.

That they train what the baseline trains: test_equality.py. What ranks hold: test_run_bytes.py.
"""

import collections
import os
import subprocess
import sys

import pytest
from trained import trained

from bootcamp.costs import model_shapes, sharding
from bootcamp.launcher import launch, simulated_hosts
from bootcamp.paths import SRC
from bootcamp.train import sent_bytes
from bootcamp_lessons import excerpts, sharding_tables
from bootcamp_lessons.labs import hsdp_lab

LINUX = pytest.mark.skipif(
    not sent_bytes.count_sent_bytes(), reason="Linux counts what connections send"
)
WITH_HOSTS = pytest.mark.skipif(
    simulated_hosts.why_not() is not None, reason="no hosts on this machine"
)


def count_collectives(script: str, name: str = "", changes=None, **flags) -> dict[str, int]:
    """Count how often rank 0 of two calls each kind of collective in one step."""
    script = sharding_tables.make_counting_script(script, changes, name)
    run = trained(script, 2, steps=4, global_batch=8, **flags)
    counts = collections.Counter()
    for (kind, _), count in run.collective_counts().items():
        counts[kind] += count
    return counts


def test_units_of_fsdp_are_the_parts_and_the_head_stays_gathered():
    """Each unit reduces its gradients once. All but the head are gathered a second time."""
    blocks = model_shapes.GPT["tiny"]["layers"]
    counts = count_collectives("fsdp")
    assert counts["reduce-scatter"] == blocks + 2
    assert counts["all-gather"] == 2 * (blocks + 1) + 1
    left = {"for part in model[:-1]:": "for part in model[:-2]:"}
    less = count_collectives("fsdp", "fsdp_one_part_left", left)
    assert less["all-gather"] == 2 * (blocks + 1), "the root has it, and is gathered once"


def test_accumulated_gradients_are_reduced_once():
    hidden = model_shapes.MLP["tiny"]["layers"]
    counts = count_collectives("fsdp_in_practice", model="mlp", micro_batches=4)
    assert counts["reduce-scatter"] == hidden + 2
    assert counts["all-gather"] == 4 * (2 * (hidden + 1) + 1)


IN_16 = {"gather_dtype": "bfloat16", "micro_batches": 1}
SENDS = {  # flags, bytes of a gathered number, arguments of sharding.collectives
    "reduced in 32 bits": (IN_16, 2, {"number": 2}),
    "reduced in 16 bits": ({**IN_16, "reduce_dtype": "bfloat16"}, 2, {"number": 1}),
    "kept by two": (
        {"reshard": 2, "micro_batches": 3},
        4,
        {"reshard": 2, "micro_batches": 3, "once": True},
    ),
}


@LINUX
@pytest.mark.parametrize("name", SENDS)
def test_fsdp_sends_the_bytes_of_the_formula(name):
    """Within 1 %; the formulas of the other two are further off."""
    large = {"model": "mlp", "size": "small", "steps": 4, "global_batch": 12}
    run = trained("fsdp_in_practice", 4, **large, **SENDS[name][0])
    for other, (_, width, how) in SENDS.items():
        formula = sharding_tables.calculate_sent_bytes("fsdp", "mlp", "small", 4, width, **how)
        for rank in run.ranks:
            near = rank["sent_bytes_per_step"] == pytest.approx(formula, rel=0.01)
            assert near == (other == name)


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


@pytest.mark.parametrize(("script", "flag"), [("hsdp", "shard"), ("fsdp_in_practice", "reshard")])
def test_shard_that_does_not_divide_the_ranks_is_refused(script, flag):
    with pytest.raises(launch.RunRefused) as error:
        launch.launch(script, 4, device="cpu", quiet=True, **{flag: 3})
    assert f"-{flag}" in str(error.value)
    assert "4 ranks do not divide into groups of 3. Give one of 1, 2, 4." in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.slow
def test_ranks_of_a_host_are_not_guessed():
    """As under a launcher that sets no LOCAL_WORLD_SIZE."""
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "2"}
    environment.pop("LOCAL_WORLD_SIZE", None)
    command = [sys.executable, str(SRC / "_train_hsdp.py"), "--device", "cpu"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--shard: this launcher does not say how many ranks are on a host" in done.stderr


def test_papers_figure_of_zero_is_reproduced():
    """ZeRO, figure 1: 7.5 B parameters on 64 ranks, in GB."""
    published = {0: 120, 1: 31.4, 2: 16.6, 3: 1.9}
    for stage, gigabytes in published.items():
        found = sum(sharding.rank_bytes(7.5e9, 64, stage).values()) / 1e9
        assert found == pytest.approx(gigabytes, rel=0.015)


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
