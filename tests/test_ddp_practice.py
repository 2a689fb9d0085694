"""Lesson 04d: DDP with what people add to it still trains one process's model; who is late."""

import json

import pytest
from trained import trained

from bootcamp.experiments import equality
from bootcamp.launcher import hang
from bootcamp.paths import SRC
from bootcamp.records.runs import Run
from bootcamp.scripts.variants import variant
from bootcamp_lessons import ddp_practice
from bootcamp_lessons.excerpts import parse_printed

SNIPPETS = SRC / "snippets"
OPTIMIZERS = pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
BACKWARD, CLIP = "loss.backward()", "torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)"
WRAP = "model = DistributedDataParallel(model)"
FLAGS = {name: value for name, value in ddp_practice.FLAGS.items() if name != "quiet"}
AVERAGE = "for p in model.parameters():\n    dist.all_reduce(p.grad)\n    p.grad /= world"


def clipped_baseline(**flags):
    return ddp_practice.launch_baseline(trained, **flags)


@pytest.mark.proves("ddp_in_practice")
@OPTIMIZERS
def test_clipped_compiled_and_with_a_tuple_it_trains_the_baselines_model(optimizer):
    flags = {**FLAGS, "optimizer": optimizer, "model": "mlp"}
    run = trained(ddp_practice.make_compiled_script(), 2, backend="aot_eager", **flags)
    proof = equality.same_training(run, clipped_baseline(**flags))
    assert any("contents" in row["compared"] for row in proof.rows)
    assert "graphs: 1" in run.output(0)


def test_the_baseline_is_clipped():
    proof = equality.compare(
        clipped_baseline(optimizer="sgd"), equality.baseline(optimizer="sgd", **FLAGS)
    )
    assert "final parameters apart" in str(proof.failed[-1]["compared"])


@pytest.mark.proves("ddp_in_practice")
@OPTIMIZERS
def test_accumulated_and_clipped_it_trains_the_baselines_model(optimizer):
    run = trained(
        ddp_practice.make_accumulating_script(), 2, micro_batches=3, optimizer=optimizer, **FLAGS
    )
    equality.same_training(run, clipped_baseline(optimizer=optimizer))


HIDDEN = """class Own:
    def __init__(self, values):
        self.values = values


class WithLoss(torch.nn.Sequential):"""
WRONG = {  # script, its changed lines, a word of the rows that fail
    "clipped before the average": (
        "ddp_in_practice",
        {WRAP: "", CLIP: f"{CLIP}\n{AVERAGE}"},
        "final parameters",
    ),
    "outputs that DDP can't find": (
        "ddp_in_practice",
        {
            "class WithLoss(torch.nn.Sequential):": HIDDEN,
            'return models.loss(outputs, targets), {"outputs": outputs}': "return Own("
            "models.loss(outputs, targets))",
            WRAP: WRAP.replace("(model)", "(model, static_graph=True)"),
            "loss, _ = model(inputs, targets)": "loss = model(inputs, targets).values",
        },
        "final parameters",
    ),
    "parts that are not divided": (
        ddp_practice.ACCUMULATE,
        {
            "micro_loss = models.loss(model(inputs[micro]), targets[micro]) / args.micro_batches": (
                "micro_loss = models.loss(model(inputs[micro]), targets[micro])"
            ),
            ddp_practice.STEP: ddp_practice.CLIPPED,
        },
        "loss",
    ),
    "clipped in each micro-batch": (
        ddp_practice.ACCUMULATE,
        {
            "micro_loss.backward()": "micro_loss.backward()\n"
            + ddp_practice.CLIPPED.partition("\n")[0],
        },
        "final parameters",
    ),
}


@pytest.mark.rejects("clipped before the average", "outputs hidden from DDP", "parts not divided")
@pytest.mark.parametrize("name", WRONG)
def test_rejects_what_people_get_wrong(name):
    script, changes, row = WRONG[name]
    flags = {**FLAGS, "optimizer": "sgd", "model": "mlp"}
    parts = {"micro_batches": 3} if script == ddp_practice.ACCUMULATE else {}
    run = trained(variant(script, f"wrong_{len(name)}", changes), 2, **parts, **flags)
    failed = equality.compare(run, clipped_baseline(optimizer="sgd", model="mlp")).failed
    assert any(row in one["compared"] for one in failed), failed


def test_only_sums_in_one_order_evaluate_as_one_process_does():
    runs = [trained(SNIPPETS / "ddp_evaluate.py", ranks) for ranks in (1, 2, 3)]
    alone = {row["way"]: row for row in parse_printed(runs[0])}["sums"]
    for run in runs:
        for row in parse_printed(run):
            same = (row["loss"], row["accuracy"]) == (alone["loss"], alone["accuracy"])
            assert same == (row["way"] == "sums" or row["way"][:6] + str(row["ranks"]) == "padded1")


def said(tmp_path, own):
    """A run whose ranks printed so many seconds of own work, in steps of 0.1 s."""
    (tmp_path / "ranks").mkdir(parents=True)
    for rank, steps in enumerate(own):
        row = {"rank": rank, "own": steps, "rest": [0.1 - seconds for seconds in steps]}
        (tmp_path / "ranks" / f"{rank}.out").write_text(json.dumps(row))
    (tmp_path / "config.json").write_text(json.dumps({"processes": len(own)}))
    return Run(tmp_path)


@pytest.mark.parametrize(
    ("own", "late"),
    [
        ([[0.010] * 8, [0.013] * 8], 1),
        ([[0.0130] * 8, [0.0100] * 8, [0.0102] * 8], 0),
        ([[0.010] * 8, [0.0105] * 8], None),
        ([[0.010] * 8, [0.010] * 5 + [0.080] * 3], None),  # disturbed now and then, not late
    ],
)
def test_the_late_rank_is_the_one_with_the_longest_own_work(tmp_path, own, late):
    assert ddp_practice.find_straggler(said(tmp_path, own)) == late


def test_a_rank_that_never_came_is_named_by_the_others_collectives():
    found = hang.read(ddp_practice.launch_stuck(1, ranks=2))
    assert (found.kind, found.ranks) == ("missing", (1,))
