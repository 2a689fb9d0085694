"""Load a server with requests in a closed or an open loop, and check every answer.

In a closed loop each client sends its next request when it has the answer to the last. A server
that pauses stops the clients too, so hardly any request meets the pause: coordinated omission (G.
Tene, "How NOT to Measure Latency", 2013). In an open loop requests are sent when they are due, and
latency counts from then. The client has a thread and an event loop of its own, for notebooks.
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

from bootcamp.launcher.progress import make_counter
from bootcamp.serving import protocol
from bootcamp.serving.artifacts import TOLERANCE, Predict, largest_difference

MOST_CONNECTIONS = 512
TIMEOUT = aiohttp.ClientTimeout(total=30)  # of a request
LOOK_SECONDS = 0.2  # between two looks at how far a load is
NO_ANSWER = 0  # in place of a status: the connection broke, or nothing came in time


@dataclass(frozen=True)
class CheckedRequest:
    """A request's ids and the right scores; several where versions of the model take turns."""

    ids: numpy.ndarray
    right: list[numpy.ndarray]

    def is_answered_by(self, text: bytes) -> bool:
        """Whether an answer has the right scores."""
        try:
            found = protocol.read_scores(json.loads(text))
        except (ValueError, KeyError, TypeError, IndexError):  # not an answer of the protocol
            return False
        return any(largest_difference(found, scores) <= TOLERANCE for scores in self.right)


def make_requests(
    predict: Predict, count: int, length: int, batch: int = 1, or_else: Predict | None = None
) -> list[CheckedRequest]:
    """Make requests of `batch` x `length` random bytes, to be answered as `predict` does.

    or_else: another version of the model, whose scores are right too.
    """
    draw = numpy.random.default_rng(seed=0)
    ids = [draw.integers(0, protocol.VOCABULARY, (batch, length)) for _ in range(count)]
    models = [predict, or_else] if or_else else [predict]
    return [CheckedRequest(one, [model(one) for model in models]) for one in ids]


@dataclass
class Load:
    """The answers to a load, counted.

    statuses: requests by HTTP status or NO_ANSWER. wrong: answers with status 200 and other scores.
    latencies: of right answers, in seconds. started: when these requests were sent.
    """

    seconds: float = 0.0
    statuses: Counter = field(default_factory=Counter)
    wrong: int = 0
    latencies: list[float] = field(default_factory=list)
    started: list[float] = field(repr=False, default_factory=list)

    @property
    def per_second(self) -> float:
        """Right answers per second."""
        return len(self.latencies) / self.seconds

    def percentile(self, percent: float) -> float:
        """Return the latency below which this percentage lies; NaN without an answer."""
        return float(numpy.percentile(self.latencies, percent)) if self.latencies else math.nan

    @property
    def mean(self) -> float:
        return float(numpy.mean(self.latencies)) if self.latencies else math.nan

    @property
    def sent(self) -> int:
        return self.statuses.total()

    @property
    def failed(self) -> int:
        """Number of requests without a right answer."""
        return self.sent - len(self.latencies)

    def row(self) -> dict:
        """Return a table's row: throughput, latency, requests that failed."""
        row = {"answers/s": self.per_second}
        row |= {f"p{percent}, ms": 1e3 * self.percentile(percent) for percent in (50, 95, 99)}
        row |= {"mean, ms": 1e3 * self.mean}
        return row | {"refused": self.statuses[503], "other": self.failed - self.statuses[503]}


@functools.cache
def _start_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


class _Loader:
    """Sends requests over kept connections, in turn, and counts the answers.

    at: {number of a request: function to call in a thread when it is sent}.
    """

    def __init__(self, url: str, requests: list[CheckedRequest], at: dict[int, Callable] | None):
        self.url, self.requests, self.at = url + protocol.INFER, requests, at or {}
        self.bodies = [json.dumps(protocol.make_request(one.ids)).encode() for one in requests]
        self.found, self.number = Load(), 0
        self.acts: list[asyncio.Future] = []

    @property
    def passed(self) -> float:
        """Seconds since the load began."""
        return time.perf_counter() - self.began

    async def send(self, due: float | None = None) -> None:
        """Send the next request; its latency counts from when it was `due`, by default now."""
        number, self.number = self.number, self.number + 1
        if act := self.at.get(number):
            self.acts.append(asyncio.get_running_loop().run_in_executor(None, act))
        which = number % len(self.requests)
        began = self.passed
        status, text = NO_ANSWER, b""
        with contextlib.suppress(aiohttp.ClientError, OSError):  # which a TimeoutError is too
            async with self.session.post(self.url, data=self.bodies[which]) as response:
                text = await response.read()
                status = response.status
        ended = self.passed
        self.found.statuses[status] += 1
        if status == 200 and self.requests[which].is_answered_by(text):
            self.found.latencies.append(ended - (began if due is None else due))
            self.found.started.append(began)
        elif status == 200:
            self.found.wrong += 1

    async def client(self, count: int, seconds: float) -> None:
        """Send one request after the other, until all are sent and what `at` calls has returned."""
        while self.number < count or self.passed < seconds or not all(a.done() for a in self.acts):
            await self.send()

    async def send_when_due(self, per_second: float, seconds: float) -> None:
        """Send requests at random times, whatever has become of those before."""
        draw, due = random.Random(0), 0.0
        async with asyncio.TaskGroup() as sent:
            while (due := due + draw.expovariate(per_second)) < seconds:
                await asyncio.sleep(due - self.passed)
                sent.create_task(self.send(due))

    async def run(self, *senders: Coroutine) -> Load:
        """Send requests by these. Raises what `at` does; RuntimeError if it never ran."""
        connector = aiohttp.TCPConnector(limit=MOST_CONNECTIONS)
        async with aiohttp.ClientSession(connector=connector, timeout=TIMEOUT) as self.session:
            self.began = time.perf_counter()
            await asyncio.gather(*senders)
            await asyncio.gather(*self.acts)
            self.found.seconds = self.passed
        if missed := [number for number in self.at if number >= self.number]:
            raise RuntimeError(f"request {missed[0]} was never sent: {self.number} were")
        return self.found

    def run_in_thread(self, what: str, *senders: Coroutine) -> Load:
        """Run in the event loop of another thread, and show how far it is; an interrupt ends it."""
        show = make_counter("load", what)
        running = asyncio.run_coroutine_threadsafe(self.run(*senders), _start_loop())
        try:
            while not concurrent.futures.wait([running], LOOK_SECONDS).done:
                show(f"{self.found.sent:,} answers")
            return running.result()
        finally:
            running.cancel()
            show("")


def run_closed_loop(
    url: str,
    requests: list[CheckedRequest],
    clients: int,
    count: int = 0,
    seconds: float = 0.0,
    at: dict[int, Callable] | None = None,
) -> Load:
    """Load a server with clients that each wait for an answer before they send again.

    count, seconds: give one of them, how many requests or how long. at: {number of a request:
    function to call in a thread when it is sent}; the load goes on until these have returned.
    """
    loader = _Loader(url, requests, at)
    senders = [loader.client(count, seconds) for _ in range(clients)]
    return loader.run_in_thread(f"{clients} clients", *senders)


def run_open_loop(
    url: str,
    requests: list[CheckedRequest],
    per_second: float,
    seconds: float,
    at: dict[int, Callable] | None = None,
) -> Load:
    """Load a server with requests that are due at random times, `per_second` on average.

    Arrivals are a Poisson process, as of many people, always the same. at: as in run_closed_loop.
    """
    loader = _Loader(url, requests, at)
    sender = loader.send_when_due(per_second, seconds)
    return loader.run_in_thread(f"{per_second:,.0f} requests/s", sender)
