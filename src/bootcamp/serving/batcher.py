"""Dynamic batching: a queue of requests, which instances of the model answer in batches.

As in Clipper (Crankshaw et al., NSDI 2017) and Triton's dynamic batcher: a batch is full at
`max_batch` samples, its first request waits at most `delay` seconds for others, and requests beyond
a queue of `most_waiting` are refused at once. The server around it is src/serve/batching_server.py.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path

import numpy

from bootcamp.serving.instance import Died, Instance
from bootcamp.serving.protocol import Refused

PAUSE_SECONDS = 1.0  # between two looks at an idle instance, and two starts of one that keeps dying


@dataclass(eq=False)  # two requests with the same ids differ
class Waiting:
    """A request in the queue: its ids (batch, length), and a future for its answer."""

    ids: numpy.ndarray
    answer: asyncio.Future
    since: float  # by time.monotonic()


class Batcher:
    """Instances of one model behind one queue.

    counts: batches, samples in them, restarts of instances, and requests that were lost with an
    instance that died, or too_many for the queue.
    """

    def __init__(self, max_batch: int, delay: float, most_waiting: int):
        self.max_batch, self.delay, self.most_waiting = max_batch, delay, most_waiting
        self.queue: list[Waiting] = []
        self.arrived = asyncio.Event()
        self.counts = dict.fromkeys(("batches", "samples", "restarts", "lost", "too_many"), 0)
        self.instances: list[Instance] = []
        self.turn, self.loading = asyncio.Lock(), asyncio.Lock()
        self.tasks: set[asyncio.Task] = set()

    @property
    def ready(self) -> bool:
        return any(one.alive for one in self.instances)

    async def load(self, path: Path, instances: int) -> None:
        """Start instances of this file, and let them replace those before. No request is lost.

        Raises BadModel for a file that can't be loaded; nothing changes then. It is finished even
        if the client that asks for it goes; several files are loaded one after another.
        """
        await asyncio.shield(self._begin(self._load(path, instances)))

    async def _load(self, path: Path, instances: int) -> None:
        async with self.loading:
            new = [Instance(path) for _ in range(instances)]
            starts = await asyncio.gather(*(one.start() for one in new), return_exceptions=True)
            if errors := [error for error in starts if error]:
                await asyncio.gather(*(one.stop() for one in new))
                raise errors[0]
            self.serve_with(new)

    def serve_with(self, instances: list[Instance]) -> None:
        """Let these instances answer; those before end when they have answered."""
        self.instances = instances
        self.arrived.set()  # wakes one that waits for a request
        for one in instances:
            self._begin(self._work(one))

    async def stop(self) -> None:
        """End all instances when they have answered."""
        self.serve_with([])
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _begin(self, work: Coroutine) -> asyncio.Task:
        task = asyncio.create_task(work)
        self.tasks.add(task)  # asyncio itself keeps no task alive
        task.add_done_callback(self.tasks.discard)
        return task

    async def __call__(self, ids: numpy.ndarray) -> numpy.ndarray:
        """Return the scores of ids when their batch is done. Raises Refused (503 or 500)."""
        if len(self.queue) >= self.most_waiting:
            self.counts["too_many"] += 1
            raise Refused(503, f"{self.most_waiting} requests wait already: come back later")
        waiting = Waiting(ids, asyncio.get_running_loop().create_future(), time.monotonic())
        self.queue.append(waiting)
        self.arrived.set()
        try:
            return await waiting.answer
        finally:
            if waiting in self.queue:  # its client has gone
                self.queue.remove(waiting)

    async def _work(self, instance: Instance) -> None:
        """Give an instance batch after batch, and restart it if it dies, until it is replaced.

        Only one instance at a time takes requests out of the queue, so that they meet in its batch.
        """
        while instance in self.instances:
            async with self.turn:
                if not self.queue and instance in self.instances:
                    await self._wait_for_arrival(PAUSE_SECONDS)  # it can die when nobody asks
                batch = await self._gather()
            if batch and instance in self.instances and instance.alive:
                await self._answer(instance, batch)
            else:  # it died or was replaced meanwhile
                self.queue[:0] = batch
            if instance in self.instances and not instance.alive:
                self.counts["restarts"] += 1
                try:
                    await instance.start()
                except Exception as error:  # whatever it is: try again
                    logging.warning("an instance can't be restarted: %s", error)
                    await asyncio.sleep(PAUSE_SECONDS)
        await instance.stop()

    async def _wait_for_arrival(self, seconds: float) -> bool:
        """Return True when a request arrives, False if none does within these seconds."""
        self.arrived.clear()
        try:
            async with asyncio.timeout(seconds):
                return await self.arrived.wait()
        except TimeoutError:
            return False

    async def _gather(self) -> list[Waiting]:
        """Collect a batch: the request that has waited longest, and those that fit to it."""
        batch: list[Waiting] = []
        while (room := self.max_batch - sum(len(one.ids) for one in batch)) > 0:
            if found := self._find(batch, room):
                self.queue.remove(found)
                batch.append(found)
                continue
            if not batch or self.queue:  # what waits there does not fit: it is next
                break
            if not await self._wait_for_arrival(batch[0].since + self.delay - time.monotonic()):
                break
        return batch

    def _find(self, batch: list[Waiting], room: int) -> Waiting | None:
        """Find the first request that fits to a batch: one tensor holds requests of one length."""
        length = batch[0].ids.shape[1] if batch else None
        for waiting in self.queue:
            if not batch or (waiting.ids.shape[1] == length and len(waiting.ids) <= room):
                return waiting
        return None

    async def _answer(self, instance: Instance, batch: list[Waiting]) -> None:
        try:
            scores = await instance.predict(numpy.concatenate([one.ids for one in batch]))
            ends = numpy.cumsum([len(one.ids) for one in batch])
            answers = numpy.split(scores, ends[:-1])
            self.counts["batches"] += 1
            self.counts["samples"] += len(scores)
        except Died:
            self.counts["lost"] += len(batch)
            died = Refused(503, "the process that had this request died: send it again")
            answers = [died] * len(batch)
        except Exception as error:  # BadModel, or unexpected: the next batch may be well
            answers = [Refused(500, f"the model failed: {error}")] * len(batch)
        for one, answer in zip(batch, answers, strict=True):
            if one.answer.done():  # its client has gone
                continue
            if isinstance(answer, Refused):
                one.answer.set_exception(answer)
            else:
                one.answer.set_result(answer)
