"""A real Triton: what is its own beside the contract of test_serving.py, and that nothing stays."""

import json
import sys
import time
from http.client import HTTPConnection
from pathlib import Path

import psutil
import pytest
import served_model
import triton_server

from bootcamp.launcher import process_tree
from bootcamp.serving import load_test, protocol, server_process, triton

CONTEXT = served_model.CONTEXT


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    if why := triton.why_not():
        pytest.skip(f"no Triton here: {why}")
    path = tmp_path_factory.mktemp("exported") / "first.onnx"
    served_model.write(path, seed=1)
    return path


@pytest.fixture(scope="module")
def server(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("triton")
    with triton.Server(folder, exported, context=CONTEXT, max_batch=8) as server:
        yield server
    wait_until_gone(server)


def list_what_is_left(server) -> list[str]:
    """The commands of a server's processes, and its regions of shared memory."""
    commands = [process_tree.read_command(pid) for pid in psutil.pids()]
    regions = [str(region) for region in triton.REGIONS.glob(f"{server.id}*")]
    return [command for command in commands if server.id in command] + regions


def wait_until_gone(server, what: str = "") -> None:
    deadline = time.monotonic() + 20
    while left := [each for each in list_what_is_left(server) if what in each]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def post(server, tensor: dict) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", protocol.INFER, json.dumps({"inputs": [tensor]}).encode())
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_counters_are_those_of_the_requests(server, exported):
    before = server.metrics()
    for batch in (1, 3, 8):
        asked = load_test.make_requests(served_model.scores(exported), 4, 9, batch)
        found = load_test.run_closed_loop(server.url, asked, clients=1, count=4)
        assert (found.wrong, found.failed) == (0, 0)
    counted = {name: value - before[name] for name, value in server.metrics().items()}
    assert counted["nv_inference_request_success"] == 3 * 4
    assert counted["nv_inference_count"] == (1 + 3 + 8) * 4
    assert counted["nv_inference_request_failure"] == 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"name": "tokens"}, "unexpected inference input 'tokens'"),
        ({"datatype": "FP32"}, "expects 'INT64'"),
        ({"shape": [3]}, "unexpected shape"),
        ({"shape": [1, 3, 1]}, "unexpected shape"),
        ({"shape": [1, 0], "data": []}, "samples of 1 to 64 bytes are taken"),
        ({"shape": [1, 65], "data": [1] * 65}, "samples of 1 to 64 bytes are taken"),
        ({"shape": [9, 3], "data": [1] * 27}, "batch-size must be <= 8"),
        ({"data": [1, 2, 256]}, "integers from 0 to 255 are expected"),
        ({"data": [1, 2, -1]}, "integers from 0 to 255 are expected"),
    ],
)
def test_mistakes_are_told_in_a_sentence(server, given, says):
    tensor = {"name": "ids", "shape": [1, 3], "datatype": "INT64", "data": [1, 2, 3], **given}
    status, text = post(server, tensor)
    assert (status, says in text) == (400, True), text


def test_versions_that_fail_their_own_test_are_refused(server, tmp_path):
    served_model.write(tmp_path / "infinite.onnx", seed=1, times=float("nan"))
    before = server.version
    version = server.publish(tmp_path / "infinite.onnx")
    with pytest.raises(protocol.Refused, match="finite"):
        server.switch(version)
    assert server.version == before, "the next start must not meet it"


def test_memory_is_removed_when_the_holder_was_killed(server, exported, tmp_path):
    second = triton.Server(tmp_path, exported, context=CONTEXT)
    second.holder.kill()
    second.holder.wait()
    wait_until_gone(second, "triton_python_backend_stub")
    stale = triton.REGIONS / f"{second.id}left"
    stale.touch()
    second.stop()
    assert not stale.exists()
    assert list(triton.REGIONS.glob(f"{server.id}*")), "a living server keeps its own"
    second.stop()  # once more is no error
    wait_until_gone(second)


def test_machines_without_triton_say_so_in_one_sentence(monkeypatch, tmp_path):
    monkeypatch.delenv("BOOTCAMP_WITHOUT", raising=False)
    monkeypatch.setattr(triton, "READY", tmp_path / "none")
    monkeypatch.setattr(triton, "ENVIRONMENT", tmp_path / ".venv-triton")
    assert triton.why_not() == "there is no .venv-triton: make triton makes it"
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "triton")
    hidden = "no Triton here: BOOTCAMP_WITHOUT hides it"
    with pytest.raises(server_process.ServerFailed, match=hidden):
        triton.Server(tmp_path, tmp_path / "gpt.onnx", context=CONTEXT)


def test_make_triton_says_what_it_lacks(monkeypatch, capsys):
    monkeypatch.setattr(triton_server, "PYTHONS", ((3, 0),))
    assert triton_server.main() == triton_server.CANNOT
    assert "needs Python 3.11 or 3.12, not 3." in capsys.readouterr().out
    monkeypatch.setattr(triton_server, "PYTHONS", (sys.version_info[:2],))
    monkeypatch.setattr(triton_server.sysconfig, "get_config_var", lambda name: "libpython3.a")
    assert "shared library is not here (on Debian" in triton_server.obstacle()
