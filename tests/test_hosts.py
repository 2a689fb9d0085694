"""Hosts made on one machine: what crosses their link, how they are refused, that nothing stays.

Of a Python that is killed, and of an ordinary user: test_slurm.py, whose hosts these are.
"""

import os
import subprocess

import pytest
from processes import find_host_traces, find_namespaces, namespaces_of, until_no_process_in

from bootcamp.costs import sharding
from bootcamp.launcher import launch, simulated_hosts

FLAGS = {"model": "mlp", "steps": 5, "global_batch": 16, "quiet": True}


@pytest.mark.parametrize(
    ("script", "flags", "strategy", "how"),
    [("ddp_options", {"hook": "fp16"}, "ddp", {"number": 0.5}), ("hsdp", {}, "hsdp", {"shard": 2})],
)
def test_link_carries_the_bytes_of_the_theory(needs_hosts, script, flags, strategy, how):
    """Those of plain DDP and FSDP are counted in lesson 08."""
    run = launch.launch(script, 4, hosts=2, link="1gbit", size="small", **FLAGS, **flags)
    copies = {"ddp": 4, "hsdp": 2}[strategy]
    model_bytes = sum(rank["parameter_bytes"] for rank in run.ranks) / copies
    theory = sharding.link_bytes(strategy, model_bytes, 4, 2, sharding.GLOO, **how)
    for first in (0, 2):
        ranks = run.ranks[first : first + 2]
        sent = sum(rank["sent_to_other_hosts_bytes_per_step"] for rank in ranks)
        assert sent == pytest.approx(theory, rel=0.01)
        assert ranks[0]["host_sent_bytes_per_step"] == pytest.approx(theory, rel=0.02)  # headers
    assert (run.config["hosts"], run.config["link"]) == (2, "1gbit")
    assert run.label.endswith("on 2 hosts, link 1gbit")


def test_ranks_know_their_host(needs_hosts, tmp_path):
    """Cold ones; warm ones and torchrun's: test_several_hosts.py."""
    script = tmp_path / "says_its_host.py"
    where = "socket.gethostname(), socket.gethostbyname('host1'), os.environ['LOCAL_RANK']"
    script.write_text(f"import os, socket\nprint({where})\n")
    run = launch.launch(script, 2, hosts=2, start="cold", device="cpu", quiet=True)
    for rank in (0, 1):
        said = (run.folder / "ranks" / f"{rank}.out").read_text()
        assert said.split() == [f"host{rank}", "10.77.0.2", "0"]


LOOK = (
    "hostname; getent hosts host0 host1 localhost; tc qdisc show dev eth0; pwd; "
    "mount -t tmpfs own /mnt && touch /mnt/here; ls /mnt"
)


def test_host_has_a_name_a_slow_link_and_mounts_and_the_machine_keeps_nothing(needs_hosts):
    before = find_host_traces()
    poor = {**os.environ, "PATH": "/usr/bin:/bin"}  # as an ordinary user has it on Debian
    with simulated_hosts.hold_hosts(2, "200mbit") as hosts:
        own = namespaces_of(hosts)
        assert own <= find_namespaces()
        for host in hosts:
            look = simulated_hosts.enter_command(host, ["sh", "-c", LOOK])
            said = subprocess.check_output(look, text=True, cwd="/usr", env=poor).splitlines()
            assert said[0] == host["name"]
            names = [line.removeprefix("::ffff:").split() for line in said[1:4]]
            assert names[:2] == [["10.77.0.1", "host0"], ["10.77.0.2", "host1"]]
            assert names[2][1] == "localhost"
            assert "tbf" in said[4]
            assert "rate 200Mbit" in said[4]
            assert said[5:] == ["/usr", "here"]
        outside = find_host_traces()
        assert {**outside, "namespaces": ()} == {**before, "namespaces": ()}
    assert not any(os.path.exists(f"/proc/{host['pid']}") for host in hosts)
    until_no_process_in(own)


def test_hosts_that_are_hidden_are_refused_with_the_reason(monkeypatch):
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "hosts")
    assert "hides them" in simulated_hosts.why_not()
    launch.shut_down()  # the supervisor has the environment that it began with
    try:
        with pytest.raises(launch.RunRefused, match="hosts=2: .*hides them"):
            launch.launch("ddp", 2, hosts=2, quiet=True)
    finally:
        launch.shut_down()


def test_hosts_on_a_system_without_namespaces_are_refused_in_one_sentence(monkeypatch):
    def forbid(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(simulated_hosts.linux, "call", forbid)
    with pytest.raises(simulated_hosts.HostsError, match="neither network namespaces .* nor user"):
        simulated_hosts.make(2, None)
