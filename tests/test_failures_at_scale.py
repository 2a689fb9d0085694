"""How often many GPUs fail and how often to save: formulas against a simulation of them."""

import pytest

from bootcamp.costs import failures, published

HOUR = failures.HOUR


def test_rates_that_were_published_are_per_gpu():
    """419 in 54 days on 16,384 GPUs are one in 3.1 hours; RSC-1's paper says 1.8 hours for them."""
    assert failures.mtbf_seconds(16384) / HOUR == pytest.approx(54 * 24 / 419)
    assert failures.mtbf_seconds(16384, "RSC-1") / HOUR == pytest.approx(1.8, abs=0.05)
    assert failures.mtbf_seconds(8) == 2048 * failures.mtbf_seconds(16384)
    assert all("arXiv" in row["source"] for row in published.table("failures"))
    with pytest.raises(ValueError, match="expected one of Llama 3 405B, OPT-175B"):
        failures.mtbf_seconds(8, "a run")


CASES = {
    "rare": (1200.0, 60.0, 48 * HOUR, 600.0),
    "Llama 3": (1116.0, 60.0, 3.1 * HOUR, 600.0),
    "frequent, slow to save": (1800.0, 600.0, 0.5 * HOUR, 300.0),
    "never saved before it fails": (4 * HOUR, 60.0, HOUR, 1800.0),
}


@pytest.mark.parametrize("case", CASES)
def test_formula_is_what_a_simulated_training_does(case):
    found = failures.simulate_share(*CASES[case], saves=1000)
    share = failures.effective_share(*CASES[case])
    assert found == pytest.approx(share, rel=0.05)
    assert failures.simulate_share(*CASES[case], saves=50) == failures.simulate_share(
        *CASES[case], saves=50
    ), "the same seed, the same failures"


def test_simulation_tells_a_wrong_formula():
    """Young's first order holds where failures are rare, and only there."""
    for case, near in (("rare", True), ("frequent, slow to save", False)):
        interval, *rest = CASES[case]
        first_order = 1 - failures.lost_share(interval + rest[0], *rest)
        simulated = failures.simulate_share(interval, *rest, saves=1000)
        assert (simulated == pytest.approx(first_order, rel=0.02)) == near
    without_restart = failures.effective_share(*CASES["never saved before it fails"][:3])
    simulated = failures.simulate_share(*CASES["never saved before it fails"], saves=1000)
    assert simulated != pytest.approx(without_restart, rel=0.3)


@pytest.mark.parametrize(("save", "between"), [(10, 48 * HOUR), (60, 3 * HOUR), (900, HOUR)])
@pytest.mark.parametrize("restart", [0, 1200])
def test_interval_of_daly_is_the_best_one(save, between, restart):
    given = (save, between, restart)
    best = failures.effective_share(failures.daly_interval(save, between), *given)
    others = [between * 10 ** (k / 50 - 3) for k in range(201)]
    assert best >= 0.998 * max(failures.effective_share(each, *given) for each in others)
    half, twice = (failures.daly_interval(save, between) * factor for factor in (0.5, 2))
    assert failures.effective_share(half, *given) < best > failures.effective_share(twice, *given)


def test_interval_of_young_is_dalys_where_failures_are_rare():
    rare = failures.young_interval(10, 1000 * HOUR)
    assert failures.daly_interval(10, 1000 * HOUR) == pytest.approx(rare, rel=0.01)
    assert failures.daly_interval(900, HOUR) < 0.8 * failures.young_interval(900, HOUR)
    assert failures.daly_interval(3 * HOUR, HOUR) == HOUR, "a save takes longer"
    gpus = failures.mtbf_seconds(10**9)
    assert 0 <= failures.effective_share(failures.daly_interval(60, gpus), 60, gpus, 600) < 1
