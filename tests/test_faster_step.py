"""A faster step: compiled, fused, read in a trace, rounded, fed by workers (lesson 02c)."""

import json
import os

import pytest
import torch
from trained import PROOF, trained

from bootcamp.launcher import process_tree
from bootcamp.launcher.launch import Options
from bootcamp.records import trace
from bootcamp_lessons import exercise
from bootcamp_lessons.labs import faster_step

PATIENT = {"options": Options(hang_seconds=600)}  # as in the lesson, whose runs these are


@pytest.mark.parametrize(("script", "graphs"), [("compile", 1), ("gpu", 0)])
def test_graphs_of_a_run_are_counted(script, graphs):
    own = {"backend": "aot_eager", **PATIENT} if graphs else {}
    (rank,) = trained(script, 1, optimizer="sgd", **PROOF, **own).ranks
    assert rank["compiled_graphs"] == graphs
    assert (rank["activation_bytes"] is None) == bool(graphs), "fused kernels' memory is not seen"


def event(name, begin, length, category="cpu_op", thread=1):
    return {"ph": "X", "name": name, "cat": category, "ts": begin, "dur": length, "tid": thread}


def test_own_time_of_an_operator_is_without_what_it_calls(tmp_path):
    step = event("training_step", 100, 100, "user_annotation")
    calls = [event("linear", 110, 50), event("mm", 120, 20), event("copy_", 130, 5)]
    others = [event("mm", 145, 10), event("mm", 20, 50), event("mm", 150, 30, thread=2)]
    path = tmp_path / "0.trace.json"
    path.write_text(json.dumps({"traceEvents": [step, *calls, *others]}))
    found = trace.time_operators(path)
    assert found["linear"] == (1, pytest.approx(20e-6))
    assert found["mm"] == (3, pytest.approx(55e-6)), "the one before the step does not count"
    assert next(iter(found)) == "mm", "the longest comes first"
    path.write_text(json.dumps({"traceEvents": calls}))
    with pytest.raises(ValueError, match="holds no whole step"):
        trace.time_operators(path)


def test_own_times_of_operators_add_up_to_the_time_in_operators():
    run = trained("gpu", 1, steps=8, global_batch=12, trace_step=6)
    path = run.folder / "ranks" / "0.trace.json"
    own = sum(seconds for _, seconds in trace.time_operators(path).values())
    assert own == pytest.approx(trace.total_seconds(trace.read_timeline(path)["compute"]), rel=1e-3)
    table = str(faster_step.profile_table(run))
    assert "outside of operators" in table
    assert 0 < int(table.split("Matrix products: ")[1].split("%")[0]) < 100


def test_rounding_is_to_the_nearest_and_ties_go_to_the_even_one():
    one, unit = 1.0, 2.0**-10  # the distance of TF32's numbers after 1
    given = torch.tensor([one + 0.4 * unit, one + 0.6 * unit, one + 0.5 * unit, one + 1.5 * unit])
    rounded = faster_step.round_bits(torch.cat([given, -given]), fraction=10)
    expected = torch.tensor([one, one + unit, one, one + 2 * unit])
    assert torch.equal(rounded, torch.cat([expected, -expected]))
    several = torch.randn(10_000, generator=torch.Generator().manual_seed(1)) * 1e3
    assert torch.equal(faster_step.round_bits(several, fraction=7), several.bfloat16().float())


@pytest.mark.parametrize(
    ("read", "train", "workers", "cores", "expected"),
    [
        (40, 20, 0, 2, 60),
        (40, 20, 2, 2, 30),
        (40, 20, 2, 8, 20),
        (90, 20, 2, 8, 45),
        (9, 9, 4, 1, 18),
    ],
)
def test_seconds_of_a_batch_are_the_longest_of_three(read, train, workers, cores, expected):
    assert faster_step.predict_batch_seconds(read, train, workers, cores) == expected


def with_item(gradient, longest):
    length = gradient.norm()
    return gradient * (longest / length) if length.item() > longest else gradient


def with_if(gradient, longest):
    length = gradient.norm()
    return gradient * (longest / length) if length > longest else gradient


def with_print(gradient, longest):
    length = gradient.norm()
    print(length)
    return gradient * (longest / length).clamp(max=1)


@pytest.mark.parametrize(
    ("given", "says"),
    [(with_item, "Tensor.item()"), (with_if, "An if on a tensor"), (with_print, "builtin")],
)
def test_values_from_a_broken_graph_are_no_solution(given, says):
    result = str(exercise.try_out(exercise.find("one_graph"), given))
    assert "Not solved" in result
    assert "The values are right." in result
    assert says in result


def test_cpu_seconds_of_ended_children_count():
    before = process_tree.read_cpu_seconds(os.getpid())
    child = os.fork()
    if not child:
        while sum(os.times()[:2]) < 0.3:
            pass
        os._exit(0)
    os.waitpid(child, 0)
    assert process_tree.read_cpu_seconds(os.getpid()) - before > 0.25
