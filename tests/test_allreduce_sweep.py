"""What a collective costs: the fit finds what was put in, and the sweep runs."""

import pytest
from figures import bent, straight
from records import HELD_OUT, SIZES, make_sweep_rows, write_sweep

from bootcamp import machine, paths
from bootcamp.costs import alpha_beta
from bootcamp_lessons import allreduce_sweep


@pytest.fixture
def make(tmp_path):
    """make(straight, ranks=2) -> a sweep in a folder of its own; see records.write_sweep."""
    return lambda cost=straight, **how: write_sweep(tmp_path / f"{how}", cost, **how)


@pytest.mark.parametrize(("ranks", "factor"), [(1, 0), (2, 1), (4, 1.5), (8, 1.75)])
def test_bandwidths_are_those_of_nccl_tests(ranks, factor):
    """doc/PERFORMANCE.md of NVIDIA/nccl-tests: algbw = S/t, busbw = algbw * 2(n-1)/n."""
    found = alpha_beta.bandwidths(1_000_000, 0.001, ranks)
    assert found["algorithm_bandwidth_bytes_per_second"] == pytest.approx(1e9)
    assert found["bus_bandwidth_bytes_per_second"] == pytest.approx(factor * 1e9)


def wiggling(size):
    """Errors of ten per cent up and down."""
    return straight(size) * (1 + 0.1 * (-1) ** sorted(SIZES + HELD_OUT).index(size))


def uncut(size):
    """Sizes too small to be cut among ranks are cheaper."""
    return straight(size) * (1 if size >= alpha_beta.SMALLEST_BYTES else 0.3)


@pytest.mark.parametrize(
    ("cost", "knee", "betas"),
    [
        (straight, None, (0.5e-9, 0.5e-9)),
        (bent, 2**20, (0.1e-9, 0.9e-9)),
        (wiggling, None, (0.5e-9, 0.5e-9)),
        (uncut, None, (0.5e-9, 0.5e-9)),
    ],
)
def test_fit_finds_alpha_both_slopes_and_the_knee(cost, knee, betas):
    rows, off = make_sweep_rows(cost), 0.05 if cost is wiggling else 1e-6
    fitted = alpha_beta.fit(rows)
    assert fitted.knee_bytes == knee
    assert fitted.alpha_seconds == pytest.approx(50e-6, rel=off)
    slopes = (fitted.beta_seconds_per_byte, fitted.beyond_seconds_per_byte)
    assert slopes == pytest.approx(betas, rel=off)
    assert fitted.errors(rows)["largest"] < 4 * off
    rows[-1]["seconds"] *= 1.1
    again = alpha_beta.fit(rows).alpha_seconds
    assert again == pytest.approx(fitted.alpha_seconds, rel=0.02), "errors are relative"
    with pytest.raises(ValueError, match="expected some"):
        fitted.errors([row for row in rows if row["bytes"] < alpha_beta.SMALLEST_BYTES])


@pytest.mark.parametrize("cost", [lambda size: 1e-9 * (size + 1) ** 1.3, lambda size: 1 / size])
def test_fit_has_no_negative_cost_and_needs_three_rows(cost):
    rows = make_sweep_rows(cost)
    fitted = alpha_beta.fit(rows)
    costs = (fitted.alpha_seconds, fitted.beta_seconds_per_byte, fitted.beyond_seconds_per_byte)
    assert min(*costs, fitted.predict(0)) >= 0
    with pytest.raises(ValueError, match=r"2 row\(s\) of 256 bytes or more: expected three"):
        alpha_beta.fit(rows[-2:])


def test_sweep_fits_no_size_that_is_held_out(make):
    """Times between the powers of two are doubled: the fit can't know, its errors say so."""
    sweep = make(lambda size: straight(size) * (2 if size in HELD_OUT else 1))
    assert {row["bytes"] for row in sweep.held_out} == set(HELD_OUT)
    assert sweep.fit().alpha_seconds == pytest.approx(50e-6)
    assert sweep.fit().errors(sweep.held_out)["median"] == pytest.approx(0.5)


def test_measured_sweep_is_loaded_and_not_measured_again(monkeypatch, tmp_path):
    monkeypatch.setattr(allreduce_sweep, "ROUNDS", 2)
    monkeypatch.setattr(paths, "LOGS", tmp_path)
    monkeypatch.setattr(allreduce_sweep, "LOGS", tmp_path)
    with pytest.raises(ValueError, match="ranks=1: expected two at least"):
        allreduce_sweep.measure(1)
    measured = allreduce_sweep.measure(2, device="cpu")
    assert [row["bytes"] for row in measured.rows] == sorted(SIZES + HELD_OUT)
    assert measured.backend == "gloo"
    assert measured.world == measured.config["world_size"] == 2
    assert measured.config["machine"]["cores"] == len(machine.cores())
    assert measured.measured_here
    for row in measured.rows:
        assert 0 < row["seconds"] <= row["median_seconds"]
        assert row["bus_bandwidth_bytes_per_second"] == pytest.approx(row["bytes"] / row["seconds"])
    assert measured.fit().predict(2**25) > measured.fit().predict(1024) > 0
    if not measured.shared_cores:
        monkeypatch.setattr(allreduce_sweep, "measure", None)
        assert allreduce_sweep.load(2, device="cpu").folder == measured.folder


def test_only_a_sweep_like_the_wanted_one_is_loaded(make, monkeypatch, tmp_path):
    here = {"cpu": machine.cpu_name(), "cores": 2, "gpus": ["NVIDIA H100 0", "NVIDIA H100 1"]}
    measured = []
    monkeypatch.setattr(machine, "describe", lambda: here)
    monkeypatch.setattr(machine, "gpu_names", lambda: here["gpus"])
    monkeypatch.setattr(allreduce_sweep, "LOGS", tmp_path)
    monkeypatch.setattr(allreduce_sweep, "measure", lambda *order: measured.append(order))
    on_gpus = make(backend="nccl")
    for how in ({"cpu": "Other"}, {"shared": True}, {"rounds": 10}):
        make(**how)
        assert allreduce_sweep.load(2, "cpu") is None
    mine = make()
    assert allreduce_sweep.load(2, "cpu").folder == mine.folder
    assert allreduce_sweep.load(2).folder == on_gpus.folder
    assert allreduce_sweep.load(3, "cpu") is None
    assert measured == [(2, "cpu")] * 3 + [(3, "cpu")]
