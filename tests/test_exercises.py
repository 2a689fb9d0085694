"""Exercises: the solution is accepted, each typical mistake is refused with words that help.

Functions carry their mistakes; those of scripts are in mistakes/exercises.diff, as lines of the
solution and what stands in their place. What a proof tells apart by itself is tested on written
records, in test_diagnosis.py. Cases of the clinic are in test_clinic.py, job files in
test_slurm_jobs.py.
"""

import itertools

import pytest
import run_cache
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


@pytest.mark.parametrize(("heading", "changes"), read_changes("exercises"))
def test_scripts_with_a_typical_mistake_are_told_what_helps(heading, changes, quick):
    name, says = heading.split(": ", 1)
    task = exercise.find(name)
    with trained.shared(), run_cache.repeated():  # what it is held against is trained once
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
