"""Notebook 07: its pictures say what they show, and FSDP's phases are read from a trace."""

import csv
import json
from types import SimpleNamespace

import pytest

pytest.importorskip("matplotlib")

from bootcamp.costs import sharding
from bootcamp.paths import SRC
from bootcamp_lessons.diagrams import zero_stages as diagrams

RUN = SimpleNamespace(
    what="",
    origin="a made-up machine; recorded",
    device="cpu",
    world=4,
    oversubscribed=False,
    shared_cores=False,
    label="fsdp on 4 CPU ranks",
)
PUBLISHED = SRC / "bootcamp" / "costs" / "published" / "zero_figure1.csv"


def said(figure):
    return " ".join(text.get_text() for axes in figure.axes for text in axes.texts)


@pytest.mark.parametrize("world", [2, 4])
def test_each_stage_shards_one_kind_more(world):
    figure = diagrams.stages(world)
    for letter, stages in {"O": 3, "G": 2, "P": 1}.items():
        assert said(figure).split().count(letter) == stages * world, "a part on each rank"
    parts = [line.count("its part") for line in figure.alt.split("Stage ")[1:]]
    assert parts == [0, 1, 2, 3]


def test_the_bars_are_the_counted_bytes():
    kinds = {"parameters": 4e6, "gradients": 4e6, "optimizer": 2e6, "activations": 1e6}
    figure = diagrams.rank_memory({"stage 1": kinds}, {"stage 1": 10e6}, [RUN])
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == [4, 4, 2, 1]
    assert list(axes.lines[0].get_xdata()) == [10, 10], "the formula's mark"
    assert "stage 1: parameters 4.00, gradients 4.00, optimizer 2.00" in figure.alt


def test_accumulation_shows_both_ends_of_each_stage():
    records = [
        {"stage": 1, "whole": 8000, "looks": [4000, 8000, 8000, 8000], "ends": [8000, 2000]},
        {"stage": 2, "whole": 8000, "looks": [4000, 4000, 4000, 4000], "ends": [2000, 2000]},
    ]
    figure = diagrams.gradients_by_stage(records, 4, [RUN])
    first, second = figure.axes[0].lines[:2]
    assert list(first.get_ydata()) == [4, 8, 8, 8, 8, 2]
    assert list(second.get_ydata()) == [4, 4, 2, 4, 4, 2]
    assert "stage 1 holds 8 kB and 2 kB" in figure.alt
    (right,) = figure.axes[0].child_axes
    assert [tick.get_text() for tick in right.get_yticklabels()] == ["all gradients", "1/4 of them"]


def test_the_published_row_stands_beside_the_formula():
    rows = list(csv.DictReader(PUBLISHED.open()))
    computed = {}
    for row in rows:
        size, ranks, stage = (int(row[key]) for key in ("parameters", "data", "stage"))
        computed[stage] = sharding.rank_bytes(size, ranks, stage)
        assert abs(sum(computed[stage].values()) / 1e9 - float(row["published_peak_gb"])) < 0.05
    figure = diagrams.published_memory(computed, rows)
    assert "published 31.4 GB" in said(figure)
    assert "stage 3: 1.9 by formula, 1.9 published" in figure.alt
    assert "arXiv:1910.02054" in figure.alt


def trace(folder):
    """One block that FSDP gathers and frees in the forward, and again in the backward."""
    phases = (
        ("training_step", 1000, 9000),
        ("FSDP::all_gather (block0)", 2000, 500),
        ("FSDP::post_forward (block0)", 4000, 100),
        ("FSDP::backward_prefetch for block0", 5000, 900),
        ("FSDP::all_gather (block0)", 5100, 400),
        ("FSDP::post_backward_reshard (block0)", 7000, 100),
        ("FSDP::post_backward_reduce (block0)", 7100, 800),
        ("FSDP::all_gather", 1100, 300),
        ("FSDP::post_forward", 4600, 50),
        ("FSDP::post_backward_reshard", 8500, 100),
        ("aten::mm", 3000, 10),
    )
    events = [{"name": name, "ph": "X", "ts": ts, "dur": dur} for name, ts, dur in phases]
    path = folder / "0.trace.json"
    path.write_text(json.dumps({"traceEvents": [*events, {"name": "thread", "ph": "M"}]}))
    return path


def test_fsdps_phases_are_read_from_the_trace(tmp_path):
    step = diagrams.read_gathers(trace(tmp_path))
    assert step["seconds"] == pytest.approx(0.009)
    assert list(step["groups"]) == ["root", "block0"], "in the order of their first phase"
    assert step["groups"]["block0"] == [
        ("all-gather", 1.0, 1.5),
        ("complete", 1.5, pytest.approx(3.1)),
        ("all-gather", 4.1, pytest.approx(4.5)),
        ("complete", pytest.approx(4.5), pytest.approx(6.1)),
        ("reduce-scatter", 6.1, pytest.approx(6.9)),
    ]
    kept = [("all-gather", pytest.approx(0.1), pytest.approx(0.4))]
    kept.append(("complete", pytest.approx(0.4), pytest.approx(7.6)))
    assert step["groups"]["root"] == kept, "what is gathered once stays until the backward pass"
    figure = diagrams.gathers(step, RUN)
    assert "root 1 times, block 0 2 times" in figure.alt
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["root", "block 0"]
