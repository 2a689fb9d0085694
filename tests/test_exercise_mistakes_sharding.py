"""Exercises of lessons 06 to 08b and 13b: what typical wrong scripts are told, solutions by theory.

The wrong answers to `save_for_good` are in test_checkpoints_lesson.py, most of those to `two_axes`
in test_hsdp_lesson.py, some to `fully_sharded` and `split_the_blocks` in test_zero_lesson.py and
test_tensor_lesson.py.
"""

import itertools

import pytest
import torch
from torch.distributed import checkpoint as dcp

from bootcamp.costs import pipeline_schedules
from bootcamp.costs import sharding as sharding_theory
from bootcamp.launcher import launch
from bootcamp.scripts.variants import variant
from bootcamp.train import sharded_checkpoint
from bootcamp_lessons import exercise
from bootcamp_lessons.exercises import model_parallel, sharding

WRAPPED = "model = DistributedDataParallel(model, device_ids=None)"
BATCHES = "batches = data.Batches(args, rank, world)"
LAST = "schedule.step(*stage_inputs, target=targets, losses=losses, return_outputs=False)"
STAGE_INPUTS = "stage_inputs = (inputs,) if first_here else ()"
OUT, DOWN = (
    f'plan["{name}"] = RowwiseParallel(output_layouts=layout)' for name in ("attention.out", "down")
)
ENTER = "same = DTensor.from_local(inputs[0], mesh, [Replicate()])"
LEAVE = "return same.to_local(grad_placements=[Partial()])"
SHARDED = "fully_shard(model, mesh=mesh)"
BLOCKS = "for part in model[:-1]:"
SHAPE = "shape = (world // args.shard, args.shard)"
BUILT = "model = models.build(args)"
FILLED = "models.initialise(model, args)"
BACK = "return all_to_all(results, experts.sent, experts.received, dist.group.WORLD)"
THERE = BACK.replace("experts.sent, experts.received", "experts.received, experts.sent")
MINE = "for parameter in mine.values():"
SCALE = "parameter.grad /= world"

# for each exercise: what a reader has in place of lines of the solution, and words that help
MISTAKES = {
    "ranks_of_two_devices": [
        (
            {WRAPPED: WRAPPED.replace("None)", "[rank])")},
            "leave device_ids at None",
        ),
    ],
    "pipeline": [
        ({"if last_here:": "if first_here:"}, "it has to pass target=targets"),
        ({STAGE_INPUTS: "stage_inputs = ()"}, "has to pass the inputs"),
    ],
    "split_the_blocks": [
        ({DOWN: ""}, "split by rows."),
        (
            {line: line.replace("Rowwise", "Colwise") for line in (OUT, DOWN)},
            "split by rows.",
        ),
        (
            {line: line.replace("output_layouts=layout", "") for line in (OUT, DOWN)},
            "with --sequence-parallel it ends with an error",
        ),
    ],
    "stripes": [
        ({LEAVE: "return same.to_local()"}, "from there on gradients or the optimizer differ"),
        ({ENTER: ENTER.replace("Replicate()", "Shard(-1)")}, "Replicate, not Shard"),
        ({LEAVE: "return same"}, "takes plain tensors: end with to_local"),
    ],
    "fully_sharded": [
        (
            {
                BUILT: f"{BUILT}\nearly = list(model.parameters())",
                "optimizer = optimizers.build(args, model.parameters())": (
                    "optimizer = optimizers.build(args, early)"
                ),
            },
            "the optimizer holds none of the model's parameters",
        ),
        (
            {FILLED: f"{FILLED}\nmodel = torch.nn.parallel.DistributedDataParallel(model)"},
            "leave DDP out",
        ),
        (
            {BLOCKS: f"fully_shard(model, mesh=mesh)  # first\n{BLOCKS}", SHARDED: ""},
            "each block first",
        ),
    ],
    "experts_over_ranks": [
        ({BACK: THERE}, "change places"),
        ({SCALE: "pass"}, "from there on gradients or the optimizer differ"),
        (
            {MINE: MINE.replace("mine.values()", "model.parameters()")},
            "from there on gradients or the optimizer differ",
        ),
    ],
    "two_axes": [
        ({SHAPE: "shape = (world, args.shard)"}, "rows times columns is the world size"),
    ],
}


@pytest.mark.parametrize(
    ("name", "changes", "helps"),
    [(name, *mistake) for name, mistakes in MISTAKES.items() for mistake in mistakes],
)
def test_a_typical_mistake_gets_a_helpful_message(name, changes, helps, request):
    if name != "split_the_blocks":  # whose plan is that of a GPT
        request.getfixturevalue("quick_proofs")
    task = exercise.find(name)
    result = exercise.try_out(task, variant(task.solution, f"mistaken_{name}", changes))
    assert not result.solved
    assert helps in str(result), result
    for part in ("Expected: ", "Seen: ", f"Hint: {task.hint}"):
        assert part in str(result)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 3), (2, 2), (3, 7), (4, 8), (8, 8)])
def test_the_order_of_a_rank_is_that_of_the_plan(ranks, micro_batches):
    for rank, order in enumerate(pipeline_schedules.plan("1f1b", ranks, micro_batches)):
        said = model_parallel.order_of_rank(rank, ranks, micro_batches)
        assert said == [f"{action.kind}{action.micro_batch}" for action in order]


def test_the_part_of_a_rank_is_what_it_saves(tmp_path):
    flags = {"global_batch": 4, "device": "cpu", "quiet": True}
    launch.launch("tp", 2, steps=1, save=tmp_path / "tp", **flags)
    reader = dcp.FileSystemReader(sharded_checkpoint.find_newest(tmp_path / "tp"))
    note = reader.read_metadata()
    where = {(i.fqn, tuple(i.offset or ())): s.relative_path for i, s in note.storage_data.items()}
    weights = ["attention.query", "attention.out", "up", "down"]
    for name, rank in itertools.product(weights, (0, 1)):
        key = f"model.block0.{name}.weight"
        about = note.state_dict_metadata[key]
        said = model_parallel.part_of_rank(name.split(".")[-1], tuple(about.size), rank, 2)
        mine = [c for c in about.chunks if where[key, tuple(c.offsets)] == f"__{rank}_0.distcp"]
        assert [
            tuple((a, a + n) for a, n in zip(c.offsets, c.sizes, strict=True)) for c in mine
        ] == [said]


@pytest.mark.parametrize("case", sharding.lowest_stage.exercise.cases)
def test_the_lowest_stage_fits_and_the_one_below_does_not(case):
    parameters, ranks, gigabytes, share = case
    sums = [sum(sharding_theory.rank_bytes(parameters, ranks, k).values()) for k in range(4)]
    fits = [size <= share * gigabytes * 1e9 for size in sums]
    assert sharding.lowest_stage(*case) == fits.index(True)


@pytest.mark.parametrize("case", sharding.steps_between_saves.exercise.cases)
def test_steps_between_saves_are_the_best_interval(case):
    pytest.importorskip("matplotlib")
    from bootcamp_lessons.diagrams import saved_checkpoints

    parameters, rate, hosts, days, step_seconds = case
    best = saved_checkpoints.best_interval(12 * parameters / rate, days * 86400 / hosts)
    assert sharding.steps_between_saves(*case) * step_seconds == pytest.approx(best)


def test_a_row_and_a_column_are_those_of_the_mesh():
    for ranks, shard in ((4, 1), (4, 2), (8, 4), (12, 3), (6, 6)):
        mesh = torch.arange(ranks).view(-1, shard)  # as init_device_mesh lays ranks out
        for rank in range(ranks):
            place, column = divmod(rank, shard)
            expected = mesh[place].tolist(), mesh[:, column].tolist()
            assert sharding.row_and_column(rank, ranks, shard) == expected


def test_what_is_resumed_is_what_the_course_resumes(tmp_path):
    """A real folder: two saves, then one that was killed before it got its place."""
    flags = {"global_batch": 4, "device": "cpu", "quiet": True}
    launch.launch("fsdp", 2, steps=2, save=tmp_path, save_every=1, **flags)
    (tmp_path / "step-2").rename(tmp_path / ".step-2.4711.part")
    folders = {place.name: [f.name for f in place.iterdir()] for place in tmp_path.iterdir()}
    assert sorted(folders) == [".step-2.4711.part", "step-1"]
    assert sharding.resume_from(folders, 2) == sharded_checkpoint.find_newest(tmp_path).name
