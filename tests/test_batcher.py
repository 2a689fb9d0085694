"""The batcher and an instance by themselves, and a served model's folder of versions."""

import asyncio
import os
import signal

import numpy
import pytest

from bootcamp.serving import batcher, versions
from bootcamp.serving.instance import BadModel, Died, Instance

FAILURES = {13: Died("killed"), 14: BadModel("no"), 15: OverflowError("nobody expected this")}


class Fake:
    """An instance that answers with each sample's first byte, and notes its batches."""

    def __init__(self):
        self.alive, self.batches, self.go = True, [], asyncio.Event()

    async def predict(self, ids):
        self.batches.append(ids.shape)
        await self.go.wait()
        if error := FAILURES.get(ids[0, 0]):
            self.alive = not isinstance(error, Died)
            raise error
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


def test_batches_join_requests_of_equal_length_and_are_not_too_large():
    requests = [(1, 1, 5), (2, 1, 7), (3, 3, 5), (4, 5, 5), (5, 1, 5), (6, 8, 5)]
    answers, batches, _ = batched(requests)
    assert batches == [(5, 5), (1, 7), (5, 5), (8, 5)]
    assert [answer.shape for answer in answers] == [(batch, 1) for _, batch, _ in requests]
    assert [answer[0, 0] for answer in answers] == [1, 2, 3, 4, 5, 6]
    _, batches, _ = batched([(1, 1, 5)] * 3, max_batch=1)
    assert batches == [(1, 5)] * 3


def test_batches_that_fail_take_no_other_with_them():
    answers, _, made = batched([(13, 1, 5), (14, 1, 6), (15, 1, 8), (1, 1, 7)])
    assert [getattr(answer, "status", 200) for answer in answers] == [503, 500, 500, 200]
    assert (made.counts["lost"], made.counts["restarts"]) == (1, 1)


def test_requests_whose_client_has_gone_are_not_answered():
    """Whether they wait in the queue or are in a batch; those beside them are."""

    async def run():
        one, ids = Fake(), numpy.ones((1, 3), int)
        made = batcher.Batcher(max_batch=8, delay=0.01, most_waiting=9)
        gone, stays = (asyncio.ensure_future(made(ids)) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        assert len(made.queue) == 1
        in_batch = asyncio.ensure_future(made(ids))
        made.serve_with([one])
        while not one.batches:
            await asyncio.sleep(0.01)
        in_batch.cancel()
        one.go.set()
        async with asyncio.timeout(5):
            answers = [await stays, await made(ids)]
        await made.stop()
        return one.batches, [answer.tolist() for answer in answers]

    assert asyncio.run(run()) == ([(2, 3), (1, 3)], [[[1.0]], [[1.0]]])


def test_queues_refuse_when_they_are_full():
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


def test_instances_end_that_are_stopped_while_they_load(tmp_path):
    model = tmp_path / "endless.onnx"
    os.mkfifo(model)  # reading it waits for ever

    async def stop_it() -> Instance:
        one = Instance(model)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await one.start()
        return one

    assert asyncio.run(stop_it()).process.wait(10) == -signal.SIGKILL
