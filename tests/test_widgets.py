"""Things to move: what they simulate and predict is true; the controls choose what is drawn."""

import argparse
import csv
import dataclasses

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from bootcamp.costs import collectives, memory, model_shapes, overlap, sharding
from bootcamp.paths import SRC
from bootcamp.units import time
from bootcamp_lessons import explorers, simulators

PUBLISHED = SRC / "bootcamp" / "costs" / "published"
EVERY = [
    (name, algorithm, ranks) for name, algorithm in collectives.PLANS for ranks in collectives.RANKS
]


# A collective, step by step


def carried_out(name, algorithm, ranks):
    """The plan's sends on real numbers: {chunk: value} of each rank at first, and at the end."""
    chunks = 1 if algorithm == "tree" else ranks
    start = [
        {chunk: float(10 * rank + chunk + 1) for chunk in range(chunks)} for rank in range(ranks)
    ]
    if name == "broadcast":
        begin = [dict(start[0]), *({} for _ in range(ranks - 1))]
    elif name == "all-gather":
        begin = [{rank: start[rank][rank]} for rank in range(ranks)]
    elif name == "all-to-all":
        begin = [{(rank, to): start[rank][to] for to in range(ranks)} for rank in range(ranks)]
    else:
        begin = [dict(chunks) for chunks in start]
    held = [dict(chunks) for chunks in begin]
    for sends in collectives.PLANS[name, algorithm](ranks):
        sent = [held[send.source][send.chunk] for send in sends]
        for send, value in zip(sends, sent, strict=True):
            mine = held[send.target].get(send.chunk, 0.0) if send.adds else 0.0
            held[send.target][send.chunk] = mine + value
    return start, held


@pytest.mark.parametrize(("name", "algorithm", "ranks"), EVERY)
def test_a_collective_does_what_its_definition_says(name, algorithm, ranks):
    start, held = carried_out(name, algorithm, ranks)
    tensors = np.array([list(chunks.values()) for chunks in start])
    for rank, got in enumerate(held):
        if name == "broadcast":
            assert list(got.values()) == list(tensors[0])
        elif name == "all-reduce":
            assert [got[chunk] for chunk in sorted(got)] == list(tensors.sum(0))
        elif name == "reduce-scatter":
            assert got[rank] == tensors.sum(0)[rank]
        elif name == "all-gather":
            assert [got[chunk] for chunk in range(ranks)] == list(np.diag(tensors))
        else:
            assert [got[source, rank] for source in range(ranks)] == list(tensors[:, rank])


@pytest.mark.parametrize(("name", "algorithm", "ranks"), EVERY)
def test_what_is_drawn_of_it_agrees(name, algorithm, ranks):
    """Contributions are complete after the last step and not before; counts are the formula's."""
    run = collectives.simulate(name, algorithm, ranks)
    wanted = collectives.make_result(name, ranks, run.chunks)
    done = [
        all(wanted[rank].items() <= held[rank].items() for rank in range(ranks))
        for held in run.moments
    ]
    assert done == [False] * len(run.steps) + [True]
    formula = collectives.formula(name, algorithm, ranks)
    sent = run.sent(len(run.steps))
    assert len(run.steps) == formula["steps"][1]
    assert max(sent) == pytest.approx(formula["most"][1])
    if algorithm == "ring" and name in sharding.RING:
        assert max(sent) == pytest.approx(sharding.ring_bytes(name, 1.0, ranks))
    for sends in run.steps:
        assert len({send.source for send in sends}) == len(sends), "a rank sends once in a step"
        assert len({send.target for send in sends}) == len(sends), "and gets once"


def test_the_simulation_refuses_what_cannot_be():
    held = collectives.make_start("all-reduce", 2, 2)
    with pytest.raises(ValueError, match="does not have"):
        collectives.apply_sends(held, [collectives.Send(0, 1, 7)])
    once = collectives.apply_sends(held, [collectives.Send(0, 1, 0, adds=True)])
    with pytest.raises(ValueError, match="again"):
        collectives.apply_sends(once, [collectives.Send(0, 1, 0, adds=True)])
    with pytest.raises(ValueError, match="not simulated"):
        collectives.simulate("all-gather", "tree", 4)
    with pytest.raises(ValueError, match="expected 2 to 8"):
        collectives.simulate("all-reduce", "ring", 9)


def fallback_table(kind, **initial):
    """What is shown where an explorer can't be, as text."""
    return str(explorers.make_fallback_table(kind, explorers.make_data(kind, **initial)))


def test_a_fallback_table_has_all_that_happened_in_a_step():
    drawn = fallback_table("collective", step=3)
    assert "all-reduce by a ring, 4 ranks, after step 3 of 6. Step 3: add up" in drawn
    assert "   3  chunk 0 to 0 " in drawn
    assert "   1  chunk 2 to 2  chunk 0 (1), chunk 1 (0+1+2+3)" in drawn
    assert drawn.count("(0+1+2+3)") == 4, "after the reduce-scatter each rank has one chunk"
    run = explorers.make_data("collective", step=3)["runs"]["all-reduce by a ring 4"]
    assert run["sent"][3][0] == 0.75
    assert "counted 1.5 S, by formula 2(N-1)/N = 1.5" in run["totals"][0]


@pytest.mark.parametrize(("name", "algorithm", "ranks"), [e for e in EVERY if e[2] in (2, 8)])
def test_every_collective_has_a_fallback_table_before_and_after(name, algorithm, ranks):
    way = {"way": f"{name} by {explorers.ALGORITHM_NAMES[algorithm]}", "ranks": ranks}
    assert "after step 0 of" in fallback_table("collective", **way, step=0)
    assert "All is done" in fallback_table("collective", **way, step=14), (
        "beyond the last step is the last"
    )


# A step of DDP


@pytest.mark.parametrize("model", ["gpt", "mlp", "striped-lstm", "resnet50"])
@pytest.mark.parametrize("size", ["tiny", "medium"])
def test_layers_by_formula_are_the_models_layers(model, size):
    import torch

    from bootcamp.train import models

    family = models.FAMILIES[model]
    with torch.device("meta"):
        stages = [make() for _, make in family.stages(**family.SIZES[size])]
    built = [tuple(tuple(p.shape) for p in stage.parameters()) for stage in stages]
    layers = model_shapes.layers(model, size)
    assert [layer.shapes for layer in layers] == built
    flops = models.flops_per_sample(argparse.Namespace(model=model, size=size))
    assert 3 * sum(layer.flops for layer in layers) == flops


def test_gpt2_has_the_published_number_of_parameters():
    layers = model_shapes.layers(model_shapes.GPT2, "small")
    assert sum(sum(layer.numbers) for layer in layers) == 124_439_808  # openai/gpt-2, "124M"
    with pytest.raises(ValueError, match="no such size"):
        model_shapes.layers(model_shapes.GPT2, "tiny")


@pytest.fixture
def alone():
    """A process group of this process alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("model", "cap"), [("gpt", None), ("gpt", 0.2), ("mlp", 0.05), ("resnet50", None)]
)
@pytest.mark.slow
def test_buckets_are_those_of_ddp(alone, model, cap):
    """Bytes of the buckets that DDP has from its second step on, as DDP itself logs them."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from bootcamp.train import models

    args = argparse.Namespace(model=model, size="tiny", seed=0, dtype="float32")
    wrapped = DistributedDataParallel(models.build(args), bucket_cap_mb=cap)
    form = models.data_format(args)
    pixels = form.get("image_size")
    inputs = torch.randn(2, 3, pixels, pixels) if pixels else torch.zeros(2, form["context"]).long()
    for _ in range(3):  # the third step logs what the first has found
        wrapped(inputs).square().mean().backward()
    logged = wrapped._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    layers = model_shapes.layers(model, "tiny")
    sizes = [4 * numbers for layer in layers for numbers in layer.numbers]
    filled = [sum(sizes[place] for place in b) for b in overlap.fill_buckets(sizes, cap)]
    assert filled == [int(size) for size in logged.split(", ")]


@pytest.mark.parametrize("cap", explorers.BUCKET_CAPS.values())
def test_buckets_follow_torchs_rule(cap):
    import torch
    import torch.distributed as dist

    layers = model_shapes.layers(model_shapes.GPT2, "small")
    numbers = [count for layer in layers for count in layer.numbers]
    parameters = [torch.empty(count, device="meta") for count in reversed(numbers)]
    order = list(range(len(parameters)))
    caps = (1, 25) if cap is None else (cap, cap)  # MiB
    limits = [int(limit * 2**20) for limit in caps]
    sparse = [False] * len(parameters)
    theirs, _ = dist._compute_bucket_assignment_by_size(parameters, limits, sparse, order)
    ours = overlap.fill_buckets([4 * count for count in numbers], cap)
    assert [[len(numbers) - 1 - place for place in bucket] for bucket in theirs] == ours


def predicted(cap, ranks=8, rate=1e9, latency=1e-5, seconds=0.1):
    layers = model_shapes.layers(model_shapes.GPT2, "small")
    return overlap.predict_step(layers, cap, ranks, rate, latency, seconds)


def test_a_predicted_step_keeps_the_rules():
    for cap in explorers.BUCKET_CAPS.values():
        step = predicted(cap)
        assert step.backward_end == pytest.approx(0.1)
        assert sum(step.sizes) == 4 * 124_439_808
        free = 0.0
        for full, span in zip(step.ready, step.reduces, strict=True):
            assert span.began == max(full, free), "when it is full and the link is free"
            free = span.ended
        assert step.ended == max(step.backward_end, free)


def test_the_extremes_of_a_predicted_step():
    whole = 4 * 124_439_808
    one = predicted(explorers.ONE_BUCKET)
    ring = 14 * (1e-5 + whole / 8 / 1e9)  # 2(N-1) messages, each the latency and an eighth
    assert one.ended == pytest.approx(0.1 + ring), "nothing overlaps"
    assert one.reduces[0].began == one.backward_end
    assert predicted(None, ranks=1).ended == pytest.approx(0.1), "one rank sends nothing"
    assert predicted(None, rate=1e30, latency=0).ended == pytest.approx(0.1)
    slow = [predicted(cap, latency=1.0) for cap in (0.2, 25)]
    assert slow[0].ended > slow[1].ended, "where messages cost much, few buckets are better"


def test_the_timeline_says_that_it_is_predicted():
    drawn = explorers.make_fallback_table("ddp_step", explorers.make_data("ddp_step", bucket="50"))
    assert "Predicted by a model, nothing here is measured" in drawn.caption
    assert "alpha-beta" in explorers.make_data("ddp_step")["notes"][0]
    assert drawn.column("bucket cap, MiB") == list(explorers.BUCKET_CAPS)
    (row,) = [row for row in drawn.rows if row["bucket cap, MiB"] == "50"]
    assert row["buckets"] == 7
    assert row["step"] == time(predicted(50, 8, 12.5e9, 20e-6, 0.2).ended)


@pytest.mark.parametrize("model", explorers.MODELS)
def test_every_model_has_a_timeline(model):
    assert model in fallback_table("ddp_step", model=model, bucket="0.05", ranks=1024)


# Memory of a rank


def test_the_published_row_comes_out():
    """ZeRO's figure 1: 7.5 billion parameters on 64 GPUs."""
    model = model_shapes.published_gpts()["7.5 B"]
    rows = memory.by_strategy(model, 64, 8, "bf16 mixed", 0, "all")
    for row in csv.DictReader((PUBLISHED / "zero_figure1.csv").open()):
        assert (model.parameters, 64) == (float(row["parameters"]), int(row["data"]))
        name = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3 = FSDP")[int(row["stage"])]
        assert abs(sum(rows[name].values()) / 1e9 - float(row["published_peak_gb"])) < 0.05


@pytest.mark.parametrize("precision", memory.PRECISIONS)
@pytest.mark.parametrize("model", model_shapes.published_gpts())
def test_the_state_is_that_of_sharding_theory(model, precision):
    shape, each = model_shapes.published_gpts()[model], memory.PRECISIONS[precision]
    rows = memory.by_strategy(shape, 16, 4, precision, 2, "all")
    sharded = {"DDP": (16, 0), "ZeRO-1": (16, 1), "ZeRO-2": (16, 2), "ZeRO-3 = FSDP": (16, 3)}
    for name, (ranks, stage) in {**sharded, "HSDP, rows of 4": (4, 3)}.items():
        state = sharding.rank_bytes(shape.parameters, ranks, stage, each)
        assert {kind: rows[name][kind] for kind in state} == state
    assert rows["one device"] == rows["DDP"], "data parallelism saves no memory"


def test_activations_are_those_of_the_paper():
    """arXiv:2205.05198, table 2, as multiples of s b h for one layer of the 175 B model."""
    model = model_shapes.published_gpts()["175 B"]
    sbh = 3 * model.sequence * model.hidden

    def of_layer(kept, tensor=1):
        shapes = (dataclasses.replace(model, layers=deep) for deep in (1, 2))
        one, two = (
            memory.activation_bytes(shape, 3, "bf16 mixed", kept, tensor) for shape in shapes
        )
        return (two - one) / sbh

    everything, no_matrix, inputs = memory.KEPT
    assert of_layer(everything) == 114
    assert of_layer(everything, 8) == 23
    assert of_layer(no_matrix, 8) == 13
    assert of_layer(inputs) == 2


def test_the_formula_counts_gpt2():
    """Equation 2 of arXiv:2104.04473 leaves out the last norm alone."""
    for name, size in (("GPT-2, 124 M", "small"), ("GPT-2, 1.5 B", "xl")):
        shape = model_shapes.published_gpts()[name]
        layers = model_shapes.layers(model_shapes.GPT2, size)
        whole = sum(sum(layer.numbers) for layer in layers)
        assert shape.count_parameters() == whole - 2 * shape.hidden
    for name, shape in model_shapes.published_gpts().items():
        if name.endswith(" B"):
            billions = float(name.removeprefix("GPT-2,").split()[0])
            assert shape.count_parameters() / 1e9 == pytest.approx(billions, rel=0.04)
    assert (
        model_shapes.published_gpts()["GPT tiny"].parameters == 335_360
    )  # its gradients, 1341440 bytes


def test_splitting_the_model_splits_what_is_split():
    shape = model_shapes.published_gpts()["18.4 B"]
    rows = memory.by_strategy(shape, 8, 8, "fp32", 1, "all")
    whole, tensor, pipeline = (
        rows[name] for name in ("one device", "tensor parallel", "pipeline, first stage")
    )
    for kind in sharding.KINDS:
        assert whole[kind] / 8 < tensor[kind] < 1.01 * whole[kind] / 8
        assert whole[kind] / 8 < pipeline[kind] < 1.2 * whole[kind] / 8
    assert pipeline["activations"] == whole["activations"], "1F1B: as many in flight as stages"
    assert tensor["activations"] < whole["activations"]
    alone = memory.by_strategy(shape, 1, 1, "fp32", 1, "all")
    first = alone["one device"]
    for name, row in alone.items():
        assert row == pytest.approx(first), f"{name} on one rank is one device"


def test_what_is_impossible_says_why():
    rows = memory.by_strategy(model_shapes.published_gpts()["7.5 B"], 64, 128, "fp32", 1, "all")
    assert rows["tensor parallel"] == "32 heads do not divide over 64 ranks"
    assert rows["pipeline, first stage"] == "36 layers do not make 64 stages"
    assert rows["HSDP, rows of 128"] == "64 ranks make no rows of 128"
    assert "32 heads do not divide over 64 ranks" in fallback_table(
        "memory", model="7.5 B", ranks=64
    )


def test_a_fallback_table_has_bytes_and_says_what_fits():
    drawn = explorers.make_fallback_table("memory", explorers.make_data("memory", samples=0))
    row = dict(zip(drawn.column("strategy"), drawn.rows, strict=True))["ZeRO-1"]
    kinds = ("parameters", "gradients", "optimizer", "activations")
    assert [row[kind] for kind in kinds] == ["15 GB", "15 GB", "1.41 GB", "0 bytes"]
    assert (row["all"], row["fits"]) == ("31.4 GB", "40 GB")
    assert "nothing here is measured" in drawn.caption
    assert " none\n" in fallback_table("memory", model="175 B", ranks=1, samples=32)


def test_a_page_without_widgets_shows_one_choice_of_each(monkeypatch, capsys):
    monkeypatch.setenv(simulators.VARIABLE, "0")
    shown = []
    monkeypatch.setattr(simulators, "display", shown.append)
    for kind in explorers.KINDS:
        assert getattr(simulators, kind)() is None
        assert f"simulators.{kind}(...) shows another" in capsys.readouterr().out
        assert str(shown.pop()) == fallback_table(kind)
