"""Files that several processes share lose nothing, and numbers are written one way."""

import os
import subprocess
import sys

import pytest

from bootcamp import units
from bootcamp.files import read_json, update_json
from bootcamp.records.steps import Steps

# one file of anybody's, and two of the course's, changed by two processes at once
CHANGES = """
import sys
from pathlib import Path
from bootcamp.classroom import journal
from bootcamp.files import update_json
from bootcamp.paths import LOGS
from bootcamp_lessons import plan_contest

def change(content):
    content["all"] = content.get("all", 0) + 1

print(flush=True)
sys.stdin.read()  # both begin at once
for number in range(30):
    update_json(Path(sys.argv[1]), change)
    journal.note_prediction(f"{sys.argv[2]} {number}", True)
    plan_contest.add_entry(LOGS / "capstone.json", {"who": sys.argv[2], "plan": str(number)})
"""


def test_files_that_two_processes_change_at_once_lose_nothing(tmp_path):
    path, env = tmp_path / "new folder" / "shared.json", dict(os.environ)
    env |= {"BOOTCAMP_LOGS": str(tmp_path / "logs"), "BOOTCAMP_WORK": str(tmp_path / "work")}
    command = [sys.executable, "-c", CHANGES, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    both = [subprocess.Popen([*command, name], env=env, **pipes) for name in ("a", "b")]
    for process in both:
        process.stdout.readline()  # it has imported all that it needs
    for process in both:
        process.stdin.close()
    assert [process.wait(60) for process in both] == [0, 0]
    assert read_json(path) == {"all": 60}
    assert len(read_json(tmp_path / "work" / "progress.json")["predictions"]) == 60
    assert len(read_json(tmp_path / "logs" / "capstone.json")["entries"]) == 60


def test_file_is_as_it_was_when_a_change_fails(tmp_path):
    path = tmp_path / "shared.json"
    assert update_json(path, lambda content: content.update(x=1)) == {"x": 1}
    with pytest.raises(ZeroDivisionError):
        update_json(path, lambda content: content.update(x=1 / 0))
    assert update_json(path, lambda content: content.update(y=2)) == {"x": 1, "y": 2}


def test_file_without_a_json_object_is_empty(tmp_path):
    path = tmp_path / "shared.json"
    assert read_json(path) == {}
    for text in ("{", "[]", "\x00"):
        path.write_text(text)
        assert read_json(path) == {}


def test_steps_are_read_as_they_come(tmp_path):
    """Half a line is no row yet; the last row of a step that is done again counts."""
    steps = Steps(tmp_path)
    assert steps.read_new() == steps.rows == []
    with open(tmp_path / "steps.jsonl", "a") as file:
        file.write('{"step": 0}\n{"step": 1')
        file.flush()
        assert [row["step"] for row in steps.read_new()] == [0]
        file.write('1}\nnull\n{"loss": 2}\n{"step": 0}\n{"step": 0, "attempt": 1}\n')
        file.flush()
        assert [row["step"] for row in steps.read_new()] == [11, 0, 0]
        assert steps.read_new() == []
    assert steps.rows == [{"step": 0, "attempt": 1}, {"step": 11}]
    (tmp_path / "steps.jsonl").write_text('{"step": 7}\n')  # another run in the same place
    assert steps.read_new() == steps.rows == [{"step": 7}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.count(4, "core"), "4 cores"),
        (units.size(1500), "1.5 kB"),
        (units.size(999_600_000), "1,000 MB"),
        (units.time(40e-6), "40 µs"),
        (units.time(1.2345), "1,234 ms"),
        (units.time(12.34), "12.3 s"),
        (units.duration(125), "2 min 5 s"),
        (units.duration(4200), "1 h 10 min"),
        (units.flops(100e12), "100 TFLOP/s"),
        (units.number(1234567), "1,234,567"),
        (units.number(0.0001234), "1.23e-04"),
        (units.number(12.345), "12.35"),
        (units.number(None), "-"),
        (units.number(4.0, whole=False), "4.000"),
    ],
)
def test_numbers_have_their_units(text, expected):
    assert text == expected
