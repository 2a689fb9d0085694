"""Requests that no server should answer, and what it says to each.

    rows = malformed.send(server.url, limits, count=1000)

Each kind is a mistake that clients make, or that somebody makes on purpose. A good server answers
with a status from 400 to 499 and a sentence, and goes on.
"""

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
import numpy

from bootcamp.serving import protocol
from bootcamp.serving.loop import in_a_thread
from bootcamp.serving.protocol import Limits


@dataclass(frozen=True)
class Request:
    """An HTTP request. path: None is where requests for the model go."""

    body: bytes
    path: str | None = None
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()


def _changed(**fields) -> Callable[[random.Random, Limits], Request]:
    """A good request whose tensor has other fields; None takes one out."""

    def make(draw: random.Random, limits: Limits) -> Request:
        asked = _good(draw, limits)
        tensor = asked["inputs"][0] | fields
        asked["inputs"][0] = {name: value for name, value in tensor.items() if value is not None}
        return Request(json.dumps(asked).encode())

    return make


def _with_value(value) -> Callable[[random.Random, Limits], Request]:
    """A good request in which one of the numbers, anywhere, is something else."""

    def make(draw: random.Random, limits: Limits) -> Request:
        asked = _good(draw, limits)
        data = asked["inputs"][0]["data"]
        data[draw.randrange(len(data))] = value
        return Request(json.dumps(asked).encode())

    return make


def _with_more_data(draw: random.Random, limits: Limits) -> Request:
    asked = _good(draw, limits)
    asked["inputs"][0]["data"].append(0)
    return Request(json.dumps(asked).encode())


def _of_shape(shape: Callable[[Limits], tuple[int, ...]]):
    def make(draw: random.Random, limits: Limits) -> Request:
        ids = numpy.zeros(shape(limits), int)
        return Request(json.dumps(protocol.request(ids)).encode())

    return make


def _good(draw: random.Random, limits: Limits) -> dict:
    shape = draw.randint(1, limits.batch), draw.randint(1, limits.context)
    values = [draw.randrange(protocol.VOCABULARY) for _ in range(shape[0] * shape[1])]
    return protocol.request(numpy.array(values).reshape(shape))


def _as_is(body: bytes, **how):
    return lambda draw, limits: Request(body, **how)


def _good_to(**how):
    return lambda draw, limits: Request(json.dumps(_good(draw, limits)).encode(), **how)


def _cut_off(draw: random.Random, limits: Limits) -> Request:
    text = json.dumps(_good(draw, limits)).encode()
    return Request(text[: draw.randrange(1, len(text))])


# what is wrong -> a function (random numbers, limits) -> request
KINDS: dict[str, Callable[[random.Random, Limits], Request]] = {
    "no body": _as_is(b""),
    "JSON that is cut off": _cut_off,
    "not UTF-8": _as_is(b'{"inputs": "\xff\xfe"}'),
    "a list in place of an object": _as_is(b"[1, 2, 3]"),
    "nested 100,000 deep": _as_is(b"[" * 100_000),
    "no inputs": _as_is(b"{}"),
    "inputs empty": _as_is(b'{"inputs": []}'),
    "another input": _changed(name="tokens"),
    "another datatype": _changed(datatype="FP32"),
    "no shape": _changed(shape=None),
    "more data than shape says": _with_more_data,
    "rows of other lengths": _changed(shape=[2, 3], data=[[1], [2, 3, 4, 5, 6]]),
    "a negative shape": _changed(shape=[-1, 8]),
    "three dimensions": _of_shape(lambda limits: (1, 1, 4)),
    "no sample": _of_shape(lambda limits: (0, 4)),
    "too many samples": _of_shape(lambda limits: (limits.batch + 1, 4)),
    "too long": _of_shape(lambda limits: (1, limits.context + 1)),
    "a byte of 256": _with_value(protocol.VOCABULARY),
    "a byte of -1": _with_value(-1),
    "a text as byte": _with_value("72"),
    "a fraction as byte": _with_value(0.5),
    "a number of 400 digits": _with_value(10**400),
    "GET": _good_to(method="GET"),
    "a model that is not there": _good_to(path=protocol.path("gpt-5")),
    "too large": _as_is(b" " * (protocol.LARGEST_BODY + 1)),
    "not compressed, but says so": _good_to(headers=(("Content-Encoding", "gzip"),)),
}


def send(url: str, limits: Limits, count: int, name: str = "gpt", seed: int = 0) -> list[dict]:
    """Send so many malformed requests, all kinds in turn; a row for each kind.

    A row has the kind, how many were sent, the statuses that came back, and the last sentence.
    Status 0 is a connection that the server closed without a word.
    """
    draw, kinds = random.Random(seed), list(KINDS)
    statuses, said = {kind: Counter() for kind in kinds}, dict.fromkeys(kinds, "")

    async def run() -> None:
        # a server may close the connection of a request that it can't read: each has its own
        how = {"connector": aiohttp.TCPConnector(force_close=True)}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(20), **how) as session:
            for number in range(count):
                kind = kinds[number % len(kinds)]
                request = KINDS[kind](draw, limits)
                status, said[kind] = await _answer(session, url, name, request)
                statuses[kind][status] += 1

    in_a_thread(run())
    return [
        {
            "what is wrong": kind,
            "sent": statuses[kind].total(),
            "status": ", ".join(map(str, sorted(statuses[kind]))),
            "answer": said[kind],
        }
        for kind in kinds
    ]


async def _answer(session, url: str, name: str, request: Request) -> tuple[int, str]:
    place = url + (request.path or protocol.path(name))
    how = {"data": request.body, "headers": dict(request.headers)}
    try:
        async with session.request(request.method, place, **how) as response:
            text = await response.text(errors="replace")
            status = response.status
    except (aiohttp.ClientError, TimeoutError) as error:
        return 0, type(error).__name__
    try:
        return status, json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        return status, text


def badly_answered(rows: list[dict]) -> list[dict]:
    """The rows whose requests were not all answered with one status from 400 to 499."""
    return [row for row in rows if not (row["answer"] and _is_refusal(row["status"]))]


def _is_refusal(status: str) -> bool:
    return status.isdecimal() and 400 <= int(status) <= 499
