"""A client that loads a server, counts what comes back and checks every answer.

    found = load.closed(server.url, asked, clients=8, requests=500)
    found = load.open(server.url, asked, per_second=200, seconds=5)

Closed loop: each of so many clients sends its next request when it has the answer to the last. A
server that pauses stops the clients too, so hardly any request meets the pause: coordinated
omission (G. Tene, "How NOT to Measure Latency", 2013). Open loop: requests are sent when they are
due, whether or not others have been answered, and latency counts from when a request was due.

The client has a thread and an event loop of its own, so a notebook's cell can call it.
"""

import asyncio
import concurrent.futures
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

import aiohttp
import numpy

from bootcamp.launcher.progress import counter
from bootcamp.serving import protocol
from bootcamp.serving.faithful import TOLERANCE

MOST_CONNECTIONS = 512
LOOK_SECONDS = 0.2  # between two looks at how far a load is
NO_ANSWER = 0  # in place of a status: the connection broke, or nothing came in time


@dataclass(frozen=True)
class Asked:
    """A request, and the scores that are right: what the eager model gives.

    or_else: while a version is replaced, what the other version gives.
    """

    ids: numpy.ndarray
    scores: numpy.ndarray
    or_else: numpy.ndarray | None = None

    def answered_by(self, text: bytes) -> bool:
        """Whether an answer has these scores."""
        try:
            found = protocol.scores_of(json.loads(text))
        except (ValueError, KeyError, TypeError, IndexError):  # no answer in the protocol's words
            return False
        return any(apart(found, right) <= TOLERANCE for right in (self.scores, self.or_else))


def apart(found: numpy.ndarray, right: numpy.ndarray | None) -> float:
    """The largest difference of a score; infinity for another shape."""
    if right is None or found.shape != right.shape:
        return float("inf")
    return float(numpy.abs(found - right).max())


def ask(
    predict, count: int, length: int, batch: int = 1, seed: int = 0, or_else=None
) -> list[Asked]:
    """So many different requests of `batch` x `length` random bytes, with predict's scores."""
    draw = numpy.random.default_rng(seed)
    ids = [draw.integers(0, protocol.VOCABULARY, (batch, length)) for _ in range(count)]
    return [Asked(one, predict(one), or_else and or_else(one)) for one in ids]


@dataclass
class Load:
    """What came of a load.

    seconds: how long it went on. statuses: HTTP status -> requests; 0 stands for a broken
    connection. wrong: answers with status 200 that were not the right ones. latencies: of right
    answers, in seconds; started: when these requests were sent.
    """

    seconds: float
    statuses: Counter
    wrong: int
    latencies: list[float]
    started: list[float] = field(repr=False, default_factory=list)

    @property
    def per_second(self) -> float:
        """Right answers a second."""
        return len(self.latencies) / self.seconds

    def percentile(self, percent: float) -> float:
        """The latency that so many percent of the requests stay below; NaN without an answer."""
        return float(numpy.percentile(self.latencies, percent)) if self.latencies else float("nan")

    @property
    def mean(self) -> float:
        return float(numpy.mean(self.latencies)) if self.latencies else float("nan")

    @property
    def sent(self) -> int:
        """Requests, answered or not."""
        return self.statuses.total()

    @property
    def failed(self) -> int:
        """Requests that were not answered rightly."""
        return self.sent - len(self.latencies)

    def row(self) -> dict:
        """The figures that a table shows."""
        row = {"answers/s": self.per_second}
        row |= {f"p{percent}, ms": 1e3 * self.percentile(percent) for percent in (50, 95, 99)}
        row |= {"mean, ms": 1e3 * self.mean}
        return row | {"refused": self.statuses[503], "other": self.failed - self.statuses[503]}


class _Loader:
    """Sends requests over kept connections, and notes what comes back."""

    def __init__(self, url: str, asked: list[Asked], name: str, timeout: float, at: dict):
        self.url, self.asked = url + protocol.path(name), asked
        self.bodies = [json.dumps(protocol.request(one.ids)).encode() for one in asked]
        self.timeout = aiohttp.ClientTimeout(total=timeout)
        self.found = Load(0.0, Counter(), 0, [])
        self.number, self.at = 0, at
        self.acts: list[asyncio.Future] = []

    async def send(self, session: aiohttp.ClientSession, due: float | None = None) -> None:
        """Send the next request. due: from when its latency counts; None is from now."""
        number, self.number = self.number, self.number + 1
        if act := self.at.get(number):
            self.acts.append(asyncio.get_running_loop().run_in_executor(None, act))
        one, body = self.asked[number % len(self.asked)], self.bodies[number % len(self.asked)]
        began = time.perf_counter()
        status, text = NO_ANSWER, b""
        try:
            async with session.post(self.url, data=body, timeout=self.timeout) as response:
                text = await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass
        ended = time.perf_counter()
        self.found.statuses[status] += 1
        if status == 200:
            if one.answered_by(text):
                self.found.latencies.append(ended - (began if due is None else due))
                self.found.started.append(began)
            else:
                self.found.wrong += 1

    @property
    def acting(self) -> bool:
        """Whether something that `at` has begun is still being done."""
        return not all(act.done() for act in self.acts)

    async def all_done(self) -> None:
        """Wait for what `at` has begun. Raises what it raised, and if there was no such request."""
        await asyncio.gather(*self.acts)
        if missed := [number for number in self.at if number >= self.number]:
            raise RuntimeError(f"request {missed[0]} was never sent: {self.number} were")

    def session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=MOST_CONNECTIONS))

    def done(self, began: float) -> Load:
        self.found.seconds = time.perf_counter() - began
        return self.found


def closed(
    url: str,
    asked: list[Asked],
    clients: int,
    requests: int = 0,
    seconds: float = 0.0,
    name: str = "gpt",
    timeout: float = 30.0,
    at: dict[int, Callable] | None = None,
) -> Load:
    """Load a server with so many clients, each waiting for its answer before it asks again.

    requests, seconds: when to end; one of the two. timeout: of a request, in seconds.
    at: number of a request -> what to do when it is sent, in a thread of its own. The load goes on
    until that has been done; what it raises is raised here.
    """
    if bool(requests) == bool(seconds):
        raise ValueError(f"requests={requests}, seconds={seconds}: expected one of the two")
    loader = _Loader(url, asked, name, timeout, at or {})

    async def run() -> Load:
        began = time.perf_counter()

        async def client(session) -> None:
            while (
                loader.number < requests or time.perf_counter() - began < seconds or loader.acting
            ):
                await loader.send(session)

        async with loader.session() as session:
            await asyncio.gather(*(client(session) for _ in range(clients)))
            await loader.all_done()
            return loader.done(began)

    return _shown(run(), loader, f"{clients} clients")


def open(
    url: str,
    asked: list[Asked],
    per_second: float,
    seconds: float,
    name: str = "gpt",
    timeout: float = 10.0,
    seed: int = 0,
    at: dict[int, Callable] | None = None,
) -> Load:
    """Load a server with requests that are due at random times, so many a second on average.

    The times between them are exponential, as of many people who know nothing of each other: a
    Poisson process, the same for each seed.
    """
    loader = _Loader(url, asked, name, timeout, at or {})
    draw, due = random.Random(seed), []
    while not due or due[-1] < seconds:
        due.append((due[-1] if due else 0.0) + draw.expovariate(per_second))

    async def run() -> Load:
        async with loader.session() as session, asyncio.TaskGroup() as sent:
            began = time.perf_counter()
            for when in due[:-1]:
                await asyncio.sleep(began + when - time.perf_counter())
                sent.create_task(loader.send(session, began + when))
        await loader.all_done()
        return loader.done(began)

    return _shown(run(), loader, f"{per_second:,.0f} requests/s")


def _shown(work, loader: _Loader, what: str) -> Load:
    """Run the load, and show how many answers there are."""
    show = counter("load", what)
    try:
        return in_a_thread(work, lambda: show(f"{loader.found.sent:,} answers"))
    finally:
        show("")


def in_a_thread(work: Coroutine, meanwhile: Callable[[], None] = lambda: None):
    """Run a coroutine in a loop and a thread of its own; what it returns or raises.

    meanwhile: called every now and then, to show how far it is. An interrupt ends the coroutine.
    """
    result, running = concurrent.futures.Future(), []

    async def keep() -> None:
        running.append((asyncio.get_running_loop(), asyncio.current_task()))
        try:
            result.set_result(await work)
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=lambda: asyncio.run(keep()), daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(LOOK_SECONDS)
            meanwhile()
    except BaseException:
        for loop, task in running:
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
    return result.result()
