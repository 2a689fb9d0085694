"""Hosts made on one machine: what crosses their link, how they are refused, that nothing stays."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bootcamp.launcher import launch, simulated_hosts
from bootcamp.theory import model_shapes, sharding

WHY_NOT = simulated_hosts.why_not()
needs_hosts = pytest.mark.skipif(WHY_NOT is not None, reason=f"no hosts here: {WHY_NOT}")
SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin:/bin")
FLAGS = {"model": "mlp", "steps": 8, "global_batch": 16, "quiet": True}
NUMBERS = [sum(layer.numbers) for layer in model_shapes.layers("mlp", "small")]
HEAD = NUMBERS[-1] / sum(NUMBERS)  # what FSDP leaves gathered


@needs_hosts
@pytest.mark.parametrize(
    ("script", "flags", "strategy", "how"),
    [
        ("ddp", {}, "ddp", {}),
        ("ddp_options", {"hook": "fp16"}, "ddp", {"number": 0.5}),
        ("fsdp", {}, "fsdp", {"root": HEAD}),
        ("hsdp", {}, "hsdp", {"shard": 2}),
    ],
)
def test_bytes_on_the_link_are_those_of_the_theory(script, flags, strategy, how):
    run = launch.launch(script, 4, hosts=2, link="1gbit", size="small", **FLAGS, **flags)
    shard = how.get("shard")
    copies = {"ddp": 4, "hsdp": 2, "fsdp": 1}[strategy]
    model_bytes = sum(rank["parameter_bytes"] for rank in run.ranks) / copies
    calls = sharding.collectives(strategy, **how)
    theory = sharding.link_bytes(calls, model_bytes, 4, 2, shard, sharding.GLOO)
    for first in (0, 2):
        ranks = run.ranks[first : first + 2]
        sent = sum(rank["sent_to_other_hosts_bytes_per_step"] for rank in ranks)
        assert sent == pytest.approx(theory, rel=0.01)
        assert ranks[0]["host_sent_bytes_per_step"] == pytest.approx(theory, rel=0.02)  # headers
    assert (run.config["hosts"], run.config["link"]) == (2, "1gbit")
    assert run.label.endswith("on 2 hosts, link 1gbit")


@needs_hosts
@pytest.mark.parametrize("start", ["warm", "cold"])
def test_ranks_know_their_host(start):
    line = "import os, socket; print(socket.gethostname(), os.environ['LOCAL_RANK'])"
    from bootcamp.scripts.variants import variant

    script = variant("ddp", "says_its_host", {"run.finish()": f"run.finish()\n{line}"})
    run = launch.launch(script, 4, hosts=2, start=start, device="cpu", **{**FLAGS, "steps": 2})
    said = [(run.folder / "ranks" / f"{rank}.out").read_text().split()[-2:] for rank in range(4)]
    assert said == [["host0", "0"], ["host0", "1"], ["host1", "0"], ["host1", "1"]]
    assert "torchrun --nnodes 2 --nproc-per-node 2" in run.config["command"]


SHOW_FILTER = """
import subprocess, sys
from bootcamp.launcher import forkserver
forkserver.enter(json.loads(sys.argv[1]))
subprocess.run(["tc", "qdisc", "show", "dev", "eth0"], check=True)
"""


@needs_hosts
def test_the_link_has_its_rate_and_the_machine_keeps_nothing():
    command = [sys.executable, "-P", simulated_hosts.__file__, "2", "200mbit"]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    made = json.loads(holder.stdout.readline())["hosts"]
    own = {os.readlink(host["net"]) for host in made}
    assert len(own) == 2
    assert own <= set(simulated_hosts.traces()["namespaces"])
    enter = [sys.executable, "-c", f"import json{SHOW_FILTER}", json.dumps(made[0])]
    said = subprocess.check_output(enter, text=True)
    assert "tbf" in said
    assert "rate 200Mbit" in said
    holder.kill()
    holder.wait()
    assert not own & set(simulated_hosts.traces()["namespaces"])


AS_NOBODY = """
import json, os, socket, subprocess, sys
sys.path.insert(0, sys.argv[1])
from bootcamp.launcher import forkserver
holder = sys.argv[1] + "/bootcamp/launcher/simulated_hosts.py"
command = [sys.executable, "-P", holder, "2", "1gbit"]
holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
host0, host1 = json.loads(holder.stdout.readline())["hosts"]
ready, tell = os.pipe()
if os.fork() == 0:
    forkserver.enter(host1)
    os.read(ready, 1)
    connection = socket.create_connection(("10.77.0.1", 5000), timeout=10)
    connection.sendall(b"from " + host1["name"].encode())
    os._exit(0)
forkserver.enter(host0)
listening = forkserver.listen(5000, "10.77.0.1")
os.write(tell, b"x")
connection, _ = listening.accept()
print(connection.recv(100).decode(), "user namespace:", host0["user"] is not None)
holder.kill()
"""


@needs_hosts
@pytest.mark.skipif(os.getuid() != 0, reason="to become somebody else one must be root")
@pytest.mark.skipif(SYSTEM_PYTHON is None, reason="the system has no python3 for everybody")
def test_without_root_two_hosts_meet_too(request):
    """As a user without rights, with nothing but what everybody can read."""
    folder = tempfile.mkdtemp(dir="/tmp")  # whoever it is, it may look in there
    request.addfinalizer(lambda: shutil.rmtree(folder))
    os.chmod(folder, 0o755)
    package = Path(simulated_hosts.__file__).parents[1]
    shutil.copytree(package, f"{folder}/bootcamp", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [SYSTEM_PYTHON, "-c", AS_NOBODY, folder],
        capture_output=True,
        text=True,
        user=65534,
        group=65534,
        extra_groups=[],
        cwd="/",
        timeout=60,
    )
    if "user namespaces (for everybody)" in done.stderr + done.stdout:
        pytest.skip("this system gives user namespaces to root only")
    assert done.stdout.strip() == "from host1 user namespace: True", done.stderr


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"ranks": 3, "hosts": 2}, "do not spread evenly over hosts=2"),
        ({"ranks": 2, "hosts": 0}, "expected at least one"),
        ({"ranks": 2, "link": "200mbit"}, "between hosts=2 or more"),
        ({"ranks": 2, "hosts": 2, "link": "fast"}, "such as '200mbit'"),
        ({"ranks": 2, "hosts": 2, "start": "torchrun"}, "warm and cold starts"),
        ({"hosts": 2}, "needs ranks="),
        ({"ranks": 2, "hosts": 2, "device": "cuda"}, "CPU ranks"),
    ],
)
def test_what_means_nothing_is_refused(flags, sentence):
    with pytest.raises(ValueError, match=sentence):
        launch.launch("ddp", quiet=True, **flags)


def test_where_hosts_cannot_be_made_the_run_says_why(monkeypatch):
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "hosts")
    assert "hides them" in simulated_hosts.why_not()
    launch.shut_down()  # the supervisor has the environment that it began with
    try:
        with pytest.raises(launch.RunRefused, match="hosts=2: .*hides them"):
            launch.launch("ddp", 2, hosts=2, quiet=True)
    finally:
        launch.shut_down()


def test_a_system_without_namespaces_is_told_in_one_sentence(monkeypatch):
    def forbidden(kinds):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(simulated_hosts, "_unshare", forbidden)
    with pytest.raises(
        simulated_hosts.HostsError, match="neither network namespaces .* nor user namespaces"
    ):
        simulated_hosts.make(2, None)
