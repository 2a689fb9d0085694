"""Dynamic batching: requests that wait are answered together.

The idea is Clipper's (Crankshaw et al., NSDI 2017), and the words are those of Triton's dynamic
batcher: a batch is full at `max_batch` samples, its first request waits at most `delay` seconds for
others, and requests beyond a queue of `most_waiting` are refused at once.
"""

import asyncio
import collections
import contextlib
import logging
import os
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path

import numpy

from bootcamp.serving.instance import BadModel, Died, Instance
from bootcamp.serving.protocol import Refused

PAUSE_SECONDS = 1.0  # between two looks at an idle instance, and two starts of one that keeps dying


@dataclass(eq=False)  # each is itself, whatever it asks
class Waiting:
    """A request in the queue: its ids (batch, length), and where its answer goes."""

    ids: numpy.ndarray
    answer: asyncio.Future
    since: float  # by the event loop's clock

    def fits(self, other: "Waiting") -> bool:
        """Whether both make one tensor: as in Triton, only requests of equal length do."""
        return self.ids.shape[1] == other.ids.shape[1]


@dataclass
class Counts:
    """What a server has done. samples / batches is the mean size of a batch."""

    batches: int = 0
    samples: int = 0
    lost: int = 0  # requests, with an instance that died
    too_many: int = 0  # refused, because the queue was full
    restarts: int = 0


class Batcher:
    """Instances of one model behind one queue."""

    def __init__(self, max_batch: int, delay: float, most_waiting: int):
        self.max_batch, self.delay, self.most_waiting = max_batch, delay, most_waiting
        self.queue: collections.deque[Waiting] = collections.deque()
        self.arrived = asyncio.Event()
        self.counts = Counts()
        self.instances: list[Instance] = []
        self.turn, self.loading = asyncio.Lock(), asyncio.Lock()
        self.tasks: set[asyncio.Task] = set()

    @property
    def ready(self) -> bool:
        """Whether an instance is there to answer."""
        return any(one.alive for one in self.instances)

    async def load(self, path: Path, instances: int) -> None:
        """Serve this file from now on: start its instances, then let go of those before.

        A file that can't be loaded changes nothing: raises BadModel. No request is lost. It is
        done, one file after another, even if the client that asks for it goes.
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
        """Let these instances answer; those before them end when they have answered."""
        self.instances = instances
        self.arrived.set()  # wakes one that waits for a request
        for one in instances:
            self._begin(self._work(one)).add_done_callback(_end_if_it_failed)

    async def stop(self) -> None:
        """End all instances; those at work answer first."""
        self.serve_with([])
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _begin(self, work: Coroutine) -> asyncio.Task:
        task = asyncio.create_task(work)
        self.tasks.add(task)  # asyncio itself keeps no task alive
        task.add_done_callback(self.tasks.discard)
        return task

    async def __call__(self, ids: numpy.ndarray) -> numpy.ndarray:
        """The scores of ids, once it is their turn. Raises Refused with status 503 or 500."""
        if len(self.queue) >= self.most_waiting:
            self.counts.too_many += 1
            raise Refused(503, f"{self.most_waiting} requests wait already: come back later")
        loop = asyncio.get_running_loop()
        waiting = Waiting(ids, loop.create_future(), loop.time())
        self.queue.append(waiting)
        self.arrived.set()
        try:
            return await waiting.answer
        finally:
            if waiting in self.queue:  # its client has gone
                self.queue.remove(waiting)

    async def _work(self, instance: Instance) -> None:
        """Give an instance batch after batch, and start it again if it dies, until it is replaced.

        One instance at a time takes requests out of the queue, so that they meet in its batch.
        """
        while instance in self.instances:
            async with self.turn:
                await self._wait_for_a_request(instance)
                batch = await self._gather()
            if batch and instance in self.instances and instance.alive:
                await self._answer(instance, batch)
            else:  # it died or was replaced meanwhile
                self.queue.extendleft(reversed(batch))
            if instance in self.instances and not instance.alive:
                self.counts.restarts += 1
                try:
                    await instance.start()
                except (BadModel, OSError):
                    await asyncio.sleep(PAUSE_SECONDS)
        await instance.stop()

    async def _wait_for_a_request(self, instance: Instance) -> None:
        """Return after a while without one too: an instance can die when nobody asks."""
        self.arrived.clear()
        if not self.queue and instance in self.instances:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_SECONDS):
                    await self.arrived.wait()

    async def _gather(self) -> list[Waiting]:
        """The next batch: the request that has waited longest, and those that fit to it."""
        batch = [first] if (first := self._next([])) else []
        while batch and sum(len(one.ids) for one in batch) < self.max_batch:
            if more := self._next(batch):
                batch.append(more)
                continue
            if self.queue:  # others wait that do not fit: they are next
                break
            self.arrived.clear()
            try:
                async with asyncio.timeout_at(first.since + self.delay):
                    await self.arrived.wait()
            except TimeoutError:
                break
        return batch

    def _next(self, batch: list[Waiting]) -> Waiting | None:
        """Take the first request that fits to a batch out of the queue; None if there is none.

        Those that nobody waits for any more, since their client has gone, are dropped.
        """
        room = self.max_batch - sum(len(one.ids) for one in batch)
        for waiting in list(self.queue):
            if waiting.answer.done():
                self.queue.remove(waiting)
            elif not batch or (waiting.fits(batch[0]) and len(waiting.ids) <= room):
                self.queue.remove(waiting)
                return waiting
        return None

    async def _answer(self, instance: Instance, batch: list[Waiting]) -> None:
        try:
            scores = await instance.predict(numpy.concatenate([one.ids for one in batch]))
        except Died:
            self.counts.lost += len(batch)
            died = Refused(503, "the process that had this request died: send it again")
            answers = [died] * len(batch)
        except Exception as error:  # BadModel, and what nobody expected: the next batch is well
            answers = [Refused(500, f"the model failed: {error}")] * len(batch)
        else:
            self.counts.batches += 1
            self.counts.samples += len(scores)
            answers = numpy.split(scores, numpy.cumsum([len(one.ids) for one in batch])[:-1])
        for one, answer in zip(batch, answers, strict=True):
            if one.answer.done():  # its client has gone
                continue
            if isinstance(answer, Refused):
                one.answer.set_exception(answer)
            else:
                one.answer.set_result(answer)


def _end_if_it_failed(task: asyncio.Task) -> None:
    """Without its instances, better no server than a deaf one."""
    if not task.cancelled() and task.exception():
        logging.error("the server ends", exc_info=task.exception())
        os.kill(os.getpid(), signal.SIGTERM)
