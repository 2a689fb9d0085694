"""The roofline: costs of operations by formula, and a measurement that runs anywhere."""

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bootcamp.experiments import roofline
from bootcamp.train import benchmark, config
from bootcamp.train.models import gpt

BATCH = 2
SHAPE = gpt.SIZES["tiny"]
WIDTH, CONTEXT = SHAPE["width"], SHAPE["context"]
TOKENS = BATCH * CONTEXT


@pytest.fixture(scope="module")
def operations():
    with torch.no_grad():
        yield {op.name: op for op in benchmark.make_operations("tiny", BATCH, torch.float32, "cpu")}


def test_product_costs_what_torch_counts_and_attention_the_pairs_that_it_looks_at(operations):
    """torch's counter leaves out the bias, one addition for each result.

    Attention: two products over each position and those before it, for every width.
    """
    with FlopCounterMode(display=False) as counter:
        operations["up-projection"].run()
    bias = TOKENS * 4 * WIDTH
    assert operations["up-projection"].flops == counter.get_total_flops() + bias
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
    with torch.no_grad():
        half = benchmark.make_operations("tiny", BATCH, torch.bfloat16, "cpu")
    added = next(op for op in half if op.name == "residual add")
    assert added.bytes == operations["residual add"].bytes / 2


# the measurement


@pytest.fixture
def small_and_quick(monkeypatch):
    """Stand-ins for what takes seconds: tiny arrays, few calls, and no keeping to one core."""
    monkeypatch.setitem(benchmark.STREAMED_BYTES, "cpu", 2**16)
    monkeypatch.setitem(benchmark.MATRIX_SIZE, "cpu", 16)
    monkeypatch.setattr(benchmark, "FEWEST_CALLS", 1)
    monkeypatch.setattr(config, "use_cores", lambda device, count: None)


def test_measurement_is_kept_and_never_below_the_known_peak(small_and_quick, monkeypatch, tmp_path):
    """Once for its flags."""
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
    kept = json.loads(roofline.KEPT.read_text())
    assert len(kept) == 3
    (product,) = (found for found in kept.values() if "flops_per_second" in found)
    product["flops_per_second"] = 1e15
    roofline.KEPT.write_text(json.dumps(kept))
    assert roofline.measure(size="tiny", batch=1).peak_flops_per_second == 1e15
