"""Dynamic batching: requests that wait are answered together.

The idea is Clipper's (Crankshaw et al., NSDI 2017), and the words are those of Triton's dynamic
batcher: a batch is full at `max_batch` samples, its first request waits at most `delay` seconds for
others, and requests beyond a queue of `most_waiting` are refused at once.
"""

import asyncio
import collections
import contextlib
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy

from bootcamp.serving.instance import BadModel, Died, Instance
from bootcamp.serving.protocol import Refused

PAUSE_SECONDS = 1.0  # between two starts of an instance that keeps dying


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

    answered: int = 0
    batches: int = 0
    samples: int = 0
    lost: int = 0  # with an instance that died
    too_many: int = 0  # refused, because the queue was full
    restarts: int = 0


class Batcher:
    """Instances of one model behind one queue. `run` hands out batches for as long as it runs."""

    def __init__(self, max_batch: int, delay: float, most_waiting: int):
        self.max_batch, self.delay, self.most_waiting = max_batch, delay, most_waiting
        self.queue: collections.deque[Waiting] = collections.deque()
        self.arrived = asyncio.Event()
        self.counts = Counts()
        self.instances: set[Instance] = set()
        self.idle: asyncio.Queue[Instance] = asyncio.Queue()
        self.at_work: set[asyncio.Task] = set()
        self.loading = asyncio.Lock()

    async def load(self, path: Path, instances: int) -> None:
        """Serve this file from now on: start its instances, then let go of those before.

        A file that can't be loaded changes nothing. No request is lost. Whoever asks for it may go:
        it is done all the same, one file after another. Raises BadModel.
        """
        await asyncio.shield(self._begin(self._load(path, instances)))

    async def _load(self, path: Path, instances: int) -> None:
        async with self.loading:
            started = await asyncio.gather(
                *(Instance(path).start() for _ in range(instances)), return_exceptions=True
            )
            good = {one for one in started if isinstance(one, Instance)}
            if len(good) < instances:
                await asyncio.gather(*(one.stop() for one in good))
                raise next(one for one in started if not isinstance(one, Instance))
            await self._replace(good)

    async def stop(self) -> None:
        """End all instances; those at work answer first."""
        instances = self.instances
        await self._replace(set())
        await asyncio.gather(*self.at_work, return_exceptions=True)
        await asyncio.gather(*(one.stop() for one in instances))

    async def _replace(self, instances: set[Instance]) -> None:
        self.instances, idle = instances, []
        while not self.idle.empty():
            idle.append(self.idle.get_nowait())
        for one in instances:
            self.idle.put_nowait(one)
        await asyncio.gather(*(one.stop() for one in idle))

    @property
    def ready(self) -> bool:
        """Whether an instance is there to answer."""
        return any(one.alive for one in self.instances)

    def numbers(self) -> dict:
        """What has been counted, how many requests wait, and the instances' process ids."""
        pids = [one.pid for one in self.instances if one.alive]
        return {**asdict(self.counts), "waiting": len(self.queue), "pids": pids}

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

    async def run(self) -> None:
        """Give each instance that is free the next batch."""
        while True:
            await self._work()
            instance = await self._free()
            batch = await self._gather()
            if batch and instance in self.instances and instance.alive:
                self._begin(self._answer(instance, batch))
            else:  # nobody waits any more, or the instance died or was replaced meanwhile
                self.queue.extendleft(reversed(batch))
                self._begin(self._start_again(instance))

    def _begin(self, work) -> asyncio.Task:
        task = asyncio.create_task(work)
        self.at_work.add(task)  # asyncio itself keeps no task alive
        task.add_done_callback(self.at_work.discard)
        return task

    async def _work(self) -> None:
        """Wait for a request; start instances again that have died without one."""
        while not self.queue:
            self.arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_SECONDS):
                    await self.arrived.wait()
            for one in [self.idle.get_nowait() for _ in range(self.idle.qsize())]:
                if one.alive:
                    self.idle.put_nowait(one)
                else:
                    self._begin(self._start_again(one))

    async def _free(self) -> Instance:
        while not (instance := await self.idle.get()).alive:
            self._begin(self._start_again(instance))
        return instance

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
        """Answer a batch; an instance that dies over it is started again."""
        try:
            scores = await instance.predict(numpy.concatenate([one.ids for one in batch]))
        except Died:
            self.counts.lost += len(batch)
            _fail(batch, Refused(503, "the process that had this request died: send it again"))
            await self._start_again(instance)
            return
        except Exception as error:  # BadModel, and what nobody expected: the next batch is well
            _fail(batch, Refused(500, f"the model failed: {error}"))
        else:
            self.counts.batches += 1
            for one in batch:
                own, scores = scores[: len(one.ids)], scores[len(one.ids) :]
                self.counts.answered += 1
                self.counts.samples += len(own)
                if not one.answer.done():
                    one.answer.set_result(own)
        await self._release(instance)

    async def _release(self, instance: Instance) -> None:
        """Let an instance wait for its next batch, or go if it has been replaced."""
        if instance in self.instances:
            self.idle.put_nowait(instance)  # _free starts it again if it is dead
        else:
            await instance.stop()

    async def _start_again(self, instance: Instance) -> None:
        """Start an instance that has died; one that has been replaced only ends."""
        while instance in self.instances and not instance.alive:
            self.counts.restarts += 1
            try:
                await instance.start()
            except (BadModel, OSError):
                await asyncio.sleep(PAUSE_SECONDS)
        await self._release(instance)


def _fail(batch: list[Waiting], why: Refused) -> None:
    for one in batch:
        if not one.answer.done():
            one.answer.set_exception(why)
