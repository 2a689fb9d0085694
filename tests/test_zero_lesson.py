"""Notebook 07: ZeRO by hand, what accumulation tells apart, and the exercise's checker."""

import pytest
from trained import trained

from bootcamp.launcher import launch
from bootcamp.paths import SRC
from bootcamp.scripts.variants import variant
from bootcamp_lessons import excerpts, exercise

SNIPPET = {"device": "cpu", "quiet": True}


def printed(snippet, ranks):
    return excerpts.parse_printed(trained(excerpts.SNIPPETS / f"{snippet}.py", ranks, **SNIPPET))


@pytest.mark.parametrize("ranks", [2, 3])
def test_zero_by_hand_is_the_whole_training_and_holds_its_parts(ranks):
    stages = printed("zero_by_hand", ranks)
    psi = stages[0]["numbers"]
    layer, whole = psi // 8, 8 * psi
    asks = [{"all-reduce": psi}, *[{"reduce-scatter": psi, "all-gather": psi}] * 2]
    asks.append({"reduce-scatter": psi, "all-gather": 2 * psi})
    for number, stage in enumerate(stages):
        assert stage["stage"] == number
        assert max(stage["apart"].values()) < 1e-10, "both optimizers"
        assert stage["carried"] == asks[number]
        most = stage["most"]
        assert most["optimizer"] == 2 * whole / (ranks if number >= 1 else 1)
        parts = 8 * (layer + 7 * layer / ranks)  # one that is not cut yet, seven parts
        assert most["gradients"] == (parts if number >= 2 else whole)
        one_whole = whole / ranks + 8 * layer
        assert most["parameters"] == (one_whole if number == 3 else whole)
        assert stage["kept"]["parameters"] == (whole / ranks if number == 3 else whole)


@pytest.mark.skipif(not launch.available("deepspeed"), reason="DeepSpeed is not installed")
def test_stage_1_keeps_all_gradients_between_micro_batches():
    first, second = printed("zero_accumulate", 4)
    whole = first["whole"]
    assert first["ends"] == [whole, whole // 4]
    assert second["ends"] == [whole // 4, whole // 4]
    assert max(first["looks"]) == whole > max(second["looks"])


def test_without_deepspeed_the_program_says_nothing():
    path = SRC / "snippets" / "zero_accumulate.py"
    options = launch.Options(env={"BOOTCAMP_WITHOUT": "deepspeed"})
    run = launch.launch(path, 2, options=options, **SNIPPET)
    assert not [line for line in run.output(0).splitlines() if line.startswith('{"')]


FILLED = "models.initialise(model, args)"
OUTER = "fully_shard(model, mesh=mesh)"
HEAD = "fully_shard(model[-1], mesh=mesh, reshard_after_forward=False)"
LOOP = "for part in model[:-1]:"
INNER = "fully_shard(part, mesh=mesh, reshard_after_forward=not args.keep_gathered)"


@pytest.mark.parametrize(
    ("changes", "helps"),
    [
        ({HEAD: "", OUTER: ""}, "final parameters apart"),  # the head is nobody's
        (
            {
                OUTER: "",
                FILLED: f"{FILLED}\nmodel = torch.nn.parallel.DistributedDataParallel(model)",
                LOOP: "",
                HEAD: "",
                INNER: "",
            },
            "something is not sharded",
        ),
    ],
    ids=["blocks alone", "still DDP"],
)
@pytest.mark.usefixtures("quick_proofs")
def test_the_exercise_names_the_mistake(changes, helps):
    task = exercise.find("fully_sharded")
    result = exercise.try_out(task, variant("fsdp", "zero_reader", changes))
    assert not result.solved
    assert helps in str(result)
    assert task.hint in str(result)
