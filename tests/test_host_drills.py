"""Lesson 09b: drills that the lesson does not run, whom they name, and what stands in elsewhere."""

import pytest
from records import write_files
from trained import trained

from bootcamp.launcher import simulated_hosts
from bootcamp.records.runs import Run
from bootcamp_lessons.labs import host_drills, when_hosts_fail

WITH_HOSTS = pytest.mark.skipif(
    simulated_hosts.why_not() is not None, reason="no hosts on this machine"
)


@WITH_HOSTS
@pytest.mark.parametrize("name", ["host_gone", "interface", "versions"])
def test_drill_names_the_culprit_and_goes_on_with_nothing_lost(name, monkeypatch):
    monkeypatch.setattr(host_drills, "launch", trained)
    outcome = host_drills.run_drill(name)
    assert outcome.right, outcome
    assert outcome.lost < 1e-5
    began = name == "host_gone"
    assert outcome.resumed == (host_drills.SAVE_EVERY if began else 0)
    assert outcome.sees.startswith("RuntimeError: ")


def left(tmp_path, error=None, lines=None, said=None, **kept) -> Run:
    """What a run of two hosts could have left."""
    summary = {"status": "failed" if error else "ok", "error": error}
    run = write_files(tmp_path, summary=summary, lines=lines or {}, **kept)
    for host, text in (said or {}).items():
        (tmp_path / "ranks" / f"{host}.err").write_text(text)
    return run


STEP = {"step": 0, "loss": 1.0, "seconds": 0.1}
RAISED = {"rank": None, "kind": "raised", "message": "", "traceback": ""}
LINE = (
    "torchrun --nnodes {} --rdzv-id {} --rdzv-endpoint host0:29400 src/x.py --nnodes of-the-script"
)


def test_culprit_of_agents_that_do_not_meet_is_in_their_lines(tmp_path):
    lines = {"host0": LINE.format(2, 7), "host1": LINE.format(2, 8)}
    assert (
        host_drills.name_culprit(left(tmp_path, RAISED, lines))
        == "--rdzv-id differs: 7 on host0, 8 on host1"
    )
    alike = dict.fromkeys(("host0", "host1"), LINE.format(3, 7))
    assert "ask for 3 hosts, and torchrun was started on 2" in host_drills.name_culprit(
        left(tmp_path, RAISED, alike)
    )
    said = {"host1": "... while trying to connect to (host0, 29400).\nRendezvousConnectionError: x"}
    found = left(tmp_path, RAISED, alike, said)
    assert host_drills.name_culprit(found) == "host1 gets no answer from host0:29400"
    assert host_drills.first_sign(found, 0)[0] == "RendezvousConnectionError: x"


def test_culprit_of_a_pause_is_the_host_whose_link_was_lost(tmp_path):
    link = {"lost": {"host0": 0, "host1": 2}, "seconds": 3.5}
    found = left(tmp_path, link=link, steps=[STEP])
    assert host_drills.first_sign(found, 0) == ("no error, a pause", 3.5)
    assert host_drills.name_culprit(found) == "the kernel of host1 counts a link that was lost"


def test_culprit_is_not_read_from_an_error_about_another_rank(tmp_path):
    own = {**RAISED, "rank": 1, "message": "OSError: [Errno 28] No space left on device"}
    assert host_drills.name_culprit(left(tmp_path, own, steps=[STEP])).startswith("rank 1 on ")
    late = {**RAISED, "rank": 1, "message": "RuntimeError: Timed out waiting 3000ms for recv"}
    assert not host_drills.name_culprit(left(tmp_path, late)).startswith("rank 1 on ")


def test_lesson_without_hosts_and_slurm_has_recorded_answers_and_no_record_is_weight(
    monkeypatch, capsys
):
    names = ["nodes", "requeued", "elastic", "drills"]
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "hosts,slurm")
    lab = when_hosts_fail.Lab()
    assert str(lab).count("recorded runs stand in") == 2
    lab.nodes()
    assert "\n--exclude=host1\n" in capsys.readouterr().out
    assert lab.requeued()["again"] == 0
    assert [row["ranks"] for row in lab.elastic()["attempts"]] == [2, 1]
    for name in ("rank_killed", "link_stalls", "disk_full", "hang"):
        assert lab.drill(name).right
        names.append(f"drill_{name}")
    lab.stop()
    assert {path.stem for path in when_hosts_fail.RECORDS.iterdir()} == set(names)
    assert capsys.readouterr().out.count("what was recorded elsewhere stands in") == 6


def test_output_of_a_job_is_shown_without_the_stacks_of_agents():
    said = (
        "USR1: save, then queue again\n[W1122 21:05:56.65 TCPStore.cpp:115] [c10d] failed\n"
        "Exception raised from recvBytes at Utils.hpp:787 (most recent call first):\n"
        "frame #0: c10::Error::Error + 0x9d (0x7fd4 in libc10.so)\n<omitting python frames>\n\n"
        "W1122 21:05:56.604000 590 dynamic_rendezvous.py:1298] The node has failed to shutdown\n"
        "rank 0: told to end, 6 steps done\n"
    )
    assert when_hosts_fail._without_stacks(said) == (
        "USR1: save, then queue again\nrank 0: told to end, 6 steps done\n"
    )


def test_table_of_drills_has_each_of_them_and_none_named_wrong():
    table, count = when_hosts_fail.all_drills(), len(host_drills.DRILLS)
    assert len(table) == count
    assert str(table).startswith(f"{count} of {count} named right")
