"""Exercises of lessons 00 to 05: wrong answers that readers give, and the words that help."""

import pytest
from torch.utils.data import DistributedSampler

from bootcamp.experiments import equality
from bootcamp.launcher import launch
from bootcamp.records import summary
from bootcamp.scripts.variants import variant
from bootcamp_lessons import exercise
from bootcamp_lessons.exercises import data_parallel, one_device

STEP = "optimizer.step()"
BACKWARD = "loss.backward()"
BUILD = "model = models.build(args).to(device)"
MOVED = "inputs, targets = (tensor.to(device) for tensor in batches(step))"
PART = "loss = models.loss(model(part_inputs), part_targets) * len(part_inputs) / len(inputs)"
ADD = "parameter.grad = sum(replica.grad for replica in copies)"
DEVICE = "device = torch.device(context.device)"
BATCHES = "batches = data.Batches(args, rank, world)"
WRAP = "model = DistributedDataParallel(model)"
MEAN = "mean_loss = loss.detach() / world"
REDUCE = "run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))"
HOOK = '"none": default_hooks.allreduce_hook,'
OF_HOOKS = "HOOKS = {"
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)"
BY_HAND = {  # data parallelism without the library, and without a broadcast at the start
    WRAP: "",
    BACKWARD: f"{BACKWARD}\nfor parameter in model.parameters():\n"
    "    dist.all_reduce(parameter.grad)\n    parameter.grad /= world",
}


def own_hook(*lines: str) -> dict[str, str]:
    """Enter a hook of the reader's, with these lines after the usual ones."""
    body = "\n".join(f"    {line}" for line in lines)
    return {
        OF_HOOKS: f"def average(state, bucket):\n{body}\n\n\n{OF_HOOKS}",
        HOOK: '"none": average,',
    }


DIVIDE = "bucket.buffer().div_(dist.get_world_size())"
SUM = "future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()"

# Causes that a proof tells apart are tested on written records in test_diagnosis.py. Here are those
# that an exercise alone knows, and one wrong answer of each exercise from end to end.
# for each exercise: lines of the solution and what stands in their place, words of the message
MISTAKES = {
    "first_run": [
        (
            {STEP: "optimizer.step"},
            "with its brackets, comes after backward() and before the gradients are set to zero",
        ),
    ],
    "training_loop": [
        ({"optimizer.zero_grad()": ""}, "are the gradients set to zero in every step?"),
    ],
    "to_the_gpu": [
        ({BUILD: BUILD.removesuffix(".to(device)")}, "Two tensors met"),
        (
            {MOVED: "inputs, targets = batches(step)\ninputs.to(device)\ntargets.to(device)"},
            "keep what it returns",
        ),
        (
            {"args, context = config.parse()": 'args, context = config.parse(devices=("cpu",))'},
            "allows the CPU only",
        ),
        (
            {MOVED: "inputs, targets = batches(step)\ninputs = inputs.to(device)"},
            "one there and one still on the CPU",
        ),
        (
            {MOVED: "inputs, targets = batches(step)\ntargets = targets.to(device)"},
            "a part of the batch was not moved",
        ),
    ],
    "accumulate": [
        (
            {PART: PART.replace("* len(part_inputs) / len(inputs)", "/ args.micro_batches")},
            "a mean of their means is not the mean of the batch",
        ),
        ({BACKWARD: "", STEP: f"{BACKWARD}\n{STEP}"}, "Is a part left out"),
    ],
    "thread_replicas": [
        ({ADD: ADD.replace("=", "+=", 1)}, "do not add to it"),
    ],
    "data_parallel": [
        (
            {BATCHES: "batches = data.Batches(args, 0, 1)"},
            "give data.Batches the rank and the world size",
        ),
        (
            {MEAN: "mean_loss = loss.detach()", REDUCE: "run.loss(mean_loss)"},
            "the recorded loss is not. It must be the mean over the global batch: over all ranks, "
            "neither a sum nor one rank's share",
        ),
        (
            {"for step in range(first, args.steps):": "for step in range(first, args.steps - 1):"},
            "Give every step its",
        ),
        ({WRAP: "model = DDP(model)"}, "NameError: name 'DDP' is not defined"),
        (BY_HAND, "rank 0's parameters must be broadcast before training"),
    ],
    "own_hook": [
        (own_hook(DIVIDE, SUM, "return future"), "a list with one tensor"),
        (own_hook(DIVIDE, "return bucket.buffer()"), "has to return at once, with a future"),
    ],
    "from_horovod": [
        ({'group["lr"] *= world': "pass"}, "The learning rate of step 0 is "),
        ({CLIP: ""}, "it clips no gradients"),
        ({WRAP: "model = hvd.DistributedOptimizer(model)"}, "A line still calls Horovod"),
    ],
}
CASES = [
    pytest.param(name, number, *mistake, id=f"{name}-{number}")
    for name, mistakes in MISTAKES.items()
    for number, mistake in enumerate(mistakes)
]


@pytest.mark.usefixtures("quick_proofs")
@pytest.mark.parametrize(("name", "number", "changes", "says"), CASES)
def test_a_wrong_answer_is_told_what_helps(name, number, changes, says):
    task = exercise.find(name)
    result = exercise.try_out(task, variant(task.solution, f"{name}_{number}", changes))
    assert not result.solved
    assert task.hint in str(result)
    assert says in str(result)


@pytest.mark.solves("from_horovod")
@pytest.mark.usefixtures("quick_proofs")
def test_a_port_from_horovod_is_checked_without_horovod(tmp_path, monkeypatch):
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "horovod")
    task, attempt = exercise.find("from_horovod"), tmp_path / "from_horovod.py"
    attempt.write_text(task.starting_point())
    assert "it still imports Horovod" in str(exercise.try_out(task, attempt))
    assert exercise.try_out(task, task.solution_path()).solved


@pytest.mark.parametrize(("samples", "world"), [(8, 2), (9, 2), (9, 4), (3, 3)])
def test_samples_of_rank_are_those_of_the_library(samples, world):
    for rank in range(world):
        sampler = DistributedSampler(range(samples), world, rank, shuffle=True)
        order = list(DistributedSampler(range(samples), 1, 0, shuffle=True))
        assert data_parallel.samples_of_rank(order, rank, world) == list(sampler)


def test_a_loss_that_is_no_number_is_explained_too():
    first = "loss = models.loss(model(inputs), targets)"
    flags = {"steps": 1, "optimizer": "sgd", "model": "mlp"}
    broken = variant("gpu", "loss_is_nan", {first: f"{first} * float('nan')"})
    run = launch.launch(broken, 1, quiet=True, **flags)
    failed = equality.compare(run, equality.baseline(**flags)).failed
    assert "They differ from step 0 on" in failed[0]["hint"]


def test_throughput_is_that_of_the_record():
    seconds = [0.9, 0.4, 0.3, 0.1, 0.12, 0.2, 0.11, 0.13]
    rows = [{"seconds": s, "samples": 32, "tokens": 1, "loss": 1.0} for s in seconds]
    by_record = summary.summarize_steps(rows)["samples_per_second"]["median"]
    assert one_device.throughput(seconds, 32, summary.WARMUP_STEPS) == by_record


def test_a_start_that_is_not_the_baselines_is_told_from_ranks_that_differ():
    begins = "run = record.Run(context, model, optimizer, batches, world)"
    smaller = f"for parameter in model.parameters():\n    parameter.data *= 0.99\n{begins}"
    flags = {"steps": 2, "optimizer": "sgd", "model": "mlp"}
    run = launch.launch(variant("gpu", "starts_smaller", {begins: smaller}), 1, quiet=True, **flags)
    hints = [row["hint"] for row in equality.compare(run, equality.baseline(**flags)).failed]
    assert any("changed the parameters before the first step" in hint for hint in hints)
