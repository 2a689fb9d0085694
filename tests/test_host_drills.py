"""Lesson 09b: drills that the lesson does not run, whom they name, and what stands in elsewhere."""

import pytest
from records import write_files
from trained import trained

from bootcamp_lessons.labs import host_drills


@pytest.mark.parametrize("name", ["host_gone", "interface", "versions"])
def test_drill_names_the_culprit_and_goes_on_with_nothing_lost(needs_hosts, name, monkeypatch):
    monkeypatch.setattr(host_drills, "launch", trained)
    outcome = host_drills.run_drill(name)
    assert outcome.right, outcome
    assert outcome.lost < 1e-5
    began = name == "host_gone"
    assert outcome.resumed == (host_drills.SAVE_EVERY if began else 0)
    assert outcome.sees.startswith("RuntimeError: ")


STEP = {"step": 0, "loss": 1.0, "seconds": 0.1}
RAISED = {"rank": None, "kind": "raised", "message": "", "traceback": ""}
FULL = {**RAISED, "rank": 1, "message": "OSError: [Errno 28] No space left on device"}
UNREACHED = "... while trying to connect to (host0, 29400).\nRendezvousConnectionError: x"


def lines(hosts, *ids):
    """The lines of two hosts' torchruns, with their ids of the rendezvous."""
    line = "torchrun --nnodes {} --rdzv-id {} --rdzv-endpoint host0:29400 src/x.py --nnodes 9"
    return {f"host{number}": line.format(hosts, id_) for number, id_ in enumerate(ids)}


LOST_LINK = {"lost": {"host0": 0, "host1": 2}, "seconds": 3.5}
CULPRITS = {  # what is named, of what a run has left: its error, and other files
    "--rdzv-id differs: 7 on host0, 8 on host1": (RAISED, {"lines": lines(2, 7, 8)}),
    "ask for 3 hosts, and torchrun was started on 2": (RAISED, {"lines": lines(3, 7, 7)}),
    "host1 gets no answer from host0:29400": (RAISED, {"lines": lines(2, 7, 7)}),
    "the kernel of host1 counts a link that was lost": (None, {"link": LOST_LINK}),
    "rank 1 on ": (FULL, {}),
}


@pytest.mark.parametrize("culprit", CULPRITS)
def test_culprit_is_in_what_a_run_of_two_hosts_has_left(culprit, tmp_path):
    error, files = CULPRITS[culprit]
    steps = () if error is RAISED else [STEP]
    ended = {"status": "failed" if error else "ok", "error": error}
    run = write_files(tmp_path, summary=ended, steps=steps, **{"lines": {}, **files})
    unreached = "no answer" in culprit
    (tmp_path / "ranks" / "host1.err").write_text(UNREACHED if unreached else "")
    assert culprit in host_drills.name_culprit(run)
    if unreached:
        assert host_drills.first_sign(run, 0)[0] == "RendezvousConnectionError: x"
    if "link" in files:
        assert host_drills.first_sign(run, 0) == ("no error, a pause", 3.5)


def test_lesson_without_hosts_and_slurm_has_recorded_answers_and_no_record_is_weight(
    monkeypatch, capsys
):
    names = ["nodes", "requeued", "elastic", "drills"]
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "hosts,slurm")
    lab = host_drills.Lab()
    assert str(lab).count("recorded runs stand in") == 2
    lab.nodes()
    assert "\n--exclude=host1\n" in capsys.readouterr().out
    assert lab.requeued()["again"] == 0
    lost = lab.elastic()
    assert [row["ranks"] for row in lost["host1"]["attempts"]] == [2, 1]
    assert (len(lost["host0"]["attempts"]), lost["host0"]["status"]) == (1, "failed")
    for name in ("rank_killed", "link_stalls", "disk_full", "hang"):
        assert lab.drill(name).right
        names.append(f"drill_{name}")
    lab.stop()
    assert {path.stem for path in host_drills.RECORDS.iterdir()} == set(names)
    assert capsys.readouterr().out.count("what was recorded elsewhere stands in") == 6
