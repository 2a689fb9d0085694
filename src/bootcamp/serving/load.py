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
import contextlib
import functools
import json
import math
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
from bootcamp.serving.artifacts import TOLERANCE, distance

MOST_CONNECTIONS = 512
TIMEOUT = aiohttp.ClientTimeout(total=30)  # of a request
LOOK_SECONDS = 0.2  # between two looks at how far a load is
NO_ANSWER = 0  # in place of a status: the connection broke, or nothing came in time


@dataclass(frozen=True)
class Asked:
    """A request, and the right scores; or_else: another version's, which may be the one asked."""

    ids: numpy.ndarray
    scores: numpy.ndarray
    or_else: numpy.ndarray | None = None

    def answered_by(self, text: bytes) -> bool:
        """Whether an answer has these scores."""
        try:
            found = protocol.scores_of(json.loads(text))
        except (ValueError, KeyError, TypeError, IndexError):  # no answer in the protocol's words
            return False
        right = [self.scores] if self.or_else is None else [self.scores, self.or_else]
        return any(distance(found, scores) <= TOLERANCE for scores in right)


def ask(predict, count: int, length: int, batch: int = 1, or_else=None) -> list[Asked]:
    """Make so many different requests of `batch` x `length` random bytes, with predict's scores."""
    draw = numpy.random.default_rng(seed=0)
    ids = [draw.integers(0, protocol.VOCABULARY, (batch, length)) for _ in range(count)]
    return [Asked(one, predict(one), or_else and or_else(one)) for one in ids]


@dataclass
class Load:
    """What came of a load.

    statuses: HTTP status, or NO_ANSWER -> requests. wrong: answers with status 200 that were not
    the right ones. latencies: of right answers, in seconds; started: when these requests were sent.
    """

    seconds: float = 0.0
    statuses: Counter = field(default_factory=Counter)
    wrong: int = 0
    latencies: list[float] = field(default_factory=list)
    started: list[float] = field(repr=False, default_factory=list)

    @property
    def per_second(self) -> float:
        """Right answers a second."""
        return len(self.latencies) / self.seconds

    def percentile(self, percent: float) -> float:
        """The latency that so many percent of the requests stay below; NaN without an answer."""
        return float(numpy.percentile(self.latencies, percent)) if self.latencies else math.nan

    @property
    def mean(self) -> float:
        return float(numpy.mean(self.latencies)) if self.latencies else math.nan

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
    """Sends requests over kept connections, and notes what comes back.

    at: number of a request -> what to do when it is sent, in a thread of its own.
    """

    def __init__(self, url: str, asked: list[Asked], at: dict[int, Callable] | None):
        self.url, self.asked, self.at = url + protocol.path(), asked, at or {}
        self.bodies = [json.dumps(protocol.request(one.ids)).encode() for one in asked]
        self.found, self.number = Load(), 0
        self.acts: list[asyncio.Future] = []

    @property
    def passed(self) -> float:
        """Seconds since the load began."""
        return time.perf_counter() - self.began

    @property
    def acting(self) -> bool:
        """Whether something that `at` has begun is still being done."""
        return not all(act.done() for act in self.acts)

    async def send(self, due: float | None = None) -> None:
        """Send the next request; its latency counts from when it was `due`, by default now."""
        number, self.number = self.number, self.number + 1
        if act := self.at.get(number):
            self.acts.append(asyncio.get_running_loop().run_in_executor(None, act))
        which = number % len(self.asked)
        began = self.passed
        status, text = NO_ANSWER, b""
        with contextlib.suppress(aiohttp.ClientError, OSError):  # which a TimeoutError is too
            async with self.session.post(self.url, data=self.bodies[which]) as response:
                text = await response.read()
                status = response.status
        ended = self.passed
        self.found.statuses[status] += 1
        if status == 200 and self.asked[which].answered_by(text):
            self.found.latencies.append(ended - (began if due is None else due))
            self.found.started.append(began)
        elif status == 200:
            self.found.wrong += 1

    async def run(self, arrivals: Callable[["_Loader"], Coroutine]) -> Load:
        """Send requests as `arrivals` says. Raises what `at` raises, or if it was never done."""
        connector = aiohttp.TCPConnector(limit=MOST_CONNECTIONS)
        async with aiohttp.ClientSession(connector=connector, timeout=TIMEOUT) as self.session:
            self.began = time.perf_counter()
            await arrivals(self)
            await asyncio.gather(*self.acts)
            self.found.seconds = self.passed
        if missed := [number for number in self.at if number >= self.number]:
            raise RuntimeError(f"request {missed[0]} was never sent: {self.number} were")
        return self.found

    def run_and_show(self, what: str, arrivals: Callable[["_Loader"], Coroutine]) -> Load:
        show = counter("load", what)
        try:
            return in_a_thread(self.run(arrivals), lambda: show(f"{self.found.sent:,} answers"))
        finally:
            show("")


def closed(
    url: str,
    asked: list[Asked],
    clients: int,
    requests: int = 0,
    seconds: float = 0.0,
    at: dict[int, Callable] | None = None,
) -> Load:
    """Load a server with so many clients, each waiting for its answer before it asks again.

    requests, seconds: when to end; one of the two. at: number of a request -> what to do when it is
    sent, in a thread of its own; the load goes on until that has been done.
    """

    async def client(loader: _Loader) -> None:
        while loader.number < requests or loader.passed < seconds or loader.acting:
            await loader.send()

    async def arrivals(loader: _Loader) -> None:
        await asyncio.gather(*(client(loader) for _ in range(clients)))

    return _Loader(url, asked, at).run_and_show(f"{clients} clients", arrivals)


def open(
    url: str,
    asked: list[Asked],
    per_second: float,
    seconds: float,
    at: dict[int, Callable] | None = None,
) -> Load:
    """Load a server with requests that are due at random times, so many a second on average.

    The times between them are exponential, as of many people who know nothing of each other: a
    Poisson process, the same each time. at: as of `closed`.
    """

    async def arrivals(loader: _Loader) -> None:
        draw, due = random.Random(0), 0.0
        async with asyncio.TaskGroup() as sent:
            while (due := due + draw.expovariate(per_second)) < seconds:
                await asyncio.sleep(due - loader.passed)
                sent.create_task(loader.send(due))

    return _Loader(url, asked, at).run_and_show(f"{per_second:,.0f} requests/s", arrivals)


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def in_a_thread(work: Coroutine, meanwhile: Callable[[], None] = lambda: None):
    """Run a coroutine in a loop and a thread of its own; returns or raises what it does.

    meanwhile: called every now and then, to show how far it is. An interrupt ends the coroutine.
    """
    running = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        while not concurrent.futures.wait([running], LOOK_SECONDS).done:
            meanwhile()
        return running.result()
    finally:
        running.cancel()
