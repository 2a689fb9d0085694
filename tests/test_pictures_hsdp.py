"""The pictures of notebook 08, and the runs that it shows where no hosts can be made."""

import csv
import json
import re
from argparse import Namespace

import pytest

pytest.importorskip("matplotlib")

from bootcamp.drawing import plots
from bootcamp.experiments import replay
from bootcamp.paths import REFERENCE, ROOT, SRC
from bootcamp.train import models
from bootcamp_lessons import communication
from bootcamp_lessons.diagrams import hsdp as diagrams
from bootcamp_lessons.labs import hsdp_lab

LESSON = REFERENCE / "08_hsdp"
RUNS = {f"{name}-{link}" for name in ("ddp", "fsdp", "hsdp") for link in ("open", "slow")}
OTHERS = {"rows-across", "accumulating"}


def test_the_pictures_say_what_they_show():
    figure = diagrams.two_hosts("200mbit")
    assert "no more than 200mbit" in figure.alt
    figure = diagrams.rings()
    assert "1.5 times the model in a step with DDP, 2.25 times with FSDP" in figure.alt
    assert "of one part each: 1 times the model" in figure.alt


def test_published_runs_are_under_their_roofs():
    """And not if the links were eight times as slow, bits taken for bytes."""
    rows = communication.published()
    assert {row["axis"] for row in rows} == {"FSDP", "tensor", "pipeline"}
    assert len(rows) > 50
    assert not [row for row in rows if row["reached"] > row["roof"]]
    slow = [
        row for row in rows if row["reached"] > communication.roof(row["axis"], row["ratio"] / 8)
    ]
    assert len(slow) > 5
    figure = plots.communication_roofline(rows)
    assert "FSDP, Llama 2 70B, 128 A100: 0.77 at 2.01" in figure.alt
    with pytest.raises(ValueError, match="axis"):
        plots.communication_roofline([{**rows[0], "axis": "expert"}])


def test_the_ranking_says_its_values_and_their_origin():
    free = {"HSDP": replay.Run(LESSON / "hsdp-open")}
    slow = {"HSDP": replay.Run(LESSON / "hsdp-slow")}
    figure = diagrams.step_seconds(free, slow, {"HSDP": 0.19})
    assert f"at {hsdp_lab.LINK}" in figure.get_suptitle()
    assert "of which the link by formula 0.190 s" in figure.alt
    assert "recorded run hsdp-slow" in figure.alt


def test_every_run_of_the_lab_is_recorded_and_nothing_else():
    assert {path.name for path in LESSON.iterdir()} == {*RUNS, *OTHERS, "two-hosts"}
    for name in RUNS | OTHERS:
        run = replay.Run(LESSON / name)
        assert (run.status, run.config["hosts"]) == ("ok", 2), name
        assert run.config["link"] == (hsdp_lab.LINK if name.endswith("slow") else "open"), name
    assert replay.Run(LESSON / "two-hosts").status == "ok"


@pytest.mark.parametrize("name", sorted(RUNS))
def test_recorded_bytes_are_those_of_the_theory(name):
    run = replay.Run(LESSON / name)
    theory = hsdp_lab.predict_link_bytes(name.split("-")[0].upper())
    assert sum(hsdp_lab.LAYERS) == 4 * sum(layer_numbers())
    assert hsdp_lab.crossing_bytes(run) == pytest.approx(theory, rel=0.02)
    for host in (run.ranks[:2], run.ranks[2:]):
        sent = sum(rank["sent_to_other_hosts_bytes_per_step"] for rank in host)
        assert sent == pytest.approx(theory, rel=0.02)


def layer_numbers():
    """How many parameters each layer of the lab's model really has."""
    built = models.build(Namespace(**hsdp_lab.SETTING, seed=0, dtype="float32"))
    return [sum(p.numel() for p in layer.parameters()) for layer in built]


def test_rows_across_hosts_send_more_than_fsdp_and_accumulation_no_more_than_one_batch():
    sent = {name: hsdp_lab.crossing_bytes(replay.Run(LESSON / name)) for name in RUNS | OTHERS}
    assert sent["rows-across"] > sent["fsdp-open"]
    assert sent["accumulating"] == pytest.approx(sent["hsdp-open"], rel=0.02)


@pytest.mark.parametrize("name", sorted(name for name in RUNS if name.endswith("slow")))
def test_a_recorded_step_takes_at_least_as_long_as_its_bytes(name):
    run = replay.Run(LESSON / name)
    burst = 128e3  # which the token bucket lets through at once
    rate = float(hsdp_lab.LINK.removesuffix("mbit")) * 1e6 / 8
    assert run.seconds_per_step > (hsdp_lab.crossing_bytes(run) - burst) / rate


def test_in_a_cluster_the_width_of_numbers_decides():
    """Gathered in bf16 and reduced in fp32, FSDP and HSDP send nearly the same over a link."""
    large = {"model_bytes": 2 * 7e9, "ranks": 128, "hosts": 16, "shard": 8, "number": 2}
    fsdp, hsdp = (hsdp_lab.sent_bytes(name, **large)[0] / 1e9 for name in ("FSDP", "HSDP"))
    assert (round(fsdp, 1), round(hsdp, 1)) == (55.6, 52.5)
    four = {"micro_batches": 4}
    assert hsdp_lab.sent_bytes("FSDP", **large, **four)[0] == pytest.approx(4e9 * fsdp)
    assert hsdp_lab.sent_bytes("HSDP", **large, **four)[0] == pytest.approx(1e9 * hsdp)


def test_records_hold_no_place_of_a_machine():
    for path in (path for path in LESSON.rglob("*") if path.is_file()):
        text = path.read_text()
        assert str(ROOT) not in text, path
        assert not re.search(r"/(root|home|tmp|work)/", text), path


def test_the_record_of_two_hosts_is_what_the_lesson_reads():
    lines = replay.Run(LESSON / "two-hosts").output(0).splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    assert [row["to rank"] for row in rows] == [1, 2, 3]
    assert all(set(row["sent"]) == {"lo", "eth0"} for row in rows)


def test_published_numbers_name_their_source():
    for name in ("network", "fsdp_7b"):
        path = SRC / "bootcamp" / "costs" / "published" / f"{name}.csv"
        rows = list(csv.DictReader(path.read_text().splitlines()))
        assert rows
        assert all(row["source"] for row in rows)
