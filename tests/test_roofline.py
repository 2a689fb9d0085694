"""The roofline: costs by formula, a measurement that runs anywhere, a figure that tells it."""

import argparse
import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bootcamp import machine
from bootcamp.experiments import roofline
from bootcamp.train import benchmark, config, models
from bootcamp.train.models import gpt

BATCH = 2
SHAPE = gpt.SIZES["tiny"]
WIDTH, CONTEXT = SHAPE["width"], SHAPE["context"]
TOKENS = BATCH * CONTEXT


@pytest.fixture(scope="module")
def operations():
    with torch.no_grad():
        yield {op.name: op for op in benchmark.make_operations("tiny", BATCH, torch.float32, "cpu")}


def content(**changed):
    """A measurement of round numbers: 100 GFLOP/s, 10 GB/s, ridge at 10 FLOP per byte."""
    rows = (
        ("residual add", 1 / 12, 0.8e9, False),
        ("embedding", 0.2, 1e9, True),
        ("GELU", 0.625, 2e9, False),
        ("AdamW", 0.5, 2.1e9, False),
        ("AdamW, fused", 0.5, 4.9e9, False),
        ("LayerNorm", 1.0, 9e9, False),
        ("softmax and loss", 1.0, 8.5e9, True),
        ("attention", 128.0, 60e9, False),
        ("up-projection", 280.0, 90e9, False),
    )
    names = ("name", "intensity", "achieved_flops_per_second", "fits_in_cache")
    return {
        "device": "cpu",
        "dtype": "float32",
        "cores_per_rank": 1,
        "processes": 1,
        "size": "small",
        "global_batch": 8,
        "machine": {"cpu": machine.cpu_name(), "cores": 2, "gpus": ["NVIDIA H100"]},
        "versions": {"torch": "2.99.0"},
        "peak_flops_per_second": 100e9,
        "bandwidth_bytes_per_second": 10e9,
        "cache_bytes": 32 * 2**20,
        "operations": [dict(zip(names, row, strict=True)) for row in rows],
        **changed,
    }


# costs by formula


def test_every_operation_runs(operations):
    for operation in operations.values():
        operation.run()
        assert operation.flops > 0, operation.name
        assert operation.bytes > 0, operation.name


def test_a_product_costs_what_torch_counts(operations):
    """torch's counter leaves out the bias, one addition for each result."""
    with FlopCounterMode(display=False) as counter:
        operations["up-projection"].run()
    bias = TOKENS * 4 * WIDTH
    assert operations["up-projection"].flops == counter.get_total_flops() + bias


def test_causal_attention_costs_the_pairs_that_it_looks_at(operations):
    """Two products over each position and those before it, 2 operations each, for every width."""
    pairs = sum(position + 1 for position in range(CONTEXT))
    assert operations["attention"].flops == 2 * 2 * WIDTH * BATCH * pairs


def test_bytes_are_operands_once_and_results_once(operations):
    vector = 4 * TOKENS * WIDTH
    assert operations["residual add"].bytes == 3 * vector
    assert operations["LayerNorm"].bytes == 2 * vector + 2 * 4 * WIDTH
    assert operations["GELU"].bytes == 2 * 4 * vector
    assert operations["attention"].bytes == 4 * vector
    weights = 4 * (4 * WIDTH * WIDTH + 4 * WIDTH)
    assert operations["up-projection"].bytes == vector + weights + 4 * vector
    tables = 4 * WIDTH * (gpt.VOCABULARY + CONTEXT)
    assert operations["embedding"].bytes == 8 * TOKENS + tables + vector
    assert operations["softmax and loss"].bytes == 4 * TOKENS * gpt.VOCABULARY + 8 * TOKENS
    assert operations["AdamW"].bytes == 7 * 4 * 12 * WIDTH**2


def test_the_products_are_those_of_the_models_formula(operations):
    """A block has 12 products as large as a quarter of the first one, and attention counted whole.

    The rest of a sample's forward is the head's product.
    """
    args = argparse.Namespace(model="gpt", size="tiny")
    quarter = (operations["up-projection"].flops - TOKENS * 4 * WIDTH) / 4
    attention = operations["attention"].flops * 2 * CONTEXT / (CONTEXT + 1)
    head = 2 * TOKENS * WIDTH * gpt.VOCABULARY
    forward = SHAPE["layers"] * (12 * quarter + attention) + head
    assert 3 * forward == pytest.approx(BATCH * models.flops_per_sample(args))


def test_half_as_wide_numbers_are_half_the_bytes(operations):
    with torch.no_grad():
        half = {
            op.name: op for op in benchmark.make_operations("tiny", BATCH, torch.bfloat16, "cpu")
        }
    assert half["residual add"].bytes == operations["residual add"].bytes / 2
    assert half["residual add"].flops == operations["residual add"].flops


# the measurement


def test_fastest_seconds_calls_often_enough_and_not_for_ever(monkeypatch):
    """Nine calls that count of a fast one, three of a slow one; the first never counts."""
    now = [0.0]
    monkeypatch.setattr(benchmark.time, "perf_counter", lambda: now[0])

    def taking(*seconds):
        calls = iter(seconds)
        done = []

        def run():
            done.append(next(calls))
            now[0] += done[-1]

        return run, done

    run, done = taking(0.001, 0.03, 0.02, *[0.05] * 20)
    assert benchmark.time_fastest_call(run, "cpu") == pytest.approx(0.02)
    assert len(done) == 1 + benchmark.CALLS
    run, done = taking(5.0, 9.0, 7.0, 8.0, *[1.0] * 20)
    assert benchmark.time_fastest_call(run, "cpu") == pytest.approx(7.0)
    assert len(done) == 1 + benchmark.FEWEST_CALLS


@pytest.fixture
def small_and_quick(monkeypatch):
    """Stand-ins for what takes seconds: tiny arrays, two calls, and no keeping to one core."""
    monkeypatch.setitem(benchmark.STREAMED_BYTES, "cpu", 2**16)
    monkeypatch.setitem(benchmark.MATRIX_SIZE, "cpu", 16)
    monkeypatch.setattr(benchmark, "CALLS", 1)
    monkeypatch.setattr(benchmark, "FEWEST_CALLS", 1)
    monkeypatch.setattr(config, "use_cores", lambda device, count: None)


def test_a_measurement_holds_what_the_figure_needs(small_and_quick, monkeypatch, tmp_path):
    out = tmp_path / "measured.json"
    flags = ["--size", "tiny", "--batch", "1", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["benchmark", *flags])
    benchmark.main()
    measured = roofline.Roofline(json.loads(out.read_text()))
    assert measured.measured_here
    assert not measured.oversubscribed
    assert measured.peak_flops_per_second > 0
    assert measured.bandwidth_bytes_per_second > 0
    for row in measured.operations:
        assert row["intensity"] == row["flops"] / row["bytes"]
        assert row["achieved_flops_per_second"] == pytest.approx(row["flops"] / row["seconds"])
    if measured.cache_bytes:
        assert {row["name"] for row in measured.operations if row["fits_in_cache"]}


def test_what_was_measured_is_kept(small_and_quick, monkeypatch, tmp_path):
    """Once for its flags; never below the known peak."""
    monkeypatch.setattr(roofline, "KEPT", tmp_path / "machine.json")
    commands = []

    def run_command(command, seconds, env):
        commands.append(command[2])
        monkeypatch.setattr("sys.argv", command[2:])
        benchmark.main()

    monkeypatch.setattr(roofline.launch, "run_command", run_command)
    peak = roofline.matmul_flops_per_second()
    assert commands == ["bootcamp.train.benchmark"]
    assert roofline.matmul_flops_per_second() == peak > 0
    first = roofline.measure(size="tiny", batch=1)
    assert first.peak_flops_per_second >= peak
    assert first.config["global_batch"] == 1
    assert roofline.measure(size="tiny", batch=1).config == first.config
    assert commands[1:] == ["bootcamp.train.benchmark"]
    assert roofline.measure(size="tiny", batch=2).config["global_batch"] == 2
    assert len(commands) == 3
    assert roofline.measure(size="tiny", batch=1).config["global_batch"] == 1
    assert len(json.loads((tmp_path / "machine.json").read_text())) == 3


def test_a_roof_is_never_below_the_known_peak(monkeypatch):
    monkeypatch.setattr(roofline, "matmul_flops_per_second", lambda *which: 1e15)
    monkeypatch.setattr(roofline, "measure_once", lambda *which, **flags: content())
    assert roofline.measure().peak_flops_per_second == 1e15


def test_the_measuring_commands_run_as_processes_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setattr(roofline, "KEPT", tmp_path / "machine.json")
    assert 1e8 < roofline.matmul_flops_per_second() < 1e15


def test_the_roof_is_the_smaller_of_two_limits():
    measured = roofline.Roofline(content())
    assert measured.ridge == 10
    assert measured.roof(1) == pytest.approx(10e9)
    assert measured.roof(10) == measured.roof(1000) == pytest.approx(100e9)
    assert "ridge at 10.0 FLOP/B" in repr(measured)


# the figure


def draw(**changed):
    plots = pytest.importorskip("bootcamp.drawing.plots")
    return plots.roofline(roofline.Roofline(content(**changed)))


CROWDED = [
    {
        "name": f"operation {k}",
        "intensity": 0.5 * (1 + k / 20),
        "achieved_flops_per_second": 2e9 * (1 + k / 10),
        "fits_in_cache": False,
    }
    for k in range(8)
]
ABOVE = [
    {
        "name": f"cached {k}",
        "intensity": intensity,
        "achieved_flops_per_second": flops,
        "fits_in_cache": True,
    }
    for k, (intensity, flops) in enumerate([(0.08, 4e9), (0.3, 9e9), (1.0, 30e9), (60.0, 130e9)])
]
CORNER = [
    {
        "name": f"product number {k}",
        "intensity": intensity,
        "achieved_flops_per_second": flops,
        "fits_in_cache": False,
    }
    for k, (intensity, flops) in enumerate([(0.1, 0.7e9), (60, 290e9), (110, 763e9), (120, 720e9)])
]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"operations": CROWDED},
        {"operations": ABOVE},
        {"operations": CORNER, "peak_flops_per_second": 771e9, "bandwidth_bytes_per_second": 7e9},
        {"peak_flops_per_second": 4e9, "bandwidth_bytes_per_second": 182e9},
        {"device": "cuda", "peak_flops_per_second": 50e12, "bandwidth_bytes_per_second": 3e12},
    ],
    ids=["as measured", "crowded", "above the roof", "in its corner", "far above", "GPU"],
)
def test_the_figure_can_be_read(changed):
    import legible
    from test_plots import foot

    figure = draw(**changed)
    assert legible.faults(figure, 11) == []
    for words in ("GPT small, 8 samples, float32", "torch 2.99.0", "measured here"):
        assert words in foot(figure)
    assert ("1 GPU rank on" if changed.get("device") else "1 CPU rank on") in foot(figure)


def test_no_label_lies_on_a_point_or_on_the_roof():
    rooflines = pytest.importorskip("bootcamp.drawing.plots.rooflines")
    figure = draw()
    axes = figure.axes[0]
    labels = [text for text in axes.texts if text.get_text()]
    assert len(labels) == len(content()["operations"]) + 2
    points = [line for line in axes.lines if line.get_marker() == "o"]
    for label in labels:
        for point in points:
            where = (point.get_xdata()[0], point.get_ydata()[0])
            assert not label.get_window_extent().overlaps(rooflines._box_around(axes, where, 7))


def test_the_figure_shows_roof_points_and_shares():
    figure = draw()
    axes = figure.axes[0]
    roof, *points = axes.lines
    assert list(roof.get_xdata())[1] == 10
    assert list(roof.get_ydata())[1:] == [100e9, 100e9]
    assert len(points) == 9
    written = {text.get_text() for text in axes.texts}
    assert {"LayerNorm 90 %", "up-projection 90 %", "residual add 96 %"} <= written
    assert {"memory:\n10 GB/s", "arithmetic: 100.0 GFLOP/s"} <= written
    assert "LayerNorm 90 %" in figure.alt
    assert "meet at 10.0 operations per byte" in figure.alt


def test_what_fits_in_the_cache_is_hollow_and_explained():
    from test_plots import foot

    figure = draw()
    hollow = [line for line in figure.axes[0].lines[1:] if line.get_markerfacecolor() == "white"]
    assert sorted(line.get_xdata()[0] for line in hollow) == [0.2, 1.0]
    assert "Hollow: all bytes fit in the last cache (33.6 MB)" in foot(figure)
    rows = [{**row, "fits_in_cache": False} for row in content()["operations"]]
    assert "Hollow" not in foot(draw(operations=rows))
