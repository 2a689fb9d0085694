"""Malformed requests, which a good server answers with a status from 400 to 499 and a sentence."""

import contextlib
import http.client
import json

import numpy

from bootcamp.serving import protocol
from bootcamp.serving.protocol import Limits

TENSOR = protocol.make_request(numpy.array([list(b"import")]))["inputs"][0]  # a good one
DATA = TENSOR["data"]


def _encode(content) -> dict:
    return {"body": json.dumps(content).encode()}


def _with_fields(**fields) -> dict:
    return _encode({"inputs": [TENSOR | fields]})


def _with_zeros(*shape: int) -> dict:
    return _encode(protocol.make_request(numpy.zeros(shape, int)))


def make_requests(limits: Limits) -> dict[str, dict]:
    """Make malformed requests: {the mistake: arguments of HTTPConnection.request}."""
    good = _with_fields()
    return {
        "no body": {"body": b""},
        "JSON that is cut off": {"body": good["body"][:-1]},
        "nested 100,000 deep": {"body": b"[" * 100_000},
        "no inputs": _encode({}),
        "another input": _with_fields(name="tokens"),
        "another datatype": _with_fields(datatype="FP32"),
        "more data than shape says": _with_fields(data=[*DATA, 0]),
        "a negative shape": _with_fields(shape=[-1, 8]),
        "three dimensions": _with_zeros(1, 1, 4),
        "too many samples": _with_zeros(limits.batch + 1, 4),
        "too long": _with_zeros(1, limits.context + 1),
        "a byte of 256": _with_fields(data=[*DATA[:-1], protocol.VOCABULARY]),
        "a text as byte": _with_fields(data=[*DATA[:-1], "72"]),
        "a number of 400 digits": _with_fields(data=[*DATA[:-1], 10**400]),
        "GET": good | {"method": "GET"},
        "a model that is not there": good | {"url": protocol.INFER.replace(protocol.NAME, "gpt-5")},
        "too large": {"body": b" " * (protocol.LARGEST_BODY + 1)},
        "not compressed, but says so": good | {"headers": {"Content-Encoding": "gzip"}},
    }


def send(url: str, limits: Limits, times: int) -> list[dict]:
    """Send each malformed request `times` times; make a row of its statuses and the last sentence.

    Status 0 is a connection that the server closed without an answer.
    """
    rows = []
    for mistake, request in make_requests(limits).items():
        answers = [_send(url, request) for _ in range(times)]
        statuses = ", ".join(sorted({str(status) for status, _ in answers}))
        row = {"what is wrong": mistake, "sent": times, "status": statuses}
        rows.append(row | {"answer": answers[-1][1]})
    return rows


def _send(url: str, request: dict) -> tuple[int, str]:
    # a server may close the connection of a request that it can't read: each has its own
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    with contextlib.closing(connection):
        try:
            connection.request(**{"method": "POST", "url": protocol.INFER} | request)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())["error"]
        except (OSError, http.client.HTTPException) as error:
            return 0, type(error).__name__
        except (ValueError, KeyError, TypeError):  # not an answer of the protocol
            return answer.status, ""


def list_bad_answers(rows: list[dict]) -> list[dict]:
    """List the rows whose requests were not all refused with one status from 400 to 499."""
    refusals = {str(status) for status in range(400, 500)}
    return [row for row in rows if not (row["answer"] and row["status"] in refusals)]
