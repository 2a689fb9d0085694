"""A Slurm made on one machine: its commands, jobs, ordinary users, and that nothing of it stays."""

import os
import re
from pathlib import Path

import pytest
from processes import (
    find_namespaces,
    needs_nobody,
    other_kernel,
    run_as_nobody,
    until,
    until_no_process_in,
)

from bootcamp.hosts import slurm
from bootcamp.paths import LOGS

OWN = ("pid", "mnt", "net", "uts", "ipc")  # namespaces of a host
SPACES = " ".join(f"/proc/self/ns/{kind}" for kind in OWN)


@pytest.fixture(scope="module")
def cluster(needs_slurm):
    with slurm.Cluster(hosts=2, gpus=2, cpus=8) as made:
        own = [made.run(f"readlink {SPACES}", on=host).stdout for host in made.hosts]
        assert set("".join(own).split()) <= find_namespaces(OWN)
        yield made
    until_no_process_in(set("".join(own).split()))


def job_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.sbatch"
    path.write_text(f"#!/bin/bash\n{text}")
    return path


def test_hosts_are_idle_and_have_their_names(cluster):
    assert cluster.run("hostname", on="host1").stdout == "host1\n"
    says = "echo $(hostname) $CUDA_VISIBLE_DEVICES"
    said = cluster.run(["srun", "-N2", "--gres=gpu:2", "bash", "-c", says])
    assert sorted(said.stdout.split("\n")) == ["", "host0 0,1", "host1 0,1"]
    shell = cluster.run("salloc -w host0 -n2 sh -c 'hostname; srun hostname'", on="host1")
    assert re.findall(r"^host\d$", shell.stdout, re.M) == ["host1", "host0", "host0"]
    inner = cluster.run("srun sh -c 'srun --immediate=1 true; srun --overlap hostname'").stdout
    assert re.search(r"Requested nodes are busy[^$]*^host0$", inner, re.M), "a task has all of it"
    states = cluster.run("sinfo --Node --noheader --partition=main --format='%N %T'")
    assert [line.split()[0] for line in states.stdout.splitlines()] == ["host0", "host1"]


def test_job_has_a_state_an_output_and_an_end(cluster, tmp_path):
    job = cluster.sbatch(job_file(tmp_path, "#SBATCH --array=3,11\necho task $SLURM_ARRAY_TASK_ID"))
    assert job.wait(30) == "COMPLETED"
    assert job.output == "task 3\ntask 11\n"
    assert {Path(row["StdOut"]).parent for row in job.read_rows()} == {LOGS}
    failing = cluster.sbatch(job_file(tmp_path, "echo begun\nsleep 60 && exit 3"))
    until(lambda: "begun" in failing.output)
    with pytest.raises(TimeoutError, match=r"not yet after 0.2 s\nbegun"):
        failing.wait(0.2)
    failing.signal("TERM", "--full")
    assert failing.wait(30) in ("FAILED", "CANCELLED")
    with pytest.raises(RuntimeError, match=r"ended without 1 step"):
        failing.wait(5, steps=1)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: no task could have two")
def test_task_bound_to_cores_has_one_unless_srun_is_told_again(needs_slurm):
    asks = "unset OMP_NUM_THREADS; srun nproc; srun -c2 nproc; SRUN_CPUS_PER_TASK=2 srun nproc"
    with slurm.Cluster(hosts=2, cpus=2, binds=True) as bound:
        assert bound.run(f"salloc --quiet -c2 sh -c '{asks}'").stdout.split() == ["1", "2", "2"]


def test_command_that_fails_or_does_not_end_says_so(cluster):
    with pytest.raises(slurm.SlurmError, match=r"sinfo --nonsense: exit code 1\n.*nonsense"):
        cluster.run("sinfo --nonsense")
    assert cluster.run("exit 3", raises=False).returncode == 3
    with pytest.raises(TimeoutError, match="no end after 0.2 s"):
        cluster.run("sleep 98765", seconds=0.2)
    until(lambda: "sleep 98765" not in cluster.run("ps -eo args | grep -v grep").stdout, seconds=10)
    with pytest.raises(ValueError, match="the hosts are host0, host1"):
        cluster.run("true", on="host2")


def test_job_of_another_slurm_around_this_one_is_not_seen(cluster, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert cluster.run("echo job ${SLURM_JOB_ID:-none}").stdout == "job none\n"


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from bootcamp.hosts import slurm
cluster = slurm.Cluster(hosts=2)
print(cluster.run(sys.argv[2]).stdout, flush=True)
cluster.run(sys.argv[3])
"""


def test_cluster_is_gone_when_its_python_is_killed_during_a_job(needs_slurm, tmp_path):
    links = f"srun -N2 readlink {SPACES}"
    waits = f"srun -N2 bash -c 'touch {tmp_path}/$(hostname); sleep 600'"
    with other_kernel(PROGRAM, str(Path(slurm.__file__).parents[2]), links, waits) as begun:
        own = [begun.stdout.readline().strip() for _ in range(2 * len(SPACES.split()))]
        assert set(own) <= find_namespaces(OWN)
        until(lambda: len(list(tmp_path.iterdir())) == 2)
        begun.kill()
        begun.wait()
        until_no_process_in(set(own))


@needs_nobody
def test_cluster_of_an_ordinary_user_has_jobs_of_his_own(needs_slurm):
    refused = "salloc --gres=gpu:1 true || true"
    said = run_as_nobody(
        PROGRAM, f"srun -N2 bash -c 'echo $(id -u) on $(hostname)'; {refused}", "true"
    )
    assert sorted(filter(None, said.splitlines()))[:2] == ["65534 on host0", "65534 on host1"]
    assert "Requested node configuration is not available" in said, "a host without GPUs gives none"


def test_cluster_that_is_hidden_or_missing_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(slurm.shutil, "which", lambda name, path: name != "munged" or None)
    with pytest.raises(slurm.SlurmError, match="no munged: make cluster installs"):
        slurm.Cluster()
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "slurm")
    with pytest.raises(slurm.SlurmError, match="BOOTCAMP_WITHOUT hides"):
        slurm.Cluster()
