"""Recorded runs: what becomes one, what stands in where Horovod or hosts are missing."""

import gzip
import json
import re
import shutil
import sys

import pytest
import reference

from bootcamp.experiments import claims, replay
from bootcamp.files import write_json
from bootcamp.paths import REFERENCE, ROOT
from bootcamp.records import runs
from bootcamp_lessons.labs import hsdp_lab

RECORD = REFERENCE / "xeon-2core-ddp-2"
HOROVOD, HSDP = REFERENCE / "05_horovod", REFERENCE / "08_hsdp"
LINKED = {f"{name}-{link}" for name in ("ddp", "fsdp", "hsdp") for link in ("open", "slow")}


@pytest.fixture
def run(tmp_path):
    """A run of this machine's, with all kinds of files in its folder."""
    folder = tmp_path / "logs" / "run"
    shutil.copytree(RECORD, folder)
    for name, text in {
        "ranks/0.out": f"wrote {ROOT}/notebooks/x\n",
        "ranks/1.err": "[W] a warning of the socket\n",
        "ranks/launcher.out": f"[1]<stdout>:2nd\n[0]<stdout>:1st {ROOT}/x\n[0]<stdout>:  more\n",
        "ranks/0.beat": "1 2\n",
        "timeline.json": "x" * 200_000,
    }.items():
        (folder / name).write_text(text)
    return folder


def share_cores(folder):
    said = json.loads((folder / "summary.json").read_text())
    write_json(folder / "summary.json", said | {"shared_cores": True})


def test_record_has_what_lessons_read_and_no_folder_of_this_machine(run, tmp_path):
    record = tmp_path / "record"
    replay.keep_run(runs.Run(run), record)
    kept = {path.name for path in record.rglob("*.*")}
    assert {"0.json", "1.json", "0.out", "launcher.out", "timeline.json.gz"} <= kept
    assert not kept & {"1.err", "0.beat", "timeline.json"}
    assert (record / "ranks" / "0.out").read_text() == "wrote ./notebooks/x\n"
    assert replay.read_printed_lines(runs.Run(record)) == ["1st ./x", "  more", "2nd"]


def test_run_that_shared_its_cores_becomes_no_record(run, tmp_path, monkeypatch, capsys):
    """It leaves an earlier record alone, and ends the tool that records with one sentence."""
    share_cores(run)
    kept = tmp_path / "new" / "xeon-2core-cpu-1" / "summary.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("the earlier one")
    with pytest.raises(replay.NotRecorded, match="run shared its cores with another run, so its"):
        replay.keep_run(runs.Run(run), kept.parent)
    assert kept.read_text() == "the earlier one"
    monkeypatch.setattr(reference.launch, "launch", lambda *_, **__: runs.Run(run))
    arguments = ["reference.py", "here", "--folder", str(tmp_path / "other"), "--only", "cpu-1"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert reference.main() == 1
    assert re.fullmatch("run shared its cores with another run.*\n", capsys.readouterr().out)
    assert not (tmp_path / "other").exists()


# The records that there are


def test_records_are_what_the_tool_makes_and_are_all_read():
    """A run that no deck, lesson or test names is weight."""
    wanted = {f"xeon-2core-{run.name}-{run.ranks}" for run in reference.RUNS}
    assert wanted == {path.name for path in REFERENCE.glob("xeon-2core-*")}
    places = {"slides": "**/*.md", "notebooks/sources": "*.py", "tests": "*.py"}
    places["src/bootcamp_lessons"] = "**/*.py"
    paths = (path for folder, pattern in places.items() for path in (ROOT / folder).glob(pattern))
    text = "\n".join(path.read_text() for path in paths if "expected" not in path.parts)
    names = [name.removeprefix("xeon-2core-") for name in wanted]
    names += [path.name for path in REFERENCE.glob("0*/*") if path.is_dir()]
    assert len(names) > 50
    assert [name for name in names if not re.search(rf'["/]{re.escape(name)}\b', text)] == []


@pytest.mark.parametrize("lesson", [HOROVOD, HSDP], ids=lambda folder: folder.name)
def test_records_name_no_place_of_a_machine(lesson):
    for path in (path for path in lesson.rglob("*") if path.is_file()):
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
            assert not re.search(rf"{ROOT}|/(root|home|tmp|work)/", file.read()), path


@pytest.mark.parametrize("name", sorted(LINKED))
def test_recorded_bytes_and_seconds_are_those_of_the_theory(name):
    run = replay.Run(HSDP / name)
    link = hsdp_lab.LINK if name.endswith("slow") else "open"
    assert (run.config["hosts"], run.config["link"]) == (2, link)
    theory = hsdp_lab.predict_link_bytes(name.split("-")[0].upper())
    for host in (run.ranks[:2], run.ranks[2:]):
        sent = sum(rank["sent_to_other_hosts_bytes_per_step"] for rank in host)
        assert sent == pytest.approx(theory, rel=0.02)
    if name.endswith("slow"):
        burst = 128e3  # which the token bucket lets through at once
        rate = float(hsdp_lab.LINK.removesuffix("mbit")) * 1e6 / 8
        assert run.seconds_per_step > (hsdp_lab.crossing_bytes(run) - burst) / rate


# Where something is missing


@pytest.mark.parametrize(
    ("lesson", "needs", "name", "says"),
    [
        ("05_horovod", "horovod", "horovod", "make horovod"),
        ("08_hsdp", "hosts", "hsdp-slow", "Hosts can't be made on this machine"),
    ],
)
def test_launch_without_its_needs_answers_from_the_record(
    lesson, needs, name, says, monkeypatch, capsys
):
    monkeypatch.setenv("BOOTCAMP_WITHOUT", needs)
    lab = replay.RecordedRuns(lesson, needs=needs)
    assert says in repr(lab)
    run = lab.launch(name, "cpu", 2, steps=3)
    assert f"the recorded run {name} stands in" in capsys.readouterr().out
    assert (run.status, run.measured_here) == ("ok", False)
    with pytest.raises(FileNotFoundError, match="there is no such record"):
        lab.launch("nothing", "cpu", 2)


def test_claim_on_time_without_hosts_has_no_verdict(monkeypatch, tmp_path):
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "hosts")
    monkeypatch.setattr(claims, "LOGS", tmp_path)
    lab = hsdp_lab.Lab()
    says = "HSDP is faster than FSDP."
    said = lab.claim_faster("hsdp_of_a_test", says, "HSDP", "FSDP", hsdp_lab.LINK)
    assert said.verdict == claims.NOT_COUNTED
    assert lab.wire().column("run") == ["HSDP", "FSDP"]
