"""Servers of lesson 11 as their clients see them, and what they do when something fails."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import numpy
import psutil
import pytest
import served_model

from bootcamp.launcher import process_tree
from bootcamp.serving import batcher, load_test, malformed, protocol, server_process, versions
from bootcamp.serving.instance import BadModel, Died, Instance

LIMITS = protocol.Limits(batch=8, context=served_model.CONTEXT)
SCRIPTS = ("simple_server", "batching_server")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two versions of a small model as files, and a folder that has the first."""
    folder = tmp_path_factory.mktemp("served")
    served_model.two_versions(folder)
    versions.publish(folder / "gpt", folder / "v1.onnx")
    return folder


@pytest.fixture(scope="module")
def server(place):
    """One server for all tests that leave it as they found it."""
    with server_process.start("batching_server", place / "gpt", instances=2, body_seconds=1) as it:
        yield it


@pytest.fixture
def own_server(place, tmp_path):
    """A server that a test may break, of a folder of versions of its own."""
    versions.publish(tmp_path / "gpt", place / "v1.onnx")
    with server_process.start("batching_server", tmp_path / "gpt", instances=2, queue=4) as it:
        yield it


def asked(place, count=20, length=9, batch=1, both=False):
    right, other = (served_model.scores(place / f"v{number}.onnx") for number in (1, 2))
    return load_test.make_requests(right, count, length, batch, other if both else None)


def all_right(place, server, **how):
    found = load_test.run_closed_loop(server.url, asked(place, **how), clients=4, count=20)
    assert (found.wrong, found.failed, len(found.latencies)) == (0, 0, 20)


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_server_answers_and_refuses(place, script):
    model = place / ("v1.onnx" if script == "simple_server" else "gpt")
    with server_process.start(script, model) as server:
        for batch in (1, 3, 8):
            for length in (1, 7, served_model.CONTEXT):
                all_right(place, server, batch=batch, length=length, count=4)
        rows = malformed.send(server.url, LIMITS, times=4)
        assert malformed.list_bad_answers(rows) == []
        all_right(place, server)
    assert not process_tree.is_alive(server.pid)


def test_a_wrong_answer_is_found(place, server):
    other = load_test.make_requests(served_model.scores(place / "v2.onnx"), 5, 9)
    found = load_test.run_closed_loop(server.url, other, clients=1, count=5)
    assert found.wrong == 5
    assert found.failed == 5


def test_malformed_requests_that_are_answered_are_found():
    rows = [
        {"what is wrong": "x", "sent": 2, "status": status}
        for status in ("400", "200, 400", "400, 500")
    ]
    rows = [row | {"answer": "no"} for row in rows]
    assert malformed.list_bad_answers(rows) == rows[1:]


def test_a_worker_killed_under_load_loses_only_what_it_had(place, server):
    before = server.counts()
    kill = {100: lambda: os.kill(server.workers()[0], signal.SIGKILL)}
    found = load_test.run_closed_loop(server.url, asked(place), clients=16, count=600, at=kill)
    after = server.counts()
    assert found.wrong == 0
    assert set(found.statuses) <= {200, 503}
    assert found.statuses[503] == after["lost"] - before["lost"] <= LIMITS.batch
    assert after["restarts"] == before["restarts"] + 1
    all_right(place, server)


def test_a_server_killed_under_load_answers_nothing_wrong(place):
    with server_process.start("batching_server", place / "gpt") as server:
        below = process_tree.find_below({server.holder.pid})
        found = load_test.run_closed_loop(
            server.url, asked(place), clients=8, count=300, at={100: server.kill}
        )
    assert found.wrong == 0
    assert found.statuses[load_test.NO_ANSWER] > 0
    assert set(found.statuses) == {200, load_test.NO_ANSWER}
    assert not any(map(process_tree.is_alive, below))


def test_versions_come_and_go_under_load(place, own_server, tmp_path):
    both = asked(place, both=True)
    assert versions.publish(tmp_path / "gpt", place / "v2.onnx") == 2
    for now in (2, 1):  # there, and back again
        found = load_test.run_closed_loop(
            own_server.url, both, 2, count=400, at={100: lambda to=now: own_server.switch(to)}
        )
        assert (found.wrong, found.failed) == (0, 0)
        one = load_test.make_requests(served_model.scores(place / f"v{now}.onnx"), 5, 9)
        assert load_test.run_closed_loop(own_server.url, one, clients=1, count=5).failed == 0


def test_a_broken_version_changes_nothing(place, own_server, tmp_path):
    torn, refused = tmp_path / "torn.onnx", []
    torn.write_bytes((place / "v2.onnx").read_bytes()[:1000])
    versions.publish(tmp_path / "gpt", torn)

    def switch():
        for version in (2, 9):
            with pytest.raises(protocol.Refused) as why:
                own_server.switch(version)
            refused.append(str(why.value))

    found = load_test.run_closed_loop(
        own_server.url, asked(place), clients=2, count=300, at={50: switch}
    )
    assert (found.wrong, found.failed) == (0, 0)
    assert "2/model.onnx can't be loaded" in refused[0]
    assert "has no version 9" in refused[1]


def test_overload_is_refused_at_once_and_drains(place, own_server):
    """The workers are stopped, so nothing is answered: one batch each, and 4 in the queue."""
    pids = own_server.workers()
    ones = asked(place, count=40)

    async def flood():
        async with load_test.aiohttp.ClientSession() as session:
            how = [{"json": protocol.make_request(one.ids)} for one in ones]
            sent = [session.post(own_server.url + protocol.INFER, **one) for one in how]
            tasks = [asyncio.ensure_future(one) for one in sent]
            while sum(task.done() for task in tasks) < 40 - 4 - 2 * LIMITS.batch:
                await asyncio.sleep(0.01)
            refused = [task.result() for task in tasks if task.done()]
            os.kill(own_server.pid, signal.SIGTERM)  # what waits is answered before it ends
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            return refused, await asyncio.gather(*tasks)

    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    refused, answers = asyncio.run(flood())
    assert {answer.status for answer in refused} == {503}
    assert {answer.headers["Retry-After"] for answer in refused} == {"1"}
    assert {answer.status for answer in answers} == {200, 503}
    assert sum(answer.status == 200 for answer in answers) >= 4  # those that waited
    own_server.holder.wait(10)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(own_server.url.rpartition(":")[2])))


@contextmanager
def connection(server):
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as it:
        yield it


def send_until_nothing_is_taken(connection, text: bytes) -> None:
    connection.setblocking(False)
    while True:
        connection.sendall(100 * text)


def test_clients_that_never_read_or_never_finish_hold_up_nobody(place, server):
    body = json.dumps(protocol.make_request(asked(place)[0].ids)).encode()
    path = protocol.INFER
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with connection(server) as never_reads, connection(server) as stops_half_way:
        with pytest.raises(BlockingIOError):  # its own buffer and the server's are full
            send_until_nothing_is_taken(never_reads, head.encode() + body)
        stops_half_way.sendall(head.encode() + body[:9])
        all_right(place, server)
        stops_half_way.settimeout(10)
        assert b"408" in stops_half_way.recv(100)
    all_right(place, server)


def test_nothing_outlives_the_process_that_started_a_server(place):
    code = (
        "from bootcamp.serving import server_process\n"
        f"server = server_process.start('batching_server', {str(place / 'gpt')!r})\n"
        "print(server.holder.pid, flush=True)\n"
        "input()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as starter:
        holder = int(starter.stdout.readline())
        members = {holder} | process_tree.find_below({holder})
        assert len(members) == 3  # holder, server, worker
        starter.kill()
    deadline = time.monotonic() + 10
    while any(map(process_tree.is_alive, members)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(process_tree.is_alive, members))


def test_a_server_that_cannot_start_says_why(place, tmp_path):
    (tmp_path / "gpt" / "1").mkdir(parents=True)
    (tmp_path / "gpt" / "1" / "model.onnx").write_bytes(b"no model")
    with pytest.raises(server_process.ServerFailed, match=r"gpt/1/model\.onnx failed"):
        server_process.start("batching_server", tmp_path / "gpt")


def test_an_open_loop_counts_from_when_a_request_was_due(place, server):
    found = load_test.run_open_loop(server.url, asked(place), per_second=100, seconds=1)
    assert found.failed == 0
    assert len(found.latencies) > 50
    loader = load_test._Loader(server.url, asked(place), None)
    late = asyncio.run(loader.run(loader.send(due=-5)))
    assert late.latencies[0] > 5


def test_a_load_that_never_comes_to_its_fault_says_so(place, server):
    with pytest.raises(RuntimeError, match="request 50 was never sent"):
        load_test.run_closed_loop(
            server.url, asked(place), clients=1, count=5, at={50: lambda: None}
        )


def test_servers_listen_on_this_machine_alone(server):
    pids = {server.pid} | process_tree.find_below({server.pid})
    listening = {
        tuple(each.laddr)[0]
        for pid in pids
        for each in psutil.Process(pid).net_connections()
        if each.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


class Fake:
    """An instance that answers with each sample's first byte, and notes its batches."""

    def __init__(self):
        self.alive, self.batches, self.go = True, [], asyncio.Event()

    async def predict(self, ids):
        self.batches.append(ids.shape)
        await self.go.wait()
        if ids[0, 0] == 13:
            self.alive = False
            raise Died("killed")
        if ids[0, 0] == 14:
            raise BadModel("no")
        if ids[0, 0] == 15:
            raise OverflowError("nobody expected this")
        return ids[:, :1].astype(numpy.float32)

    async def start(self):
        self.alive = True

    async def stop(self):
        self.alive = False


def batched(requests, **how):
    """What a Batcher gives for requests, each (first byte, batch, length), and the batches."""

    async def run():
        one = Fake()
        made = batcher.Batcher(**{"max_batch": 8, "delay": 0.01, "most_waiting": 64, **how})
        made.serve_with([one])
        arrays = [numpy.full((batch, length), byte) for byte, batch, length in requests]
        tasks = [asyncio.ensure_future(made(array)) for array in arrays]
        one.go.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        await made.stop()
        return answers, one.batches, made

    return asyncio.run(run())


def test_only_requests_of_equal_length_are_joined_and_no_batch_is_too_large():
    requests = [(1, 1, 5), (2, 1, 7), (3, 3, 5), (4, 5, 5), (5, 1, 5), (6, 8, 5)]
    answers, batches, _ = batched(requests)
    assert batches == [(5, 5), (1, 7), (5, 5), (8, 5)]
    assert [answer.shape for answer in answers] == [(batch, 1) for _, batch, _ in requests]
    assert [answer[0, 0] for answer in answers] == [1, 2, 3, 4, 5, 6]


def test_without_batching_each_request_goes_by_itself():
    _, batches, _ = batched([(1, 1, 5)] * 3, max_batch=1)
    assert batches == [(1, 5)] * 3


def test_what_dies_or_fails_takes_its_own_batch_only():
    answers, _, made = batched([(13, 1, 5), (14, 1, 6), (15, 1, 8), (1, 1, 7)])
    assert [getattr(answer, "status", 200) for answer in answers] == [503, 500, 500, 200]
    assert (made.counts["lost"], made.counts["restarts"]) == (1, 1)


def test_a_request_whose_client_has_gone_leaves_the_queue():
    async def run():
        made = batcher.Batcher(max_batch=8, delay=0.01, most_waiting=2)
        gone = [asyncio.ensure_future(made(numpy.zeros((1, 3), int))) for _ in range(2)]
        await asyncio.sleep(0)
        for one in gone:
            one.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        return len(made.queue)

    assert asyncio.run(run()) == 0


def test_a_full_queue_refuses():
    answers, _, made = batched([(1, 1, 5)] * 5, most_waiting=3)
    assert [getattr(answer, "status", 200) for answer in answers] == [200] * 3 + [503] * 2
    assert made.counts["too_many"] == 2


def test_versions_are_whole_or_not_there(tmp_path, monkeypatch):
    (tmp_path / "a.onnx").write_bytes(b"1")
    with pytest.raises(FileNotFoundError, match="no version"):
        versions.find_file(tmp_path / "gpt")
    assert versions.publish(tmp_path / "gpt", tmp_path / "a.onnx") == 1

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        versions.publish(tmp_path / "gpt", tmp_path / "a.onnx")
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "gpt").iterdir()] == ["1"]
    assert versions.publish(tmp_path / "gpt", tmp_path / "a.onnx") == 2
    assert versions.find_file(tmp_path / "gpt") == tmp_path / "gpt" / "2" / "model.onnx"
    assert versions.find_file(tmp_path / "gpt", 1) == tmp_path / "gpt" / "1" / "model.onnx"


def test_an_instance_that_is_stopped_while_it_loads_ends(tmp_path):
    model = tmp_path / "endless.onnx"
    os.mkfifo(model)  # reading it waits for ever

    async def stop_it() -> Instance:
        one = Instance(model)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await one.start()
        return one

    assert asyncio.run(stop_it()).process.wait(10) == -signal.SIGKILL
