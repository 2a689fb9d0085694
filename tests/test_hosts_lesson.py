"""Notebook 09: who numbers hosts and GPUs how, and a lab that a record replaces."""

import pytest

pytest.importorskip("matplotlib")

from bootcamp.experiments import equality, replay
from bootcamp.paths import REFERENCE
from bootcamp.records.runs import Run
from bootcamp_lessons.labs import hosts_lab

WHO = "python src/snippets/who_am_i.py"


def test_rule_for_gpus_is_right_or_puts_two_ranks_on_one():
    def taken(gpus, rule, **how):
        return [(row["host"], row[rule]) for row in hosts_lab.device_table(gpus, **how)]

    for gpus, cyclic in (([2, 2], True), ([2, 4], False), ([3, 2], False)):
        places = taken(gpus, "LOCAL_RANK", cyclic=cyclic)
        assert sorted(places) == [(h, g) for h, count in enumerate(gpus) for g in range(count)]
    assert taken([2, 2], "rank % device_count", cyclic=True) == [(0, 0), (1, 1), (0, 0), (1, 1)]
    assert len(set(taken([2, 4], "rank % device_count"))) == 6
    assert taken([2, 4], "rank % 4")[2] == (1, 2), "host 1's first rank takes its third GPU"
    assert taken([2, 2], "rank % 4")[2:] == [(1, 2), (1, 3)], "host 1 has no GPUs 2 and 3"


def test_batch_grows_with_the_ranks_unless_it_is_kept_in_parts():
    rows = hosts_lab.batch_table(8, [16, 4, 12]).rows
    assert [row["global batch"] for row in rows] == [128, 32, 96]
    assert [row["micro-batches for 128"] for row in rows] == [1, 4, "-"]


@pytest.mark.parametrize("name", hosts_lab.JOBS)
def test_recorded_job_trains_what_this_machine_trains(name):
    """The lesson compares them where there is no Slurm."""
    run = Run(REFERENCE / "09_several_hosts" / name / "run-0")
    assert equality.same_training(run, equality.baseline(steps=6, global_batch=12, optimizer="sgd"))


@pytest.mark.usefixtures("needs_slurm")
def test_commands_and_jobs_are_run_and_a_record_says_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(replay, "REFERENCE", tmp_path)
    monkeypatch.setattr(replay, "LOGS", tmp_path / "logs")
    monkeypatch.setenv("BOOTCAMP_RECORD", "1")
    job_file = tmp_path / "job.sbatch"
    job_file.write_text("#!/bin/bash\n#SBATCH --job-name=said\necho $BOOTCAMP_LOGS $1\n")

    def say(lab):
        both = dict.fromkeys(("host0", "host1"), f"hostname; {WHO}; exit 3")
        found = {**lab.on_each("both", both), "job": lab.sbatch("job", job_file, "word").wait()}
        return found, capsys.readouterr().out

    lab = replay.RecordedCluster("a_lesson", hosts=2)
    try:
        live, printed = say(lab)
    finally:
        lab.stop()
    for host in ("host0", "host1"):
        assert live[host].output.startswith(f"{host}\n{host}: SLURM_PROCID=-")
        assert repr(live[host]) == "exit code 3"
        assert f"{host}$ hostname; {WHO}; exit 3\n{host}\n" in printed
    assert live["job"].end == "COMPLETED"
    assert live["job"].output == f"{lab.folder} word\n"

    monkeypatch.delenv("BOOTCAMP_RECORD")
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "slurm")
    lab = replay.RecordedCluster("a_lesson", hosts=2)
    assert "recorded runs stand in. (The reason: BOOTCAMP_WITHOUT hides it" in repr(lab)
    told, printed = say(lab)
    assert told["host1"] == live["host1"]
    assert told["job"].output == "logs word\n", "a record names no folder of its machine"
    assert f"host1$ hostname; {WHO}; exit 3\nhost1\n" in printed
    assert "(recorded: " in printed
    with pytest.raises(FileNotFoundError, match="gone: there is no such record. Record the lesson"):
        lab.run("gone", "sinfo")
