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
from bootcamp.serving.load import in_a_thread
from bootcamp.serving.protocol import Limits


@dataclass(frozen=True)
class Request:
    """An HTTP request. path: None is where requests for the model go.

    body: as it is sent, or a function of a good request's tensor, which may change it, and of the
    server's limits; what that returns, if anything, is sent in place of the request.
    """

    body: bytes | Callable = lambda tensor, limits: None
    path: str | None = None
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()

    def content(self, draw: random.Random, limits: Limits) -> bytes:
        """The body of one such request."""
        if isinstance(self.body, bytes):
            return self.body
        shape = draw.randint(1, limits.batch), draw.randint(1, limits.context)
        values = [draw.randrange(protocol.VOCABULARY) for _ in range(shape[0] * shape[1])]
        asked = protocol.request(numpy.array(values).reshape(shape))
        instead = self.body(asked["inputs"][0], limits)
        return json.dumps(asked).encode() if instead is None else instead


def _changed(**fields) -> Request:
    """A good request whose tensor has other fields."""
    return Request(lambda tensor, limits: tensor.update(fields))


def _with_value(value) -> Request:
    """A good request in which the last number is something else."""
    return Request(lambda tensor, limits: tensor["data"].__setitem__(-1, value))


def _of_shape(shape: Callable[[Limits], tuple[int, ...]]) -> Request:
    def body(tensor: dict, limits: Limits) -> bytes:
        return json.dumps(protocol.request(numpy.zeros(shape(limits), int))).encode()

    return Request(body)


# what is wrong -> the request
KINDS = {
    "no body": Request(b""),
    "JSON that is cut off": Request(lambda tensor, limits: json.dumps(tensor).encode()[:-1]),
    "not UTF-8": Request(b'{"inputs": "\xff\xfe"}'),
    "a list in place of an object": Request(b"[1, 2, 3]"),
    "nested 100,000 deep": Request(b"[" * 100_000),
    "no inputs": Request(b"{}"),
    "inputs empty": Request(b'{"inputs": []}'),
    "another input": _changed(name="tokens"),
    "another datatype": _changed(datatype="FP32"),
    "no shape": Request(lambda tensor, limits: tensor.pop("shape") and None),
    "more data than shape says": Request(lambda tensor, limits: tensor["data"].append(0)),
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
    "GET": Request(method="GET"),
    "a model that is not there": Request(path=protocol.path("gpt-5")),
    "too large": Request(b" " * (protocol.LARGEST_BODY + 1)),
    "not compressed, but says so": Request(headers=(("Content-Encoding", "gzip"),)),
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
                content = KINDS[kind].content(draw, limits)
                place = url + (KINDS[kind].path or protocol.path(name))
                status, said[kind] = await _answer(session, place, KINDS[kind], content)
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


async def _answer(session, place: str, request: Request, content: bytes) -> tuple[int, str]:
    how = {"data": content, "headers": dict(request.headers)}
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
    refusals = {str(status) for status in range(400, 500)}
    return [row for row in rows if not (row["answer"] and row["status"] in refusals)]
