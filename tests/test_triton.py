"""A real Triton: its answers, what it refuses, new versions under load, and that nothing stays."""

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import namedtuple
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import aiohttp
import numpy
import onnx
import onnxruntime
import psutil
import pytest
import served_model

from bootcamp.launcher import process_tree
from bootcamp.paths import ROOT
from bootcamp.serving import protocol, server_process, triton

WHY_NOT = triton.why_not()
CONTEXT, BATCH, QUEUE = served_model.CONTEXT, 8, 8
SAMPLE = numpy.array([list(b"import to")])
Answer = namedtuple("Answer", "status version scores text")
STARTER = """
import sys, time
from bootcamp.serving import triton
server = triton.Server(sys.argv[1], sys.argv[2], context=64)
print(server.id, server.port, server.metrics_port, flush=True)
time.sleep(600)
"""

spec = importlib.util.spec_from_file_location("triton_tool", ROOT / "tools" / "triton_server.py")
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    """A folder with two models that answer differently, a truncated one, and one that is not."""
    if WHY_NOT:
        pytest.skip(f"no Triton here: {WHY_NOT}")
    folder = tmp_path_factory.mktemp("exported")
    served_model.write(folder / "first.onnx", seed=1)
    change(folder, "second.onnx", lambda weights: weights * 1.5)
    change(folder, "infinite.onnx", lambda weights: weights * numpy.float32("nan"))
    whole = (folder / "first.onnx").read_bytes()
    (folder / "truncated.onnx").write_bytes(whole[: len(whole) // 2])
    return folder


def change(folder: Path, name: str, how) -> None:
    """The first model with other weights."""
    model = onnx.load(folder / "first.onnx")
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 2:
            changed = how(onnx.numpy_helper.to_array(tensor)).astype(numpy.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(changed, tensor.name))
    onnx.save(model, folder / name)


def direct(path: Path, ids: numpy.ndarray) -> numpy.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"ids": ids})[0]


@pytest.fixture(scope="module")
def server(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("triton")
    settings = {"context": CONTEXT, "max_batch": BATCH, "queue": QUEUE}
    with triton.Server(folder, exported / "first.onnx", **settings) as server:
        yield server
    assert_gone(server.id, server.port, server.metrics_port)


def assert_gone(name: str, *ports: int) -> None:
    """No process, port or shared memory of a server is there soon."""
    deadline = time.monotonic() + 20
    while left := of_server(name):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()


def of_server(name: str) -> list[str]:
    pids = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
    commands = [process_tree.read_command(pid) for pid in pids]
    regions = [str(region) for region in triton.REGIONS.glob(f"{name}*")]
    return [command for command in commands if name in command] + regions


def post(server, body: bytes, path: str = protocol.INFER) -> Answer:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("POST", path, body)
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    if answer.status != 200:
        return Answer(answer.status, None, None, text)
    said = json.loads(text)
    return Answer(200, int(said["model_version"]), protocol.read_scores(said), text)


def ask(server, ids: numpy.ndarray) -> Answer:
    return post(server, json.dumps(protocol.make_request(ids)).encode())


class Load:
    """Two clients that ask without a pause, until the `with` ends."""

    def __init__(self, server):
        self.server, self.answers, self.over = server, [], threading.Event()
        self.clients = [threading.Thread(target=self._ask) for _ in range(2)]

    def _ask(self):
        while not self.over.is_set():
            try:
                self.answers.append(ask(self.server, SAMPLE))
            except (OSError, HTTPException) as error:
                self.answers.append(Answer(0, None, None, repr(error)))

    def __enter__(self):
        for client in self.clients:
            client.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for client in self.clients:
            client.join()

    def wait_for(self, condition) -> None:
        deadline = time.monotonic() + 60
        while not any(map(condition, self.answers)):
            assert time.monotonic() < deadline, {each[:2] for each in self.answers}
            time.sleep(0.01)


def test_it_answers_what_onnx_runtime_answers_and_counts(server, exported):
    before, random = server.metrics(), numpy.random.default_rng(0)
    shapes = [(batch, length) for batch in (1, 3, BATCH) for length in (1, 9, CONTEXT)]
    for shape in shapes:
        ids = random.integers(0, 256, shape)
        difference = abs(ask(server, ids).scores - direct(exported / "first.onnx", ids)).max()
        assert difference < 1e-6, shape
    counted = {name: value - before[name] for name, value in server.metrics().items()}
    assert counted["nv_inference_request_success"] == len(shapes)
    assert counted["nv_inference_count"] == sum(batch for batch, _ in shapes)
    assert counted["nv_inference_request_failure"] == 0


def test_requests_of_one_length_share_a_batch_and_others_do_not(server, exported):
    asked = [numpy.full((1, length), length) for length in (5, 5, 5, 5, 6, 6, 6, 6)]
    before = server.metrics()
    with stopped(server):
        answers = asyncio.run(ask_at_once(server, asked))
    for ids, (status, scores) in zip(asked, answers, strict=True):
        assert status == 200
        assert abs(scores - direct(exported / "first.onnx", ids)).max() < 1e-6
    now = server.metrics()
    assert now["nv_inference_count"] - before["nv_inference_count"] == len(asked)
    batches = now["nv_inference_exec_count"] - before["nv_inference_exec_count"]
    assert 2 <= batches < len(asked), "none were joined"


@contextlib.contextmanager
def stopped(server):
    """The instances stand still, and requests meet in the queue; after 1 s Triton gives them up."""
    for pid in server.workers():
        os.kill(pid, signal.SIGSTOP)
    go_on = threading.Timer(0.3, lambda: [os.kill(p, signal.SIGCONT) for p in server.workers()])
    go_on.start()
    try:
        yield
    finally:
        go_on.join()


async def ask_at_once(server, asked: list) -> list:
    async def one(session, ids):
        async with session.post(address, json=protocol.make_request(ids)) as answer:
            said = await answer.json(content_type=None)
            return answer.status, protocol.read_scores(said) if answer.status == 200 else said

    address = server.url + protocol.INFER
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        return await asyncio.gather(*(one(session, ids) for ids in asked))


def test_more_than_the_queue_holds_is_refused_at_once(server):
    with stopped(server):
        answers = asyncio.run(ask_at_once(server, [numpy.zeros((BATCH, CONTEXT), int)] * 150))
    refused = [said["error"] for status, said in answers if status == 503]
    assert {status for status, _ in answers} == {200, 503}
    assert "Exceeds maximum queue size" in refused[0]


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
def test_a_mistake_is_told_in_a_sentence(server, given, says):
    tensor = {"name": "ids", "shape": [1, 3], "datatype": "INT64", "data": [1, 2, 3], **given}
    answer = post(server, json.dumps({"inputs": [tensor]}).encode())
    assert (answer.status, says in answer.text) == (400, True), answer.text
    assert ask(server, SAMPLE).status == 200


@pytest.mark.parametrize("body", [b"hello", b"[1]", b"{}", b'{"inputs": 3}'])
def test_what_triton_takes_for_its_own_mistake_does_not_end_it(server, body):
    assert post(server, body).status == 500
    assert ask(server, SAMPLE).status == 200


def test_one_bad_request_in_a_batch_does_not_spoil_the_others(server, exported):
    asked = [numpy.full((1, 7), token) for token in (1, 256, 2, 3)]
    answers = asyncio.run(ask_at_once(server, asked))
    assert [status for status, _ in answers] == [200, 400, 200, 200]
    for number in (0, 2, 3):
        expected = direct(exported / "first.onnx", asked[number])
        assert abs(answers[number][1] - expected).max() < 1e-6


def test_an_instance_killed_under_load_spoils_no_answer_and_is_replaced(server, exported):
    expected = direct(exported / "first.onnx", SAMPLE)
    victim, other = server.workers()
    with Load(server) as load:
        load.wait_for(lambda answer: answer.status == 200)
        os.kill(victim, signal.SIGKILL)
        load.wait_for(lambda answer: answer.status == 500)
        assert server.answers(protocol.MODEL_READY), "Triton says so with half of its instances"
        assert server.metrics()["nv_inference_request_failure"] > 0
        server.repair()
    assert {answer.status for answer in load.answers} == {200, 500}
    for answer in load.answers:
        assert answer.status == 500 or abs(answer.scores - expected).max() < 1e-6
    assert len(server.workers()) == 2
    assert not {victim, other} & set(server.workers())
    assert {ask(server, SAMPLE).status for _ in range(20)} == {200}


def test_a_new_version_takes_over_under_load_and_gives_back(server, exported):
    models_of = {1: exported / "first.onnx", 2: exported / "second.onnx"}
    expected = {version: direct(path, SAMPLE) for version, path in models_of.items()}
    assert abs(expected[1] - expected[2]).max() > 0.01
    assert server.publish(models_of[2]) == 2
    with Load(server) as load:
        for version in (2, 1):
            server.switch(version)
            load.answers.append(ask(server, SAMPLE))
            assert load.answers[-1].version == version
            assert server.version == version
    assert {(answer.status, answer.version) for answer in load.answers} == {(200, 1), (200, 2)}
    for answer in load.answers:
        assert abs(answer.scores - expected[answer.version]).max() < 1e-6


@pytest.mark.parametrize(
    ("name", "says"), [("truncated", "INVALID_PROTOBUF"), ("infinite", "finite")]
)
def test_a_broken_version_leaves_the_old_one_serving(server, exported, name, says):
    served = ask(server, SAMPLE).version
    version = server.publish(exported / f"{name}.onnx")
    with Load(server) as load, pytest.raises(protocol.Refused, match=says):
        server.switch(version)
    assert {answer.status for answer in load.answers} == {200}
    assert ask(server, SAMPLE).version == served
    assert server.version == served, "the next start must not meet it"


def test_a_version_that_is_not_there_leaves_the_old_one_serving(server):
    served = ask(server, SAMPLE).version
    with pytest.raises(protocol.Refused):
        server.switch(9)
    assert ask(server, SAMPLE).version == server.version == served


def test_it_listens_on_this_machine_alone(server):
    listening = set()
    for pid in process_tree.find_below({server.holder.pid}):
        for each in psutil.Process(pid).net_connections():
            if each.status == psutil.CONN_LISTEN:
                listening.add(tuple(each.laddr))
    assert listening == {("127.0.0.1", server.port), ("127.0.0.1", server.metrics_port)}


def test_nothing_is_left_when_its_starter_is_killed(exported, tmp_path):
    command = [sys.executable, "-c", STARTER, tmp_path, exported / "first.onnx"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        name, *ports = starter.stdout.readline().split()
        assert len(of_server(name)) >= 4, "holder, server, instances and their memory"
        starter.kill()
    assert_gone(name, *map(int, ports))


def test_nothing_is_left_when_its_holder_is_killed(server, exported, tmp_path):
    second = triton.Server(tmp_path, exported / "first.onnx", context=CONTEXT)
    second.holder.kill()
    second.holder.wait()
    deadline = time.monotonic() + 20
    while any("/dev/shm" not in each for each in of_server(second.id)):
        assert time.monotonic() < deadline, of_server(second.id)
        time.sleep(0.05)
    stale = triton.REGIONS / f"{second.id}left"
    stale.touch()
    second.stop()
    assert not stale.exists()
    assert list(triton.REGIONS.glob(f"{server.id}*")), "a living server keeps its own"
    second.stop()  # once more is no error
    assert_gone(second.id, second.port, second.metrics_port)


def test_a_model_that_does_not_load_ends_the_start_with_the_log(server, exported, tmp_path):
    with pytest.raises(server_process.ServerFailed, match="(?s)server ended.*INVALID_PROTOBUF"):
        triton.Server(tmp_path, exported / "truncated.onnx", context=CONTEXT, instances=1)


def test_where_it_is_hidden_or_missing_one_sentence_says_so(monkeypatch, tmp_path):
    monkeypatch.delenv("BOOTCAMP_WITHOUT", raising=False)
    monkeypatch.setattr(triton, "READY", tmp_path / "none")
    monkeypatch.setattr(triton, "ENVIRONMENT", tmp_path / ".venv-triton")
    assert triton.why_not() == "there is no .venv-triton: make triton makes it"
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "triton")
    with pytest.raises(
        server_process.ServerFailed, match="no Triton here: BOOTCAMP_WITHOUT hides it"
    ):
        triton.Server(tmp_path, tmp_path / "gpt.onnx", context=CONTEXT)


def test_make_triton_says_what_it_lacks(monkeypatch, capsys):
    monkeypatch.setattr(tool, "PYTHONS", ((3, 0),))
    assert tool.main() == tool.CANNOT
    assert "needs Python 3.11 or 3.12, not 3." in capsys.readouterr().out
    monkeypatch.setattr(tool, "PYTHONS", (sys.version_info[:2],))
    monkeypatch.setattr(tool.sysconfig, "get_config_var", lambda name: "libpython3.a")
    assert "shared library is not here (on Debian" in tool.obstacle()
