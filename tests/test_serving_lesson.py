"""Lesson 11: its drills on a server of the course, and Triton's part from records."""

import json
from collections import Counter

import pytest
import served_model

from bootcamp.paths import REFERENCE
from bootcamp.serving import load_test, server_process, versions
from bootcamp.serving.load_test import Load
from bootcamp_lessons.labs import serving_drills, serving_lab

RECORDS = REFERENCE / "11_serving"


def test_load_says_its_percentiles():
    found = Load(
        2.0, Counter({200: 100}), 0, [0.01] * 97 + [1.0] * 3, [n / 100 for n in range(100)]
    )
    assert found.per_second == 50
    assert found.percentile(50) == 0.01
    assert found.percentile(99) == 1.0
    assert found.mean == pytest.approx(0.0397)
    assert found.row()["p95, ms"] == pytest.approx(10)


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """A server of the course with two versions, and requests with the answers of both."""
    folder = tmp_path_factory.mktemp("drills")
    right, other = served_model.two_versions(folder)
    for name in ("v1.onnx", "v2.onnx"):
        versions.publish(folder / "gpt", folder / name)
    asked = load_test.make_requests(right, 20, 9, or_else=other)
    with server_process.start("batching_server", folder / "gpt", instances=2) as server:
        yield server, asked


@pytest.mark.parametrize("name", serving_drills.DRILLS)
def test_no_drill_makes_an_answer_wrong(setting, name):
    server, asked = setting
    there = versions.list_versions(server.folder)
    row = serving_drills.run(name, server, asked, requests=400)
    assert versions.list_versions(server.folder) == there
    assert (row["wrong"], row["other errors"], row["no answer"]) == (0, 0, 0)
    assert row["right"] + row["refused"] == row["requests"] >= 400
    assert row["afterwards"] == "50 of 50 right"
    if name not in ("a worker is killed", "200 clients at once"):
        assert row["refused"] == 0


def test_a_drill_counts_what_clients_see():
    found = Load(1.0, Counter({200: 5, 503: 2, 500: 1, load_test.NO_ANSWER: 3}), 1, [0.1] * 4)
    row = serving_drills.make_row("x", found, Load(1.0, Counter({200: 50}), 0, [0.1] * 49))
    counts = [row[key] for key in ("requests", "right", "wrong", "refused", "other errors")]
    assert counts == [11, 4, 1, 2, 1]
    assert (row["no answer"], row["afterwards"]) == (3, "49 of 50 right")


def test_an_ablation_changes_batches_and_instances(setting, monkeypatch):
    server, asked = setting
    monkeypatch.setattr(
        serving_lab,
        "SERVERS",
        {
            words: serving_lab.SERVERS[words]
            for words in ("1 instance", "2 instances, batches of 8")
        },
    )
    plain, best = serving_lab.compare_servers(server.folder, asked, 0.3)
    assert plain["samples in a batch"] == 1 < best["samples in a batch"]
    assert plain["other"] == best["other"] == 0


def test_tritons_part_is_recorded_and_stands_in_where_there_is_none(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "triton")
    served_model.write(tmp_path / "gpt.onnx", 1)
    triton = serving_lab.Triton(tmp_path, tmp_path / "gpt.onnx", [])
    drills = triton.drills()
    assert "BOOTCAMP_WITHOUT hides it" in capsys.readouterr().out
    assert [row["drill"] for row in drills] == list(serving_drills.DRILLS)
    assert sum(row["wrong"] for row in drills) == 0
    assert "recorded on another machine" in triton.says
    assert len(triton.measure()) == 2
    assert "instance_group [ { kind: KIND_" in triton.config()


def test_records_name_their_machine():
    for name in ("triton_measured", "triton_drills"):
        assert json.loads((RECORDS / f"{name}.json").read_text())["machine"]["cores"] > 0
