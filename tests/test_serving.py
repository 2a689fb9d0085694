"""Servers as their clients see them, and what they do when something fails.

First what the course's own server and Triton both do, then what each does alone.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading

import aiohttp
import processes
import psutil
import pytest
import served_model

from bootcamp.launcher import process_tree
from bootcamp.paths import SRC
from bootcamp.serving import load_test, malformed, protocol, server_process, triton, versions
from bootcamp_lessons.labs import serving_lab

LIMITS = protocol.Limits(batch=8, context=served_model.CONTEXT)
LOST = {"course": 503, "triton": 500}  # status of a request whose instance died
NOT_LOADED = {"course": r"gpt/\d/model\.onnx", "triton": "INVALID_PROTOBUF"}
STARTERS = {
    "course": "server_process.start('batching_server', sys.argv[1] + '/gpt')",
    "triton": "triton.Server(sys.argv[1], sys.argv[2], context=64)",
}


def start(kind: str, folder, exported) -> server_process.Server:
    """Start a server of a kind with two instances and a short queue, of an exported file."""
    if kind == "course":
        versions.publish(folder / "gpt", exported)
        how = {"instances": 2, "queue": 16, "body_seconds": 1}
        return server_process.start("batching_server", folder / "gpt", **how)
    skip_without_triton(kind)
    return triton.Server(folder, exported, context=LIMITS.context, max_batch=8, queue=8)


def skip_without_triton(kind: str) -> None:
    if kind == "triton" and (why := triton.why_not()):
        pytest.skip(f"no Triton here: {why}")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two versions of a small model as files, and one that is half a file."""
    folder = tmp_path_factory.mktemp("served")
    served_model.two_versions(folder)
    whole = (folder / "v1.onnx").read_bytes()
    (folder / "torn.onnx").write_bytes(whole[: len(whole) // 2])
    versions.publish(folder / "gpt", folder / "v1.onnx")
    return folder


@pytest.fixture(scope="module", params=STARTERS)
def server(request, place, tmp_path_factory):
    """One server of each kind for all tests that leave it as they found it."""
    with start(request.param, tmp_path_factory.mktemp("repository"), place / "v1.onnx") as server:
        server.kind = request.param
        yield server
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))
    if server.kind == "triton":
        processes.until(lambda: not list_what_is_left(server))


def asked(place, count=20, length=9, batch=1, both=False):
    right, other = (served_model.scores(place / f"v{number}.onnx") for number in (1, 2))
    return load_test.make_requests(right, count, length, batch, other if both else None)


def check_all_right(place, server, **how):
    found = load_test.run_closed_loop(server.url, asked(place, **how), clients=4, count=20)
    assert (found.wrong, found.failed, len(found.latencies)) == (0, 0, 20)


@contextlib.contextmanager
def stopped(server):
    """The instances stand still for a moment, and requests meet in the queue."""
    for pid in server.workers():
        os.kill(pid, signal.SIGSTOP)
    go_on = threading.Timer(0.5, lambda: [os.kill(p, signal.SIGCONT) for p in server.workers()])
    go_on.start()
    try:
        yield
    finally:
        go_on.join()


async def ask_at_once(server, requests: list) -> list[tuple[int, bool]]:
    """Each request's status, and whether its answer is right."""

    async def one(session, request):
        body = protocol.make_request(request.ids)
        async with session.post(server.url + protocol.INFER, json=body) as answer:
            return answer.status, request.is_answered_by(await answer.read())

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        return await asyncio.gather(*(one(session, request) for request in requests))


# The contract


def test_answers_are_the_models(place, server):
    for batch in (1, 3, LIMITS.batch):
        for length in (1, 7, LIMITS.context):
            check_all_right(place, server, batch=batch, length=length, count=4)


def test_malformed_requests_are_refused_and_harm_nobody(place, server):
    requests = malformed.make_requests(LIMITS)
    if server.kind == "course":
        assert malformed.list_bad_answers(malformed.send(server.url, LIMITS, times=4)) == []
    else:  # which calls what it can't read its own mistake; it dies of deep brackets
        del requests["nested 100,000 deep"]
        answers = {what: malformed._send(server.url, how) for what, how in requests.items()}
        assert {what for what, (status, _) in answers.items() if not 400 <= status < 600} == set()
    check_all_right(place, server)


def test_bad_requests_in_a_batch_do_not_spoil_the_others(place, server):
    requests = asked(place, count=4)
    requests[1].ids[0, 0] = 256
    answers = asyncio.run(ask_at_once(server, requests))
    assert answers == [(200, True), (400, False), (200, True), (200, True)]


def test_requests_of_one_length_share_a_batch(place, server):
    def count_batches():
        if server.kind == "course":
            return server.counts()["batches"]
        return server.metrics()["nv_inference_exec_count"]

    before, requests = count_batches(), asked(place, 6, length=5) + asked(place, 6, length=6)
    with stopped(server):
        answers = asyncio.run(ask_at_once(server, requests[::2]))
    assert answers == [(200, True)] * 6
    assert 2 <= count_batches() - before < 6, "none were joined"


def test_overload_is_refused_at_once(place, server):
    with stopped(server):
        answers = asyncio.run(ask_at_once(server, 15 * asked(place, 10, batch=8, length=64)))
    assert set(answers) == {(200, True), (503, False)}
    check_all_right(place, server)


def test_instances_killed_under_load_spoil_no_answer_and_are_replaced(place, server):
    victim = server.workers()[0]

    def kill_and_repair():
        os.kill(victim, signal.SIGKILL)
        processes.until(lambda: victim not in server.workers())
        server.repair()

    found = load_test.run_closed_loop(
        server.url, asked(place), clients=4, count=600, at={100: kill_and_repair}
    )
    assert found.wrong == 0
    assert set(found.statuses) <= {200, LOST[server.kind]}
    processes.until(lambda: len(server.workers()) == 2)
    assert victim not in server.workers()
    check_all_right(place, server)
    if server.kind == "course":
        counts = server.counts()
        assert found.statuses[503] == counts["lost"] <= LIMITS.batch
        assert counts["restarts"] == 1


def test_versions_come_and_go_under_load(place, server):
    version = server.publish(place / "v2.onnx")
    both = asked(place, both=True)
    for number, now in ((2, version), (1, 1)):  # there, and back again
        found = load_test.run_closed_loop(
            server.url, both, clients=2, count=200, at={50: lambda to=now: server.switch(to)}
        )
        assert (found.wrong, found.failed) == (0, 0)
        one = load_test.make_requests(served_model.scores(place / f"v{number}.onnx"), 5, 9)
        assert load_test.run_closed_loop(server.url, one, clients=1, count=5).failed == 0


@pytest.mark.parametrize("broken", ["torn", "missing"])
def test_broken_versions_leave_the_old_one_serving(place, server, broken):
    version = 99 if broken == "missing" else server.publish(place / f"{broken}.onnx")
    refused = []

    def switch():
        with pytest.raises(protocol.Refused) as why:
            server.switch(version)
        refused.append(str(why.value))

    found = load_test.run_closed_loop(
        server.url, asked(place), clients=2, count=200, at={50: switch}
    )
    assert (found.wrong, found.failed) == (0, 0)
    assert refused[0]


def test_loads_find_wrong_answers_and_faults_that_never_came(place, server):
    other = load_test.make_requests(served_model.scores(place / "v2.onnx"), 5, 9)
    found = load_test.run_closed_loop(server.url, other, clients=1, count=5)
    assert (found.wrong, found.failed) == (5, 5)
    never = {50: lambda: None}
    with pytest.raises(RuntimeError, match="request 50 was never sent"):
        load_test.run_closed_loop(server.url, other, clients=1, count=5, at=never)


def test_open_loops_count_from_when_a_request_was_due(place, server):
    found = load_test.run_open_loop(server.url, asked(place), per_second=100, seconds=0.7)
    assert found.wrong == 0
    assert len(found.latencies) > 35
    loader = load_test._Loader(server.url, asked(place), None)
    late = asyncio.run(loader.run(loader.send(due=-5)))
    assert late.latencies[0] > 5


def test_servers_listen_on_this_machine_alone(server):
    ends = []
    for pid in process_tree.find_below({server.holder.pid}):
        with contextlib.suppress(psutil.NoSuchProcess):  # such as a helper that has just ended
            ends += psutil.Process(pid).net_connections()
    listening = {each.laddr.ip for each in ends if each.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


@pytest.mark.parametrize("kind", STARTERS)
def test_servers_do_not_outlive_the_process_that_started_them(kind, place, tmp_path):
    skip_without_triton(kind)
    versions.publish(tmp_path / "gpt", place / "v1.onnx", triton.Server.program)
    code = f"""import sys
from bootcamp.serving import server_process, triton
server = {STARTERS[kind]}
print(server.holder.pid, getattr(server, "id", "no-region"), flush=True)
input()"""
    command = [sys.executable, "-c", code, tmp_path, place / "v1.onnx"]
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipe) as starter:
        holder, name = starter.stdout.readline().split()
        members = {int(holder)} | process_tree.find_below({int(holder)})
        assert len(members) >= 3, "holder, server, instance"
        starter.kill()
    processes.until(lambda: not any(map(process_tree.is_alive, members)))
    processes.until(lambda: not list(triton.REGIONS.glob(f"{name}*")))


@pytest.mark.parametrize("kind", STARTERS)
def test_servers_that_cannot_start_say_why(kind, place, tmp_path):
    with pytest.raises(server_process.ServerFailed, match=f"(?s)ended.*{NOT_LOADED[kind]}"):
        start(kind, tmp_path, place / "torn.onnx")


# The course's servers alone


@pytest.fixture
def own_server(place, tmp_path):
    """A server of the course that a test may break."""
    with start("course", tmp_path, place / "v1.onnx") as server:
        yield server


def test_simple_server_answers_and_refuses(place):
    with server_process.start("simple_server", place / "v1.onnx") as server:
        check_all_right(place, server, batch=3)
        assert malformed.list_bad_answers(malformed.send(server.url, LIMITS, times=1)) == []
    assert not process_tree.is_alive(server.pid)


def test_servers_answer_what_waits_before_they_end(place, own_server):
    pids = own_server.workers()

    async def end_while_four_wait():
        answers = asyncio.ensure_future(ask_at_once(own_server, asked(place, 4)))
        await asyncio.sleep(0.3)
        os.kill(own_server.pid, signal.SIGTERM)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        return await answers

    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    assert asyncio.run(end_while_four_wait()) == [(200, True)] * 4
    own_server.holder.wait(10)


def test_servers_killed_under_load_answer_nothing_wrong(place):
    with server_process.start("batching_server", place / "gpt") as server:
        below = process_tree.find_below({server.holder.pid})
        found = load_test.run_closed_loop(
            server.url, asked(place), clients=8, count=300, at={100: server.kill}
        )
    assert found.wrong == 0
    assert found.statuses[load_test.NO_ANSWER] > 0
    assert set(found.statuses) == {200, load_test.NO_ANSWER}
    assert not any(map(process_tree.is_alive, below))


def test_clients_that_never_read_or_never_finish_hold_up_nobody(place, own_server):
    body = json.dumps(protocol.make_request(asked(place)[0].ids)).encode()
    head = f"POST {protocol.INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    where = ("127.0.0.1", own_server.port)
    with (
        socket.create_connection(where) as never_reads,
        socket.create_connection(where) as stops_half_way,
    ):
        never_reads.setblocking(False)
        with contextlib.suppress(BlockingIOError):  # its own buffer and the server's are full
            while True:
                never_reads.sendall(100 * (head.encode() + body))
        stops_half_way.sendall(head.encode() + body[:9])
        check_all_right(place, own_server)
        stops_half_way.settimeout(10)
        assert b"408" in stops_half_way.recv(100)
    check_all_right(place, own_server)


# Triton alone

TRITON = pytest.mark.parametrize("server", ["triton"], indirect=True)


def list_what_is_left(server) -> list[str]:
    """The commands of a server's processes, and its regions of shared memory."""
    commands = [process_tree.read_command(pid) for pid in psutil.pids()]
    regions = [str(region) for region in triton.REGIONS.glob(f"{server.id}*")]
    return [command for command in commands if server.id in command] + regions


@TRITON
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"name": "tokens"}, "unexpected inference input 'tokens'"),
        ({"datatype": "FP32"}, "expects 'INT64'"),
        ({"shape": [3]}, "unexpected shape"),
        ({"shape": [1, 0], "data": []}, "samples of 1 to 64 bytes are taken"),
        ({"shape": [9, 3], "data": [1] * 27}, "batch-size must be <= 8"),
        ({"data": [1, 2, 256]}, "integers from 0 to 255 are expected"),
    ],
)
def test_mistakes_are_told_by_triton_in_a_sentence(server, given, says):
    tensor = {"name": "ids", "shape": [1, 3], "datatype": "INT64", "data": [1, 2, 3], **given}
    body = json.dumps({"inputs": [tensor]}).encode()
    status, text = malformed._send(server.url, {"body": body})
    assert (status, says in text) == (400, True), text


@TRITON
def test_versions_that_fail_their_own_test_are_refused_by_triton(server, tmp_path):
    served_model.write(tmp_path / "infinite.onnx", seed=1, times=float("nan"))
    before = server.version
    version = server.publish(tmp_path / "infinite.onnx")
    with pytest.raises(protocol.Refused, match="finite"):
        server.switch(version)
    assert server.version == before, "the next start must not meet it"


@TRITON
def test_memory_of_triton_is_removed_when_its_holder_was_killed(server, place, tmp_path):
    second = triton.Server(tmp_path, place / "v1.onnx", context=LIMITS.context)
    second.holder.kill()
    second.holder.wait()
    processes.until(lambda: not any(triton.STUB in each for each in list_what_is_left(second)))
    stale = triton.REGIONS / f"{second.id}left"
    stale.touch()
    second.stop()
    assert not stale.exists()
    assert list(triton.REGIONS.glob(f"{server.id}*")), "a living server keeps its own"
    assert triton.FOLDERS.strip("*") in "".join(os.listdir("/tmp")), "and its folder"
    second.stop()  # once more is no error
    processes.until(lambda: not list_what_is_left(second))


def test_machines_without_triton_say_so_in_one_sentence(monkeypatch, tmp_path):
    monkeypatch.delenv("BOOTCAMP_WITHOUT", raising=False)
    monkeypatch.setattr(triton, "READY", tmp_path / "none")
    monkeypatch.setattr(triton, "ENVIRONMENT", tmp_path / ".venv-triton")
    assert triton.why_not() == "there is no .venv-triton: make triton makes it"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tritonserver").touch()
    (tmp_path / "none").write_text(json.dumps({"triton": str(tmp_path), "python": "3.9.1 x"}))
    assert (triton.why_not(), triton.why_not(torch=True)[:19]) == (None, "its Python is 3.9.1")
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "triton")
    hidden = "no Triton here: BOOTCAMP_WITHOUT hides it"
    with pytest.raises(server_process.ServerFailed, match=hidden):
        triton.Server(tmp_path, tmp_path / "gpt.onnx", context=LIMITS.context)


# Lesson 11: what its tables say, and Triton's part from records


def test_lessons_show_tritons_part_from_records_where_there_is_none(place, monkeypatch, capsys):
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "triton")
    lesson = serving_lab.Triton(place, place / "v1.onnx", [])
    drills = lesson.drills()
    assert "BOOTCAMP_WITHOUT hides it" in capsys.readouterr().out
    assert [row["drill"] for row in drills] == list(serving_lab.DRILLS)
    assert sum(row["wrong"] for row in drills) == 0
    assert "recorded on another machine" in lesson.says
    assert len(lesson.measure()) == 2
    assert len(lesson.configurations(SRC / "snippets/triton_configurations.py")) == 7
    assert "instance_group [ { kind: KIND_" in lesson.config()
