"""The pictures of notebook 08, and the runs that it shows where no hosts can be made."""

import csv
import json
import re

import pytest

pytest.importorskip("matplotlib")

from bootcamp.experiments import recorded
from bootcamp.paths import REFERENCE, ROOT, SRC  # noqa: E402
from bootcamp.theory import sharding  # noqa: E402
from bootcamp_lessons.diagrams import hsdp as diagrams  # noqa: E402

LESSON = REFERENCE / "08_hsdp"
STRATEGIES = {
    "ddp": {"strategy": "ddp"},
    "ddp-fp16": {"strategy": "ddp", "number": 0.5},
    "fsdp": {"strategy": "fsdp"},
    "fsdp-keep": {"strategy": "fsdp", "keep_gathered": True},
    "hsdp": {"strategy": "hsdp", "shard": 2},
}


def test_the_pictures_say_what_they_show():
    figure = diagrams.two_hosts("200mbit")
    assert "no more than 200mbit" in figure.alt
    figure = diagrams.rings()
    assert "1.5 times the model in a step with DDP, 2.25 times with FSDP" in figure.alt
    assert "of one part each: 1 times the model" in figure.alt


def test_the_ranking_says_its_values_and_their_origin():
    free = {"HSDP": recorded.Run(LESSON / "hsdp-open")}
    slow = {"HSDP": recorded.Run(LESSON / "hsdp-slow")}
    figure = diagrams.ranking(free, slow, {"HSDP": 0.589})
    assert "at 200mbit" in figure.get_suptitle()
    assert "of which the link by formula 0.589 s" in figure.alt
    assert "recorded run hsdp-slow" in figure.alt


def test_every_run_of_the_lab_is_recorded_and_nothing_else():
    runs = {f"{name}-{link}" for name in STRATEGIES for link in ("open", "slow")}
    assert {path.name for path in LESSON.iterdir()} == {*runs, "two-hosts", "rows-across"}
    for name in runs | {"two-hosts", "rows-across"}:
        run = recorded.Run(LESSON / name)
        assert run.status == "ok", name
        if name != "two-hosts":
            assert run.config["hosts"] == 2, name
            assert run.config["link"] == ("200mbit" if name.endswith("slow") else "open"), name


def test_recorded_bytes_are_those_of_the_theory():
    model = recorded.Run(LESSON / "ddp-slow").ranks[0]["parameter_bytes"]
    for name, how in STRATEGIES.items():
        calls = sharding.collectives(**how)
        theory = sharding.link_bytes(calls, model, 4, 2, how.get("shard"), sharding.GLOO)
        for link in ("open", "slow"):
            ranks = recorded.Run(LESSON / f"{name}-{link}").ranks
            for host in (ranks[:2], ranks[2:]):
                sent = sum(rank["sent_to_other_hosts_bytes_per_step"] for rank in host)
                assert sent == pytest.approx(theory, rel=0.01), (name, link)
                eth0 = 0.015 if link == "slow" else 0.04  # an open link has more confirmations
                assert host[0]["host_sent_bytes_per_step"] == pytest.approx(theory, rel=eth0)


def test_a_recorded_step_takes_at_least_as_long_as_its_bytes():
    for name in STRATEGIES:
        run = recorded.Run(LESSON / f"{name}-slow")
        sent = sum(rank["sent_to_other_hosts_bytes_per_step"] for rank in run.ranks[:2])
        assert run.seconds_per_step > 0.98 * sent / (200e6 / 8), name


def test_records_hold_no_place_of_a_machine():
    for path in (path for path in LESSON.rglob("*") if path.is_file()):
        text = path.read_text()
        assert str(ROOT) not in text, path
        assert not re.search(r"/(root|home|tmp|work)/", text), path


def test_the_record_of_two_hosts_is_what_the_lesson_reads():
    lines = recorded.Run(LESSON / "two-hosts").output(0).splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    assert [row["to rank"] for row in rows] == [1, 2, 3]
    assert all(set(row["sent"]) == {"lo", "eth0"} for row in rows)


def test_published_numbers_name_their_source():
    for name in ("network", "fsdp_7b"):
        path = SRC / "bootcamp" / "theory" / "published" / f"{name}.csv"
        rows = list(csv.DictReader(path.read_text().splitlines()))
        assert rows
        assert all(row["source"] for row in rows)
