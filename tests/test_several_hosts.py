"""torchrun on several hosts: the line, the proof, who failed first, and hosts that go and come."""

import json
import re
import shlex

import pytest
import warm
from processes import until_hosts_are_gone

from bootcamp.experiments import equality
from bootcamp.hosts import drills
from bootcamp.launcher import launch, simulated_hosts
from bootcamp.launcher.launch import Options
from bootcamp.paths import LOGS, SRC, shown
from bootcamp.records import rank_errors
from bootcamp.records.steps import read_steps
from bootcamp.scripts.variants import variant

pytestmark = pytest.mark.usefixtures("needs_hosts")
TORCHRUN = {"hosts": 2, "start": "torchrun", "model": "mlp"}
QUICK = {"rdzv_conf": "last_call_timeout=1,keep_alive_interval=1"}  # a rendezvous waits less
# the launcher looks for torchrun's ranks four times a second: a warm one may have ended before that
SEEN = """
import json, os, pathlib, time
seen = pathlib.Path(os.environ["BOOTCAMP_RUN"], "hosts.json")
while not seen.exists() or len(json.loads(seen.read_text())["ranks"]) < dist.get_world_size():
    time.sleep(0.01)
"""
SAYS = """
import socket
lines, here = [], os.readlink("/proc/self/ns/net")
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        if os.readlink(process / "ns/net") == here:
            lines.append((process / "cmdline").read_text().split("\\0")[:-1])
    except OSError:
        pass
names = ("GROUP_RANK", "LOCAL_RANK", "GLOO_SOCKET_IFNAME", "MASTER_ADDR", "BOOTCAMP_COMMAND")
said = {name: os.environ[name] for name in names}
print(json.dumps({"host": socket.gethostname(), "lines": lines, **said}))
"""


@pytest.fixture(autouse=True)
def nothing_of_the_hosts_is_left():
    """Looks, at the end, for the namespaces of every run that the test has made."""
    before = set(LOGS.glob("*"))
    yield
    for folder in set(LOGS.glob("*")) - before:
        until_hosts_are_gone(folder)


@pytest.mark.parametrize(("ranks", "optimizer", "alike"), [(4, "sgd", True), (2, "adamw", False)])
def test_torchrun_lines_that_are_shown_are_run_and_train_what_the_baseline_trains(
    ranks, optimizer, alike, capsys
):
    flags = {"steps": 3, "global_batch": 12, "optimizer": optimizer}
    script = variant("ddp", "says_its_torchrun", {"run.finish()": f"{SEEN}run.finish(){SAYS}"})
    options = Options(torchrun=None if alike else {1: {"monitor_interval": 0.2}})
    with warm.workers():
        run = launch.launch(script, ranks, **TORCHRUN, options=options, **flags)
    equality.same_training(run, equality.baseline(**flags, model="mlp"))
    printed = [line[2:] for line in capsys.readouterr().out.splitlines() if line[:2] == "$ "]
    lines = [line.partition("    # ")[0] for line in printed]
    assert len(lines) == (1 if alike else 2)
    assert ("on each host" in printed[0]) == (len(lines) == 1)
    for rank in range(ranks):
        host, local_rank = divmod(rank, ranks // 2)
        said = json.loads((run.folder / "ranks" / f"{rank}.out").read_text().splitlines()[-1])
        line = lines[min(host, len(lines) - 1)]
        assert said["BOOTCAMP_COMMAND"] == line
        variable, *words = shlex.split(line)
        assert variable == "GLOO_SOCKET_IFNAME=eth0"
        typed = [shlex.join(map(shown, line)) for line in said["lines"]]
        assert any(line.endswith(shlex.join(words)) for line in typed), "it was not run"
        assert said["host"] == run.host(rank) == f"host{host}"
        assert (said["GROUP_RANK"], said["LOCAL_RANK"]) == (str(host), str(local_rank))
        assert said["GLOO_SOCKET_IFNAME"] == simulated_hosts.INTERFACE
        assert said["MASTER_ADDR"] == "host0"
    assert run.config["hosts"] == 2


RAISES = f"""
import torch.distributed as dist, torch
dist.init_process_group()
{SEEN}
if dist.get_rank() == dist.get_world_size() - 1:
    raise RuntimeError("one rank has had enough")
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.parametrize(("start", "ranks"), [("warm", 4), ("torchrun", 2)])
def test_first_to_raise_is_named_with_its_host(start, ranks, tmp_path):
    (tmp_path / "raises.py").write_text(RAISES)
    how = {"hosts": 2, "start": start, "quiet": True}
    with warm.workers(), pytest.raises(launch.RankFailed, match="has had enough") as failed:
        launch.launch(tmp_path / "raises.py", ranks, **how)
    assert (failed.value.error["rank"], failed.value.error["host"]) == (ranks - 1, "host1")
    assert f"rank {ranks - 1} on host1 said:" in str(failed.value)
    first, *others = failed.value.run.log().split("\n\n== ")
    assert first.startswith(f"== rank {ranks - 1} on host1, ")
    assert "RuntimeError: one rank has had enough" in first
    assert others
    assert all("after the first" in each.splitlines()[0] for each in others)


def test_hosts_with_different_rendezvous_ids_end_in_a_sentence():
    flags = {"rdzv_conf": "join_timeout=2", 1: {"rdzv_id": "other"}}
    with pytest.raises(launch.RankFailed) as failed:
        launch.launch("ddp", 4, **TORCHRUN, quiet=True, options=Options(torchrun=flags))
    # the store is on host0: if that gives up first, host1 has lost its connection
    sentence = failed.value.error["message"]
    assert {"host0", "host1"} <= set(re.findall(r"host\d", sentence))
    assert "RendezvousTimeoutError" in sentence


# before a step four, later two ranks wait until they are others
WAITS = """while (world, step) in ((4, 2), (2, 4)):
    dist.all_reduce(torch.zeros(()))
    __import__("time").sleep(0.02)
"""


def test_host_that_is_lost_and_returns_changes_no_loss(tmp_path):
    """With AdamW a host is lost in lesson 09b, whose cells are tests too."""
    line = "with run.step(step):"
    script = variant(SRC / "snippets" / "ddp_elastic.py", "elastic", {line: WAITS + line})
    flags = {"steps": 6, "global_batch": 12, "model": "mlp", "optimizer": "sgd"}
    kept = dict.fromkeys(("save", "resume"), tmp_path / "run.pt")
    kept |= {"micro_batch": 3, "save_every": 1, "quiet": True}
    how = {"hosts": 2, "options": Options(max_restarts=2, fewest_hosts=1, torchrun=QUICK)}
    with warm.workers(), drills.BackgroundRun(script, 4, **how, **kept, **flags) as run:
        run.wait_for_step(1, ranks=4)
        assert sorted(run.hosts[1].find_ranks()) == [2, 3]
        run.hosts[1].kill()
        run.wait_for_step(3, ranks=2)
        run.hosts[1].join()
    equality.same_training(run.record, equality.baseline(**flags))
    was = [row["host"] for row in rank_errors.read_processes(run.folder)]
    assert [sorted(was[:4]), was[4:6]] == [["host0", "host0", "host1", "host1"], ["host0", "host0"]]
    assert sorted(was[6:]) == ["host0", "host0", "host1", "host1"]
    assert [rank["first_step"] for rank in run.record.ranks] == [4] * 4


LONG = {"model": "mlp", "steps": 100_000, "start": "warm", "quiet": True}


def test_host_is_cut_off_frozen_and_gets_a_small_disk_and_then_a_rank_is_killed(tmp_path):
    with drills.BackgroundRun("ddp", 4, hosts=2, **LONG) as run:
        run.wait_for_step(1, ranks=4)
        host = run.hosts[1]
        assert host.find_ranks().keys() == {2, 3}
        assert set(host.find_ranks().values()) <= host.find_processes()
        assert not host.find_processes() & run.hosts[0].find_processes()
        host.mount_small_disk(tmp_path, "64k")
        fill = "dd if=/dev/zero of=big bs=100k count=1; df -k . | tail -1"
        assert "100%" in host.run(["sh", "-c", f"cd {tmp_path}; {fill}"])
        assert not list(tmp_path.iterdir()), "only the host has that disk"
        for pause in (host.cut, host.freeze):
            before = len(read_steps(run.folder))
            pause(0.3)
            run.wait_for(lambda before=before: len(read_steps(run.folder)) > before + 1)
        run.kill_rank(3)
    error = run.record.summary["error"]
    assert (error["rank"], error["host"], error["kind"]) == (3, "host1", "killed")


def test_exception_in_the_block_ends_the_run():
    seen = []

    def break_off():
        with drills.BackgroundRun("ddp", 4, hosts=2, **LONG) as run:
            seen.append(run)
            run.wait_for_step(1, ranks=4)
            raise InterruptedError

    with pytest.raises(InterruptedError):
        break_off()
    assert seen[0].record.status == "interrupted"
