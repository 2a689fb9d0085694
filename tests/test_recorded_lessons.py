"""What stands in where Horovod or hosts are missing: recorded runs, and numbers as published."""

import csv
import gzip
import json
import re
from argparse import Namespace

import pytest

from bootcamp.experiments import replay
from bootcamp.paths import NOTEBOOKS, REFERENCE, ROOT, SRC
from bootcamp.records import runs
from bootcamp.train import models
from bootcamp_lessons.labs import hsdp_lab

HOROVOD, HSDP = REFERENCE / "05_horovod", REFERENCE / "08_hsdp"
LINKED = {f"{name}-{link}" for name in ("ddp", "fsdp", "hsdp") for link in ("open", "slow")}
OTHERS = {"rows-across", "accumulating"}


@pytest.mark.parametrize("lesson", [HOROVOD, HSDP], ids=lambda folder: folder.name)
def test_records_name_no_place_of_a_machine(lesson):
    for path in (path for path in lesson.rglob("*") if path.is_file()):
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt") as file:
            text = file.read()
        assert str(ROOT) not in text, path
        assert not re.search(r"/(root|home|tmp|work)/", text), path


@pytest.mark.parametrize("name", ["horovod", "network", "fsdp_7b"])
def test_published_numbers_name_their_source(name):
    path = SRC / "bootcamp" / "costs" / "published" / f"{name}.csv"
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert rows
    assert all(row["source"] for row in rows)


# Horovod


def list_experiments() -> set[str]:
    """The names of the runs that the notebook asks for."""
    text = (NOTEBOOKS / "sources" / "05_horovod.py").read_text()
    by_name = set(re.findall(r'horovod\.launch\(\s*"([\w-]+)"', text))
    return by_name | set(re.findall(r'^    "([\w-]+)": \{"HOROVOD', text, re.M))


def test_horovods_runs_are_recorded_and_no_others():
    assert {path.name for path in HOROVOD.iterdir()} == list_experiments()
    failed = {name for name in list_experiments() if replay.Run(HOROVOD / name).status != "ok"}
    assert failed == {"only-rank-0"}
    assert replay.Run(HOROVOD / "only-rank-0").status == "failed"


def test_launch_without_horovod_answers_from_the_record(monkeypatch, capsys):
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "horovod")
    horovod = replay.RecordedRuns("05_horovod", needs="horovod")
    assert "make horovod" in repr(horovod)
    run = horovod.launch("horovod", "horovod", 2, steps=3)
    assert "make horovod" in capsys.readouterr().out
    assert (run.status, run.measured_here, len(run.ranks)) == ("ok", False, 2)
    with pytest.raises(FileNotFoundError, match="there is no such record"):
        horovod.launch("nothing", "horovod", 2)


def test_record_of_horovodrun_keeps_its_lines_and_packs_its_timeline(tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "OWN_FOLDERS", {"/secret/place": "."})
    run, kept = tmp_path / "run", tmp_path / "record"
    (run / "ranks").mkdir(parents=True)
    lines = "[1]<stdout>:second\n[0]<stdout>:first /secret/place/x\n[0]<stdout>:  more\n"
    for name, text in {
        "ranks/launcher.out": lines,
        "ranks/0.beat": "beat",
        "ranks/0.err": "",
        "timeline.json": "x" * 200_000,
    }.items():
        (run / name).write_text(text)
    replay.keep_run(runs.Run(run), kept)
    assert {str(path.relative_to(kept)) for path in kept.rglob("*.*")} == {
        "ranks/launcher.out",
        "timeline.json.gz",
    }
    assert replay.read_printed_lines(runs.Run(kept)) == ["first ./x", "  more", "second"]


# HSDP on two hosts


def test_hsdps_runs_are_recorded_and_no_others():
    assert {path.name for path in HSDP.iterdir()} == {*LINKED, *OTHERS, "two-hosts"}
    for name in LINKED | OTHERS:
        run = replay.Run(HSDP / name)
        assert (run.status, run.config["hosts"]) == ("ok", 2), name
        assert run.config["link"] == (hsdp_lab.LINK if name.endswith("slow") else "open"), name
    lines = replay.Run(HSDP / "two-hosts").output(0).splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    assert [row["to rank"] for row in rows] == [1, 2, 3]
    assert all(set(row["sent"]) == {"lo", "eth0"} for row in rows)


@pytest.mark.parametrize("name", sorted(LINKED))
def test_recorded_bytes_and_seconds_are_those_of_the_theory(name):
    run = replay.Run(HSDP / name)
    theory = hsdp_lab.predict_link_bytes(name.split("-")[0].upper())
    assert hsdp_lab.crossing_bytes(run) == pytest.approx(theory, rel=0.02)
    for host in (run.ranks[:2], run.ranks[2:]):
        sent = sum(rank["sent_to_other_hosts_bytes_per_step"] for rank in host)
        assert sent == pytest.approx(theory, rel=0.02)
    if name.endswith("slow"):
        burst = 128e3  # which the token bucket lets through at once
        rate = float(hsdp_lab.LINK.removesuffix("mbit")) * 1e6 / 8
        assert run.seconds_per_step > (hsdp_lab.crossing_bytes(run) - burst) / rate


def test_layers_of_the_theory_are_the_models():
    built = models.build(Namespace(**hsdp_lab.SETTING, seed=0, dtype="float32"))
    numbers = [sum(p.numel() for p in layer.parameters()) for layer in built]
    assert sum(hsdp_lab.LAYERS) == 4 * sum(numbers)


def test_rows_across_hosts_send_more_and_accumulation_sends_no_more():
    sent = {name: hsdp_lab.crossing_bytes(replay.Run(HSDP / name)) for name in LINKED | OTHERS}
    assert sent["rows-across"] > sent["fsdp-open"]
    assert sent["accumulating"] == pytest.approx(sent["hsdp-open"], rel=0.02)


def test_width_of_numbers_decides_in_a_cluster():
    """Gathered in bf16 and reduced in fp32, FSDP and HSDP send nearly the same over a link."""
    large = {"model_bytes": 2 * 7e9, "ranks": 128, "hosts": 16, "shard": 8, "number": 2}
    fsdp, hsdp = (hsdp_lab.sent_bytes(name, **large)[0] / 1e9 for name in ("FSDP", "HSDP"))
    assert (round(fsdp, 1), round(hsdp, 1)) == (55.6, 52.5)
    four = {"micro_batches": 4}
    assert hsdp_lab.sent_bytes("FSDP", **large, **four)[0] == pytest.approx(4e9 * fsdp)
    assert hsdp_lab.sent_bytes("HSDP", **large, **four)[0] == pytest.approx(1e9 * hsdp)
