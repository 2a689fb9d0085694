"""What a collective costs: the fit finds what was put in, the sweep runs, the figure tells it."""

import pytest

from bootcamp import machine, paths
from bootcamp.costs import alpha_beta
from bootcamp.experiments import allreduce_sweep
from bootcamp.files import write_json

POWERS = [4 * 2**k for k in range(24)]
BETWEEN = [12 * 4**k for k in range(11)]


def made_up(cost, ranks=2):
    """The rows of a sweep whose calls take cost(bytes) seconds."""
    return [
        {
            "bytes": size,
            "seconds": cost(size),
            "median_seconds": 3 * cost(size),
            **alpha_beta.bandwidths(size, cost(size), ranks),
            "held_out": size in BETWEEN,
        }
        for size in sorted(POWERS + BETWEEN)
    ]


def straight(size):
    return 50e-6 + size * 0.5e-9


def bent(size):
    return 50e-6 + min(size, 2**20) * 0.1e-9 + max(0, size - 2**20) * 0.9e-9


@pytest.fixture
def make(tmp_path):
    """make(straight, ranks=2) -> Sweep, from a run's folder written here."""

    def write(cost=straight, ranks=2, backend="gloo", cpu=None, shared=False, rounds=30):
        host = {"cpu": cpu or machine.cpu_name(), "cores": 2, "gpus": ["NVIDIA H100"] * ranks}
        config = {
            "device": "cuda:0" if backend == "nccl" else "cpu",
            "processes": ranks,
            "cores_per_rank": 1,
            "versions": {"torch": "2.99.0"},
        }
        swept = {"backend": backend, "world_size": ranks, "machine": host, "rounds": rounds}
        folder = tmp_path / f"{backend}-{ranks}-{cpu}-{shared}-{rounds}"
        folder.mkdir(exist_ok=True)
        write_json(folder / "config.json", config)
        write_json(folder / "summary.json", {"status": "ok", "shared_cores": shared})
        write_json(folder / "sweep.json", {**swept, "rows": made_up(cost, ranks)})
        return allreduce_sweep.Sweep(folder)

    return write


# bandwidths


@pytest.mark.parametrize(("ranks", "factor"), [(1, 0), (2, 1), (4, 1.5), (8, 1.75)])
def test_bandwidths_are_those_of_nccl_tests(ranks, factor):
    """doc/PERFORMANCE.md of NVIDIA/nccl-tests: algbw = S/t, busbw = algbw * 2(n-1)/n."""
    found = alpha_beta.bandwidths(1_000_000, 0.001, ranks)
    assert found["algorithm_bandwidth_bytes_per_second"] == pytest.approx(1e9)
    assert found["bus_bandwidth_bytes_per_second"] == pytest.approx(factor * 1e9)


# fit


def test_a_fit_finds_alpha_and_beta():
    fitted = alpha_beta.fit(made_up(straight))
    assert fitted.alpha_seconds == pytest.approx(50e-6)
    assert fitted.beta_seconds_per_byte == pytest.approx(0.5e-9)
    assert fitted.beyond_seconds_per_byte == pytest.approx(0.5e-9)
    assert fitted.knee_bytes is None
    assert fitted.predict(25_000_000) == pytest.approx(straight(25_000_000))


def test_a_fit_finds_a_knee_and_both_slopes():
    fitted = alpha_beta.fit(made_up(bent))
    assert fitted.knee_bytes == 2**20
    assert fitted.alpha_seconds == pytest.approx(50e-6)
    assert fitted.beta_seconds_per_byte == pytest.approx(0.1e-9)
    assert fitted.beyond_seconds_per_byte == pytest.approx(0.9e-9)
    for size in (1000, 2**20, 30_000_000):
        assert fitted.predict(size) == pytest.approx(bent(size))


def test_a_wiggle_is_no_knee():
    """Errors of ten per cent up and down leave one line, near the true one."""
    wiggle = {size: 1 + 0.1 * (-1) ** place for place, size in enumerate(sorted(POWERS + BETWEEN))}
    fitted = alpha_beta.fit(made_up(lambda size: straight(size) * wiggle[size]))
    assert fitted.knee_bytes is None
    assert fitted.alpha_seconds == pytest.approx(50e-6, rel=0.05)
    assert fitted.beta_seconds_per_byte == pytest.approx(0.5e-9, rel=0.05)


def test_small_sizes_count_as_much_as_large_ones():
    """A large size ten per cent slower moves alpha by little: errors are relative."""
    rows = made_up(straight)
    rows[-1]["seconds"] *= 1.1
    assert alpha_beta.fit(rows).alpha_seconds == pytest.approx(50e-6, rel=0.01)


@pytest.mark.parametrize("cost", [lambda size: 1e-9 * (size + 1) ** 1.3, lambda size: 1 / size])
def test_no_cost_is_negative(cost):
    fitted = alpha_beta.fit(made_up(cost))
    costs = (fitted.alpha_seconds, fitted.beta_seconds_per_byte, fitted.beyond_seconds_per_byte)
    assert min(costs) >= 0
    assert fitted.predict(0) >= 0


def test_sizes_too_small_to_be_cut_are_neither_fitted_nor_judged():
    rows = made_up(lambda size: straight(size) * (1 if size >= alpha_beta.SMALLEST_BYTES else 0.3))
    fitted = alpha_beta.fit(rows)
    assert fitted.smallest_bytes == alpha_beta.SMALLEST_BYTES
    assert fitted.alpha_seconds == pytest.approx(50e-6)
    assert fitted.errors(rows)["largest"] == pytest.approx(0, abs=1e-9)
    with pytest.raises(ValueError, match="expected some"):
        fitted.errors([row for row in rows if row["bytes"] < alpha_beta.SMALLEST_BYTES])


def test_two_rows_are_no_fit():
    with pytest.raises(ValueError, match=r"2 row\(s\) of 256 bytes or more: expected three"):
        alpha_beta.fit(made_up(straight)[-2:])


def test_errors_are_of_the_rows_given():
    fitted = alpha_beta.fit(made_up(straight))
    rows = [{"bytes": 10_000, "seconds": straight(10_000) / x} for x in (1.0, 1.1, 1.5)]
    assert fitted.errors(rows) == {"median": pytest.approx(0.1), "largest": pytest.approx(0.5)}


# the sweep


def test_the_held_out_sizes_are_not_fitted(make):
    """Times between the powers of two are doubled: the fit can't know, its errors say so."""
    sweep = make(lambda size: straight(size) * (2 if size in BETWEEN else 1))
    assert {row["bytes"] for row in sweep.held_out} == set(BETWEEN)
    assert sweep.fit().alpha_seconds == pytest.approx(50e-6)
    assert sweep.fit().errors(sweep.held_out)["median"] == pytest.approx(0.5)


def test_a_sweep_says_where_it_was_measured(make):
    here = make()
    assert here.origin.endswith("2 cores, torch 2.99.0; measured here")
    assert make(cpu="Other Processor").origin.endswith("recorded on another machine")
    assert not here.oversubscribed
    assert make(ranks=4).oversubscribed
    assert make(ranks=4, backend="nccl").device == "cuda"


def test_one_rank_has_nobody_to_talk_to():
    with pytest.raises(ValueError, match="ranks=1: expected two at least"):
        allreduce_sweep.measure(1)


def test_a_measured_sweep_is_loaded_not_measured_again(monkeypatch, tmp_path):
    monkeypatch.setattr(allreduce_sweep, "ROUNDS", 2)
    monkeypatch.setattr(paths, "LOGS", tmp_path)
    monkeypatch.setattr(allreduce_sweep, "LOGS", tmp_path)
    measured = allreduce_sweep.measure(2, device="cpu")
    assert [row["bytes"] for row in measured.rows] == sorted(POWERS + BETWEEN)
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


def test_what_was_not_measured_is_measured(make, monkeypatch):
    asked = []
    monkeypatch.setattr(allreduce_sweep, "measure", lambda *order: asked.append(order) or make())
    monkeypatch.setattr(machine, "gpu_names", lambda: ("NVIDIA H100",) * 8)
    assert allreduce_sweep.load(7, device="cpu").rows
    assert allreduce_sweep.load(8).rows
    assert asked == [(7, "cpu"), (8, "auto")]


def test_only_a_sweep_like_the_wanted_one_is_loaded(make, monkeypatch, tmp_path):
    here = {"cpu": machine.cpu_name(), "cores": 2, "gpus": ["NVIDIA H100"] * 2}
    monkeypatch.setattr(machine, "describe", lambda: here)
    monkeypatch.setattr(machine, "gpu_names", lambda: here["gpus"])
    monkeypatch.setattr(allreduce_sweep, "LOGS", tmp_path)
    monkeypatch.setattr(allreduce_sweep, "measure", lambda *order: None)
    on_gpus = make(backend="nccl")
    for how in ({"cpu": "Other"}, {"shared": True}, {"rounds": 10}):
        make(**how)
        assert allreduce_sweep.load(2, "cpu") is None
    mine = make()
    assert allreduce_sweep.load(2, "cpu").folder == mine.folder
    assert allreduce_sweep.load(2).folder == on_gpus.folder
    assert allreduce_sweep.load(3, "cpu") is None


# the figure


@pytest.fixture
def draw(make):
    """draw(bent, ranks=4) -> the figure of such a sweep."""
    plots = pytest.importorskip("bootcamp.drawing.plots")

    def drawn(*args, **kwargs):
        sweep = make(*args, **kwargs)
        return plots.all_reduce_sweep(sweep, sweep.fit())

    return drawn


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("cost", [straight, bent])
def test_the_figure_can_be_read(draw, cost, backend):
    import legible
    from test_plots import foot

    figure = draw(cost, ranks=4, backend=backend)
    assert legible.faults(figure, 11) == []
    for words in ("50 µs (alpha)", "median", "nccl-tests", "measured here"):
        assert words in foot(figure)
    assert ("4 GPU ranks" if backend == "nccl" else "more ranks than cores") in foot(figure)
    assert "50 µs (alpha)" in figure.alt
    assert "off by 0 % (median) and by 0 % at most" in figure.alt


def test_the_figure_tells_fitted_from_held_out(draw):
    left, right = draw(bent).axes
    lines = {line.get_label(): line for line in left.lines}
    assert set(lines["fitted to"].get_xdata()) == {size for size in POWERS if size >= 256}
    assert set(lines["held out"].get_xdata()) == {size for size in BETWEEN if size >= 256}
    assert max(lines["too small for the line"].get_xdata()) < alpha_beta.SMALLEST_BYTES
    assert lines["fitted line"].get_ydata()[-1] == pytest.approx(1e3 * bent(2**25))
    assert lines["median call"].get_ydata()[-1] == pytest.approx(3e3 * bent(2**25))
    assert left.get_xscale() == left.get_yscale() == "log"
    bus = {line.get_label(): line for line in right.lines}["fitted to"].get_ydata()
    assert bus[-1] == pytest.approx(2**25 / bent(2**25) / 1e9)


def test_the_figure_names_the_knee(draw):
    assert "bytes at 2 GB/s (1/beta). On" in draw(straight).alt
    assert "bytes at 10 GB/s (1/beta), those beyond 1 MiB at 1.1 GB/s. On" in draw(bent).alt
