"""One device: mixed precision, and how activations and the time of operators are counted.

That scripts train what the baseline trains: test_equality.py. What they keep: test_run_bytes.py.
"""

import contextlib
import gc
import itertools
import json
import os
import weakref
from collections import defaultdict

import pytest
import torch
from records import make_trace
from trained import PROOF, trained

from bootcamp.experiments import equality
from bootcamp.launcher import process_tree
from bootcamp.paths import SRC
from bootcamp.records import trace
from bootcamp.train import memory_usage


@pytest.mark.parametrize("autocast", ["bfloat16", "float16"])
def test_mixed_precision_keeps_fewer_bytes_of_activations_alone(autocast):
    run = trained("amp", autocast=autocast, optimizer="adamw", **PROOF)
    base = equality.baseline(optimizer="adamw", **PROOF)
    assert run.losses != base.losses, "nothing was rounded"
    assert run.ranks[0]["parameter_bytes"] == base.ranks[0]["parameter_bytes"]
    assert run.ranks[0]["activation_bytes"] < 0.75 * base.ranks[0]["activation_bytes"]


def test_data_parallel_says_that_it_splits_nothing():
    run = trained("dp", 1, optimizer="sgd", **PROOF)
    assert run.output().count("it runs the bare model and splits nothing") == 1


@pytest.fixture
def count():
    """count(forward, *parameters) -> bytes of activations of a forward and backward of its sum."""

    def count(forward, *parameters):
        watch = memory_usage.Activations(torch.nn.ParameterList(parameters))
        watch.start()
        forward().sum().backward()
        watch.stop()
        return watch.bytes - 8  # of the sum, and of the gradient that the backward begins with

    return count


def test_activations_are_what_the_forward_made_and_nothing_else(count):
    weight = torch.ones(100, requires_grad=True)
    data = torch.ones(10, 100)
    assert count(lambda: data * weight, weight) == 0
    assert count(lambda: (data * weight).exp(), weight) == 4 * 1000
    assert count(lambda: (data * weight).exp().view(1000).exp(), weight) == 8 * 1000
    assert count(lambda: data[:5].t() * weight[:1].exp(), weight) == 4


def test_activations_that_checkpointing_gives_up_are_not_counted(count):
    weight = torch.ones(100, requires_grad=True)
    how = {"use_reentrant": False, "preserve_rng_state": False}

    def twice(x):
        return (x * weight).exp().exp()

    def forget_between():
        return torch.utils.checkpoint.checkpoint(twice, torch.ones(10, 100), **how)

    assert count(lambda: twice(torch.ones(10, 100)), weight) == 4 * 3 * 1000
    assert count(forget_between, weight) == 4 * 1000, "the input alone"


def test_own_time_of_an_operator_is_without_what_it_calls(tmp_path):
    calls = [("linear", "cpu_op", 10, 50), ("mm", "cpu_op", 20, 20), ("copy_", "cpu_op", 30, 5)]
    calls += [("mm", "cpu_op", 45, 10), ("mm", "cpu_op", -80, 50)]
    traced = make_trace(("training_step", "user_annotation", 0, 100), *calls)
    elsewhere = make_trace(("mm", "cpu_op", 50, 30), thread=2)
    path = tmp_path / "0.trace.json"
    path.write_text(json.dumps({"traceEvents": traced["traceEvents"] + elsewhere["traceEvents"]}))
    found = trace.time_operators(path)
    assert found["linear"] == (1, pytest.approx(20e-3))
    assert found["mm"] == (3, pytest.approx(55e-3)), "the one before the step does not count"
    assert next(iter(found)) == "mm", "the longest comes first"
    path.write_text(json.dumps(make_trace(*calls)))
    with pytest.raises(ValueError, match="holds no whole step"):
        trace.time_operators(path)


def test_cpu_seconds_of_ended_children_count():
    before = process_tree.read_cpu_seconds(os.getpid())
    child = os.fork()
    if not child:
        while sum(os.times()[:2]) < 0.3:
            pass
        os._exit(0)
    os.waitpid(child, 0)
    assert process_tree.read_cpu_seconds(os.getpid()) - before > 0.25


@pytest.mark.parametrize(
    ("line", "instead", "found"),
    [
        ("", "", ""),
        ("= self.step", "= KEPT.append(self)", "gc.collect.*hold 4,000,000 bytes, not 0"),
        ('torch.cuda.empty_cache()\n    note("t', 'note("t', "reserved': 4"),
    ],
)
def test_memory_is_given_back_as_the_snippet_says(line, instead, found, monkeypatch):
    """On a GPU, played here: a segment stays reserved while one of its tensors lives."""
    text = (SRC / "snippets" / "clean_up.py").read_text().replace(line or "\n", instead or "\n")
    exec(text, space := {"__name__": "", "KEPT": []})
    segments, reserved, numbers = defaultdict(weakref.WeakSet), set(), itertools.count()

    def make_tensor(nbytes):
        many = 1 if nbytes > 9999 else 100
        segments[nbytes * many, next(numbers) // many].add(tensor := torch.ones(nbytes // 4))
        return tensor

    def reserve():
        reserved.update(segment for segment, tensors in segments.items() if tensors)
        return sum(nbytes for nbytes, _ in reserved)

    space |= {"DEVICE": "cuda", "SIZE": 4_000_000, "make_tensor": make_tensor}
    held = "sum(each.nbytes for each in list_tensors())"
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: eval(held, space))
    monkeypatch.setattr(torch.cuda, "memory_reserved", reserve)
    monkeypatch.setattr(torch.cuda, "empty_cache", reserved.clear)
    gc.freeze()  # nothing that is here already counts
    try:
        with pytest.raises(AssertionError, match=found) if found else contextlib.nullcontext():
            space["main"]()
    finally:
        gc.unfreeze()
        gc.enable()
