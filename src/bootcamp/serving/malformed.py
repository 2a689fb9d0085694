"""Requests that no server should answer, and what it says to each.

    rows = malformed.send(server.url, limits, times=10)

Each kind is a mistake that clients make, or that somebody makes on purpose. A good server answers
with a status from 400 to 499 and a sentence, and goes on.
"""

import json
from typing import NamedTuple

import aiohttp
import numpy

from bootcamp.serving import protocol
from bootcamp.serving.load import TIMEOUT, in_a_thread
from bootcamp.serving.protocol import Limits

TENSOR = protocol.request(numpy.array([list(b"import")]))["inputs"][0]  # a good one
DATA = TENSOR["data"]


class Request(NamedTuple):
    """An HTTP request, by default to where the model is asked."""

    body: bytes
    path: str = protocol.path()
    method: str = "POST"
    headers: dict[str, str] = {}


def _json(content) -> Request:
    return Request(json.dumps(content).encode())


def _changed(**fields) -> Request:
    """A good request whose tensor has other fields."""
    return _json({"inputs": [TENSOR | fields]})


def _of_shape(*shape: int) -> Request:
    return _json(protocol.request(numpy.zeros(shape, int)))


def kinds(limits: Limits) -> dict[str, Request]:
    """Return what is wrong with a request -> the request."""
    good = _changed()
    return {
        "no body": Request(b""),
        "JSON that is cut off": Request(good.body[:-1]),
        "not UTF-8": Request(b'{"inputs": "\xff\xfe"}'),
        "a list in place of an object": _json([1, 2, 3]),
        "nested 100,000 deep": Request(b"[" * 100_000),
        "no inputs": _json({}),
        "inputs empty": _json({"inputs": []}),
        "another input": _changed(name="tokens"),
        "another datatype": _changed(datatype="FP32"),
        "no shape": _json({"inputs": [{k: v for k, v in TENSOR.items() if k != "shape"}]}),
        "more data than shape says": _changed(data=[*DATA, 0]),
        "rows of other lengths": _changed(shape=[2, 3], data=[[1], [2, 3, 4, 5, 6]]),
        "a negative shape": _changed(shape=[-1, 8]),
        "three dimensions": _of_shape(1, 1, 4),
        "no sample": _of_shape(0, 4),
        "too many samples": _of_shape(limits.batch + 1, 4),
        "too long": _of_shape(1, limits.context + 1),
        "a byte of 256": _changed(data=[*DATA[:-1], protocol.VOCABULARY]),
        "a byte of -1": _changed(data=[*DATA[:-1], -1]),
        "a text as byte": _changed(data=[*DATA[:-1], "72"]),
        "a fraction as byte": _changed(data=[*DATA[:-1], 0.5]),
        "a number of 400 digits": _changed(data=[*DATA[:-1], 10**400]),
        "GET": good._replace(method="GET"),
        "a model that is not there": good._replace(path=protocol.path("gpt-5")),
        "too large": Request(b" " * (protocol.LARGEST_BODY + 1)),
        "not compressed, but says so": good._replace(headers={"Content-Encoding": "gzip"}),
    }


def send(url: str, limits: Limits, times: int) -> list[dict]:
    """Send each kind so many times; a row has the statuses that came back and the last sentence.

    Status 0 is a connection that the server closed without a word.
    """

    async def run() -> list[dict]:
        # a server may close the connection of a request that it can't read: each has its own
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(url, timeout=TIMEOUT, connector=connector) as session:
            rows = []
            for kind, request in kinds(limits).items():
                answers = [await _answer(session, request) for _ in range(times)]
                statuses = ", ".join(sorted({str(status) for status, _ in answers}))
                row = {"what is wrong": kind, "sent": times, "status": statuses}
                rows.append(row | {"answer": answers[-1][1]})
            return rows

    return in_a_thread(run())


async def _answer(session: aiohttp.ClientSession, request: Request) -> tuple[int, str]:
    how = {"data": request.body, "headers": request.headers}
    try:
        async with session.request(request.method, request.path, **how) as response:
            return response.status, (await response.json(content_type=None))["error"]
    except (aiohttp.ClientError, TimeoutError) as error:
        return 0, type(error).__name__
    except (ValueError, KeyError, TypeError):  # no answer in the protocol's words
        return response.status, ""


def badly_answered(rows: list[dict]) -> list[dict]:
    """Return the rows whose requests were not all answered with one status from 400 to 499."""
    refusals = {str(status) for status in range(400, 500)}
    return [row for row in rows if not (row["answer"] and row["status"] in refusals)]
