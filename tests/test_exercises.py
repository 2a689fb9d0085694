"""Exercises: the solution is accepted, each typical mistake is refused with words that help.

Functions carry their mistakes; those of scripts are in MISTAKES, as lines of the solution and what
stands in their place. What a proof tells apart by itself is tested on written records, in
test_diagnosis.py. Cases of the clinic are in test_clinic.py, job files in test_slurm_jobs.py.
"""

import itertools

import pytest
import torch
import trained
from changes import read_changes
from torch.distributed import checkpoint as dcp
from torch.utils.data import DistributedSampler

from bootcamp.classroom import tasks
from bootcamp.classroom.tasks import FunctionTask
from bootcamp.costs import pipeline_schedules
from bootcamp.experiments import equality
from bootcamp.launcher import launch
from bootcamp.records import summary
from bootcamp.scripts import strategies
from bootcamp.scripts.variants import variant
from bootcamp.train import sharded_checkpoint
from bootcamp_lessons import exercise, exercises
from bootcamp_lessons.exercises import data_parallel, model_parallel, one_device, sharding
from bootcamp_lessons.labs import silent_bugs

FUNCTIONS = [task for task in exercises.EXERCISES.values() if isinstance(task, FunctionTask)]
SCRIPTS = [
    task
    for task in exercises.EXERCISES.values()
    if isinstance(task, tasks.ScriptTask) and task.solution in strategies.SCRIPTS
    if not isinstance(task, silent_bugs.Silent)  # test_silent.py
]
# where other tests prove a solution in another setting than the checker's: one training for both
PROVED_ELSEWHERE = {
    "fsdp": {"ranks": 4},
    "hsdp": {"ranks": 4, "shard": 2},
    "striped": {"model": "striped-lstm"},
    "ep": {"model": "moe"},
}


def names(task) -> str:
    return task.name


@pytest.fixture
def quick(request):
    """Let the checker prove with the quickest model, except where the answer is about a GPT."""
    with_gpt = ("split_the_blocks", "attend_to_all", "apex")
    if not any(name in request.node.name for name in with_gpt):
        request.getfixturevalue("quick_proofs")


def check_refusal(task, given, says: str) -> None:
    """Require that an answer is refused with these words, and with the task's hint."""
    result = exercise.try_out(task, given)
    assert not result.solved
    for part in ("Not solved yet", says, "Expected: ", "Seen: ", task.hint):
        assert part in str(result), result


@pytest.mark.solves(*(task.name for task in FUNCTIONS))
@pytest.mark.parametrize("task", FUNCTIONS, ids=names)
def test_functions_accept_the_solution_and_name_three_mistakes(task):
    assert exercise.try_out(task, task.solved_by).solved
    stub = exercise.try_out(task, lambda *case: None)
    assert not stub.solved
    assert "not written yet" in str(stub)
    assert len(task.mistakes) >= 3
    for mistake, says in task.mistakes.items():
        check_refusal(task, task.make_mistake(mistake), says)


@pytest.mark.solves(*(task.name for task in SCRIPTS))
@pytest.mark.parametrize("task", SCRIPTS, ids=names)
def test_scripts_accept_the_solution_and_refuse_the_start(task, tmp_path, monkeypatch, quick):
    """The solution is a script of the family: the checker judges the runs that prove that one."""
    attempt = tmp_path / f"{task.name}.py"
    attempt.write_text(task.starting_point())
    check_refusal(task, attempt, "")

    def prove(path, ranks, **_):
        assert path == strategies.SCRIPTS[task.solution].path
        how = {"ranks": ranks} | PROVED_ELSEWHERE.get(task.solution, {})
        return trained.proved(task.solution, **how)

    monkeypatch.setattr(equality, "prove", prove)
    with trained.shared():
        result = exercise.try_out(task, task.solution_path())
    assert result.solved, result


@pytest.mark.parametrize("task", SCRIPTS, ids=names)
def test_starting_points_are_derived_from_the_scripts(task):
    text, solution = task.starting_point(), task.solution_path().read_text()
    assert solution == strategies.SCRIPTS[task.solution].path.read_text()
    for line in task.takes_out:
        assert line in solution
        assert line not in text
    assert text.count(tasks.PLACE) == (1 if task.takes_out else 0)
    assert task.task in text
    compile(text, task.name, "exec")


MISTAKES = """
== training_loop: are the gradients set to zero in every step?
- optimizer.zero_grad()
== to_the_gpu: Two tensors met, one there and one still on the CPU
- model = models.build(args).to(device)
+ model = models.build(args)
== to_the_gpu: allows CPUs only
- args, context = config.parse()
+ args, context = config.parse(devices=("cpu",))
== to_the_gpu: a part of the batch was not moved
- inputs, targets = (tensor.to(device) for tensor in batches(step))
+ inputs, targets = batches(step)
+ targets = targets.to(device)
== accumulate: a mean of their means is not the mean of the batch
- loss = models.loss(model(part_inputs), part_targets) * len(part_inputs) / len(inputs)
+ loss = models.loss(model(part_inputs), part_targets) / args.micro_batches
== thread_replicas: do not add to it
- parameter.grad = sum(replica.grad for replica in copies)
+ parameter.grad += sum(replica.grad for replica in copies)
== data_parallel: give data.Batches the rank and the world size
- batches = data.Batches(args, rank, world)
+ batches = data.Batches(args, 0, 1)
== data_parallel: rank 0's parameters must be broadcast before training
- model = DistributedDataParallel(model)
- loss.backward()
+ loss.backward()
+ for parameter in model.parameters():
+     dist.all_reduce(parameter.grad)
+     parameter.grad /= world
== own_hook: a list with one tensor
- HOOKS = {
+ def average(state, bucket):
+     bucket.buffer().div_(dist.get_world_size())
+     return dist.all_reduce(bucket.buffer(), async_op=True).get_future()
+
+ HOOKS = {
- "none": default_hooks.allreduce_hook,
+ "none": average,
== from_horovod: The learning rate of step 0 is
- group["lr"] *= world
+ pass
== from_horovod: it clips no gradients
- torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
== from_horovod: A line still calls Horovod
- model = DistributedDataParallel(model)
+ model = hvd.DistributedOptimizer(model)
== from_apex: largest difference of a step's loss
- scaler.unscale_(optimizer)  # scale_loss did it at the end of its block
- scaler.step(optimizer)
+ scaler.unscale_(optimizer)
+ scaler.step(optimizer)
== from_apex: did not use scaler.scale(loss
- scaler.scale(loss).backward()
+ loss.backward()
== from_apex: unscale_() is being called after step()
- scaler.update()
== from_apex: a step with infinite gradients is made
- scaler.step(optimizer)
+ optimizer.step()
== from_apex: It needs none
- with torch.autocast(device.type, dtype=torch.float16):
+ autocast = torch.autocast(device.type, dtype=torch.float16)
+ with autocast:
- scaler.scale(loss).backward()
+ with autocast:
+     scaler.scale(loss).backward()
== from_apex: with the bare loss
- scaler = torch.amp.GradScaler(device.type)
+ scaler = torch.amp.GradScaler(device.type, enabled=False)
== from_apex: no layer computes in fp16
- with torch.autocast(device.type, dtype=torch.float16):
+ if True:
== ranks_of_two_devices: leave device_ids at None
- model = DistributedDataParallel(model, device_ids=None)
+ model = DistributedDataParallel(model, device_ids=[rank])
== pipeline: has to pass target=targets
- if last_here:
+ if first_here:
== pipeline: must be passed
- stage_inputs = (inputs,) if first_here else ()
+ stage_inputs = ()
== split_the_blocks: split by rows.
- plan["down"] = RowwiseParallel(output_layouts=layout)
== attend_to_all: final parameters apart
- key, value = (all_gather(part, 2, dist.group.WORLD) for part in (key, value))
- seen = mine[:, None] >= gathered
+ seen = mine[:, None] >= mine
== stripes: Replicate, not Shard
- same = DTensor.from_local(inputs[0], mesh, [Replicate()])
+ same = DTensor.from_local(inputs[0], mesh, [Shard(-1)])
== stripes: takes plain tensors: end with to_local
- return same.to_local(grad_placements=[Partial()])
+ return same
== fully_sharded: the optimizer holds none of the model's parameters
- model = models.build(args)
+ model = models.build(args)
+ early = list(model.parameters())
- optimizer = optimizers.build(args, model.parameters())
+ optimizer = optimizers.build(args, early)
== fully_sharded: leave DDP out
- models.initialise(model, args)
+ models.initialise(model, args)
+ model = torch.nn.parallel.DistributedDataParallel(model)
== fully_sharded: each block first
- fully_shard(model, mesh=mesh)
- for part in model[:-1]:
+ fully_shard(model, mesh=mesh)
+ for part in model[:-1]:
== fully_sharded: final parameters apart
- fully_shard(model[-1], mesh=mesh, reshard_after_forward=False)
- fully_shard(model, mesh=mesh)
== fully_sharded: still gathered when the backward pass begins
- fully_shard(part, mesh=mesh, reshard_after_forward=not args.keep_gathered)
+ fully_shard(part, mesh=mesh, reshard_after_forward=False)
== experts_over_ranks: change places
- return all_to_all(results, experts.sent, experts.received, dist.group.WORLD)
+ return all_to_all(results, experts.received, experts.sent, dist.group.WORLD)
== two_axes: Rows times columns is the world size
- shape = (world // args.shard, args.shard)
+ shape = (world, args.shard)
== two_axes: with --shard 1 a rank holds 25% of the parameters, not 100%
- shape = (world // args.shard, args.shard)
- mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
+ mesh = init_device_mesh(device.type, (world,))
== bring_evaluation: deals some samples twice
- valid_loader = DataLoader(Subset(valid, range(rank, len(valid), world)), args.batch_size)
+ some = DistributedSampler(valid, world, rank, shuffle=False)
+ valid_loader = DataLoader(valid, args.batch_size, sampler=some)
== bring_fsdp: takes those that are left
- if isinstance(layer, nn.Conv2d | nn.Linear):
+ if layer is model[0]:
- fully_shard(model)  # the rest: two BatchNorm layers
"""


@pytest.mark.parametrize(("heading", "changes"), read_changes(MISTAKES))
def test_scripts_with_a_typical_mistake_are_told_what_helps(heading, changes, quick):
    name, says = heading.split(": ", 1)
    task = exercise.find(name)
    check_refusal(task, variant(task.solution, f"mistaken_{name}", changes), says)


@pytest.mark.solves("from_horovod", "from_apex")
@pytest.mark.parametrize("name", ["horovod", "apex"])
def test_ports_are_checked_without_what_they_leave(name, tmp_path, monkeypatch, quick):
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "horovod")
    task, attempt = exercise.find(f"from_{name}"), tmp_path / "port.py"
    attempt.write_text(task.starting_point())
    check_refusal(task, attempt, f"it still imports {name.capitalize()}")
    assert exercise.try_out(task, task.solution_path()).solved


# Solutions against the library, the theory, and what runs leave


@pytest.mark.parametrize(("samples", "world"), [(8, 2), (9, 2), (9, 4), (3, 3)])
def test_samples_of_rank_are_those_of_the_library(samples, world):
    for rank in range(world):
        sampler = DistributedSampler(range(samples), world, rank, shuffle=True)
        order = list(DistributedSampler(range(samples), 1, 0, shuffle=True))
        assert data_parallel.samples_of_rank(order, rank, world) == list(sampler)


def test_throughput_is_that_of_the_record():
    seconds = [0.9, 0.4, 0.3, 0.1, 0.12, 0.2, 0.11, 0.13]
    rows = [{"seconds": s, "samples": 32, "tokens": 1, "loss": 1.0} for s in seconds]
    by_record = summary.summarize_steps(rows)["samples_per_second"]["median"]
    assert one_device.throughput(seconds, 32, summary.WARMUP_STEPS) == by_record


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 3), (2, 2), (3, 7), (4, 8), (8, 8)])
def test_order_of_rank_is_that_of_the_plan(ranks, micro_batches):
    for rank, order in enumerate(pipeline_schedules.plan("1f1b", ranks, micro_batches)):
        said = model_parallel.order_of_rank(rank, ranks, micro_batches)
        assert said == [f"{action.kind}{action.micro_batch}" for action in order]


def test_saved_parts_are_those_of_a_real_run(tmp_path):
    """Two saves, of which the second was killed before it got its place."""
    flags = {"global_batch": 4, "device": "cpu", "quiet": True}
    launch.launch("tp", 2, steps=2, save=tmp_path, save_every=1, **flags)
    (tmp_path / "step-2").rename(tmp_path / ".step-2.4711.part")
    newest = sharded_checkpoint.find_newest(tmp_path)
    assert newest.name == "step-1"
    note = dcp.FileSystemReader(newest).read_metadata()
    where = {(i.fqn, tuple(i.offset or ())): s.relative_path for i, s in note.storage_data.items()}
    weights = ["attention.query", "attention.out", "up", "down"]
    for name, rank in itertools.product(weights, (0, 1)):
        key = f"model.block0.{name}.weight"
        about = note.state_dict_metadata[key]
        said = model_parallel.part_of_rank(name.split(".")[-1], tuple(about.size), rank, 2)
        mine = [c for c in about.chunks if where[key, tuple(c.offsets)] == f"__{rank}_0.distcp"]
        ranges = [[(a, a + n) for a, n in zip(c.offsets, c.sizes, strict=True)] for c in mine]
        assert ranges == [list(said)]


def test_steps_between_saves_are_the_best_interval():
    pytest.importorskip("matplotlib")
    from bootcamp_lessons.diagrams import saved_checkpoints

    for case in sharding.steps_between_saves.exercise.cases:
        parameters, rate, hosts, days, step_seconds = case
        best = saved_checkpoints.best_interval(12 * parameters / rate, days * 86400 / hosts)
        assert sharding.steps_between_saves(*case) * step_seconds == pytest.approx(best)


def test_row_and_column_are_those_of_the_mesh():
    for ranks, shard in ((4, 1), (4, 2), (8, 4), (12, 3), (6, 6)):
        mesh = torch.arange(ranks).view(-1, shard)  # as init_device_mesh lays ranks out
        for rank in range(ranks):
            place, column = divmod(rank, shard)
            expected = mesh[place].tolist(), mesh[:, column].tolist()
            assert sharding.row_and_column(rank, ranks, shard) == expected
