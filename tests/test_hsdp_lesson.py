"""Notebook 08: hosts and what crosses their link, meshes that look right, sharding that is not."""

from functools import partial

import pytest
from trained import trained

from bootcamp.experiments import claims, replay
from bootcamp.launcher import simulated_hosts
from bootcamp.scripts.variants import variant
from bootcamp_lessons import excerpts, exercise
from bootcamp_lessons.labs import hsdp_lab

SNIPPET = {"device": "cpu", "quiet": True}
WITH_HOSTS = pytest.mark.skipif(
    simulated_hosts.why_not() is not None, reason="no hosts on this machine"
)
SHAPE = "shape = (world // args.shard, args.shard)"
MESH = 'mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))'


def printed(snippet, ranks, **flags):
    return excerpts.parse_printed(
        trained(excerpts.SNIPPETS / f"{snippet}.py", ranks, **SNIPPET, **flags)
    )


def test_hybrid_sharding_used_right():
    for found in printed("hybrid_shard", 4):
        assert found["error"] is None
        assert found["warnings"] == []
        assert found["ranks_of_a_copy"] == 2
        assert found["apart_from_rank_0"] == 0


def test_without_a_mesh_nobody_averages():
    found = printed("hybrid_shard", 4, without_mesh=True)
    assert all("NO_SHARD" in rank["warnings"][0] for rank in found)
    assert all(rank["apart_from_rank_0"] > 1e-3 for rank in found[1:])
    most = 0.001 * 4 * found[0]["numbers"]  # of ten steps; a confirmation may come late
    assert all(rank.get("sent_bytes", 0) < most for rank in found)


def test_ddp_around_hybrid_sharding_overwrites_half_of_the_model():
    found = printed("hybrid_shard", 4, in_ddp=True)
    assert [rank["changed"] == rank["numbers"] for rank in found] == [False, True] * 2
    assert all(rank["equals_rank_0s"] for rank in found)
    assert all("invalid gradient" in rank["error"] for rank in found)


@WITH_HOSTS
def test_bytes_between_two_hosts_are_counted():
    to = {row["to rank"]: row for row in printed("two_hosts", 4, hosts=2, link="200mbit")}
    assert [to[rank]["to host"] for rank in (1, 2, 3)] == ["host0", "host1", "host1"]
    assert to[1]["sent"]["eth0"] < 10_000 < to[1]["bytes"] <= to[1]["sent"]["lo"]
    for rank in (2, 3):
        assert to[rank]["sent"]["lo"] < 10_000
        assert to[rank]["sent"]["eth0"] == pytest.approx(to[rank]["bytes"], rel=0.01)
        assert to[rank]["seconds"] > 0.15, "faster than the link"


def write_mesh(mesh):
    """Write the script with another mesh: its shape is this."""
    changes = {
        SHAPE: mesh,
        MESH: 'mesh = DeviceMesh(device.type, shape, mesh_dim_names=("replicate", "shard"))',
        "from torch.distributed.device_mesh import init_device_mesh": (
            "from torch.distributed.device_mesh import DeviceMesh"
        ),
    }
    return variant("hsdp", "hsdp_test_mesh", changes)


def write_one_axis():
    """Write the script with a mesh of one axis."""
    return variant(
        "hsdp",
        "hsdp_test_flat",
        {SHAPE: "", MESH: "mesh = init_device_mesh(device.type, (world,))"},
    )


COLUMNS = "shape = torch.arange(world).view(args.shard, -1)"


@pytest.mark.parametrize(
    ("write", "complaint"),
    [
        (partial(write_mesh, COLUMNS), "a rank holds 100% of the parameters"),
        (write_one_axis, "with --shard 1 a rank holds 25% of the parameters, not 100%"),
        pytest.param(
            partial(write_mesh, f"{COLUMNS}.T"),
            "The ranks of a row must be of one host",
            marks=WITH_HOSTS,
        ),
    ],
    ids=["axes swapped", "one axis", "rows across hosts"],
)
@pytest.mark.usefixtures("quick_proofs")
def test_exercise_names_a_wrong_mesh(write, complaint):
    result = exercise.try_out(exercise.find("two_axes"), write())
    assert not result.solved
    assert complaint in str(result)


def test_without_hosts_the_runs_are_recorded(monkeypatch, capsys):
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "hosts")
    lab = replay.RecordedRuns("08_hsdp", needs="hosts")
    assert not lab.ready
    assert "Hosts can't be made on this machine: recorded runs stand in." in repr(lab)
    run = lab.launch("hsdp-slow", "hsdp", 4, hosts=2, link=hsdp_lab.LINK, shard=2)
    assert "the recorded run hsdp-slow stands in" in capsys.readouterr().out
    assert (run.status, run.config["hosts"], run.config["link"]) == ("ok", 2, hsdp_lab.LINK)


def test_without_hosts_a_claim_on_time_has_no_verdict(monkeypatch, tmp_path):
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "hosts")
    monkeypatch.setattr(claims, "LOGS", tmp_path)
    lab = hsdp_lab.Lab()
    slow = [lab.trial(name, hsdp_lab.LINK) for name in ("HSDP", "FSDP")]
    said = lab.faster("hsdp_of_a_test", "HSDP is faster than FSDP.", *slow)
    assert said.verdict == claims.NOT_COUNTED
    assert "Hosts can't be made on this machine" in str(said)
    assert set(lab.runs) == {("HSDP", hsdp_lab.LINK), ("FSDP", hsdp_lab.LINK)}
    assert lab.wire().column("run") == ["HSDP", "FSDP"]
