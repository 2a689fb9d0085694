"""Lesson 04b: what a rank did in a step, where ranks stand, and what a flight recorder says."""

import json
import pickle

import pytest

from bootcamp.records.runs import Run
from bootcamp_lessons import ddp_depth, excerpts, exercise
from bootcamp_lessons.exercises.data_parallel import late_rank

SCRIPT = "train.py"
# name, category, begin and length in ms: rank 1 is late by 50 ms, and rank 0 waits for it
SPANS = {
    0: [("aten::mm", "cpu_op", 0, 40), ("gloo:all_reduce", "user_annotation", 30, 70)],
    1: [("aten::mm", "cpu_op", 50, 40), ("gloo:all_reduce", "user_annotation", 80, 20)],
}


@pytest.fixture
def run(tmp_path):
    """A run of two ranks that traced a step of 100 ms."""
    (tmp_path / "ranks").mkdir()
    config = {"strategy": "ddp", "device": "cpu", "processes": 2, "cores_per_rank": 1}
    config |= {"machine": {"cpu": "a CPU", "cores": 2, "gpus": []}, "versions": {"torch": "2.13.0"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for rank, spans in SPANS.items():
        events = [
            {"ph": "X", "name": name, "cat": cat, "ts": 1e3 * begin, "dur": 1e3 * length}
            for name, cat, begin, length in [("training_step", "user_annotation", 0, 100), *spans]
        ]
        trace = {"traceEvents": events}
        (tmp_path / "ranks" / f"{rank}.trace.json").write_text(json.dumps(trace))
    table = "rank  last completed      standing in\n----  ------------------  -----------\n   0"
    stack = f'{table}\nrank 0, 2 steps done:\n  File "/x/{SCRIPT}", line 2 in <module>\n'
    summary = {"status": "failed", "error": {"kind": "hang", "traceback": stack}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    return Run(tmp_path)


def test_the_parts_of_a_step_add_up_and_tell_who_is_late(run):
    table = ddp_depth.split_step(run)
    assert table.column("computes") == pytest.approx([40, 40])
    assert table.column("waits") == pytest.approx([40, 0])
    assert table.column("sends") == pytest.approx([20, 10])
    assert table.column("neither") == pytest.approx([0, 50])
    assert late_rank(table.rows) == (1, "neither", pytest.approx(50))


def test_the_exercise_takes_the_table_of_the_lesson():
    task = exercise.find("late_rank")
    steps = {sum(rank.values()) for (ranks,) in task.cases for rank in ranks}
    assert steps == {200, 300}, "the parts add up to a step that is equally long on all ranks"


def test_where_a_rank_stands_is_a_line_of_the_script(run, tmp_path):
    script = tmp_path / SCRIPT
    script.write_text("import torch\nloss.backward()\n")
    assert excerpts.find_waiting_lines(run, script) == "rank 0\n    line 2: loss.backward()"


def test_the_flight_recorder_names_the_rank_that_parted(tmp_path):
    pytest.importorskip("torch.distributed.flight_recorder.fr_trace")
    group = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    for rank, called in enumerate(("all_reduce", "broadcast")):
        entry = {
            "frames": [{"name": "<module>", "filename": SCRIPT, "line": 7}],
            "record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"),
            "collective_seq_id": 1, "p2p_seq_id": 0, "op_id": 1, "is_p2p": False,
            "profiling_name": f"gloo:{called}", "time_created_ns": 1, "state": "scheduled",
            "input_sizes": [[1]], "input_dtypes": ["Float"],
            "output_sizes": [[1]], "output_dtypes": ["Float"],
            "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
        }  # fmt: skip
        dump = {"version": "2.10", "pg_config": group, "pg_status": {}, "entries": [entry]}
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(dump))
    said = ddp_depth.read_flight_recorder(tmp_path)
    assert "Culprit rank 1" in said
    assert f"<module> at {SCRIPT}:7" in said
