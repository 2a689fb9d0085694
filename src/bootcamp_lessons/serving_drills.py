"""Lesson 11's drills: break one thing of a server under load, and count what its clients see.

    serving_drills.run("a worker is killed", server, asked)

They work on any server that has `url`, `folder`, `workers()`, `publish(file)`, `switch(version)`,
`repair()` and `kill()`: the course's own (service.py), and Triton behind its front
(serving_lab.py). Every answer is compared with that of the eager model.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.parse

from bootcamp.serving import artifacts, load, malformed, protocol, versions
from bootcamp.serving.load import Asked, Load

CLIENTS = 8
MAX_BATCH = 8  # samples, of every server here
AFTERWARDS = 50  # requests
WITHOUT_ROOM = """import resource, sys
from bootcamp.serving import versions
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14))
versions.publish(*sys.argv[1:])"""


def run(name: str, server, asked: list[Asked], requests: int = 400) -> dict:
    """One of DRILLS; a row of what clients saw, and whether a load behind it was answered."""
    found = DRILLS[name](server, asked, requests)
    afterwards = load.closed(server.url, asked, CLIENTS, requests=AFTERWARDS)
    server.repair()
    return row(name, found, afterwards)


def row(name: str, found: Load, afterwards: Load) -> dict:
    """What clients saw. refused: with status 503 and a sentence, so that they can ask again."""
    others = {code: count for code, count in found.statuses.items() if code not in (200, 503)}
    no_answer = others.pop(load.NO_ANSWER, 0)
    return {
        "drill": name,
        "requests": found.sent,
        "right": len(found.latencies),
        "wrong": found.wrong,
        "refused": found.statuses[503],
        "other errors": sum(others.values()),
        "no answer": no_answer,
        "afterwards": f"{AFTERWARDS - afterwards.failed} of {AFTERWARDS} right",
    }


def worker_killed(server, ones: list[Asked], requests: int) -> Load:
    """One of the instances' processes is killed."""

    def kill() -> None:
        os.kill(server.workers()[0], signal.SIGKILL)

    return load.closed(server.url, ones, CLIENTS, requests=requests, at={requests // 4: kill})


def new_version(server, ones: list[Asked], requests: int) -> Load:
    """The next version takes over, and the one before comes back. Both of their answers count."""
    first, second = versions.numbers(server.folder)[-2:]

    def there_and_back() -> None:
        server.switch(second)
        server.switch(first)

    at = {requests // 4: there_and_back}
    return load.closed(server.url, ones, CLIENTS, requests=requests, at=at)


def broken_version(server, ones: list[Asked], requests: int) -> Load:
    """The first half of an exported file is published as the next version."""
    newest = versions.file(server.folder)
    torn = server.folder / f"torn.{newest.name.split('.', 1)[1]}"
    content = newest.read_bytes()
    torn.write_bytes(content[: len(content) // 2])
    number = server.publish(torn)
    torn.unlink()

    def switch() -> None:
        try:
            server.switch(number)
        except Exception as refused:  # of either server
            print(f"refused: {str(refused).splitlines()[0][:150]}")

    try:
        return load.closed(server.url, ones, CLIENTS, requests=requests, at={requests // 4: switch})
    finally:
        shutil.rmtree(server.folder / str(number))


def disk_full(server, ones: list[Asked], requests: int) -> Load:
    """A version is published while no file may grow: a stand-in for a full disk."""

    newest = str(versions.file(server.folder))

    def publish() -> None:
        command = [sys.executable, "-c", WITHOUT_ROOM, str(server.folder), newest]
        said = subprocess.run(command, capture_output=True, text=True).stderr
        print(f"not published: {said.strip().splitlines()[-1]}")

    there = versions.numbers(server.folder)
    found = load.closed(server.url, ones, CLIENTS, requests=requests, at={requests // 4: publish})
    assert versions.numbers(server.folder) == there
    return found


def never_reads(server, ones: list[Asked], requests: int) -> Load:
    """Ten clients send all they can and read nothing."""
    body = json.dumps(protocol.request(ones[0].ids)).encode()
    head = f"POST {protocol.path('gpt')} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    address = urllib.parse.urlsplit(server.url)
    with contextlib.ExitStack() as connections:
        for _ in range(10):
            one = connections.enter_context(
                socket.create_connection((address.hostname, address.port))
            )
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    one.sendall(100 * (head.encode() + body))
        return load.closed(server.url, ones, CLIENTS, requests=requests)


def malformed_requests(server, ones: list[Asked], requests: int) -> Load:
    """Requests that nobody should answer, all kinds in turn, while good ones come."""
    context = artifacts.about(versions.file(server.folder)).context
    limits = protocol.Limits(MAX_BATCH, context)

    def send() -> None:
        sent = malformed.send(server.url, limits, 2 * len(malformed.KINDS))
        assert not (badly := malformed.badly_answered(sent)), badly

    return load.closed(server.url, ones, CLIENTS, requests=requests, at={1: send})


def overload(server, ones: list[Asked], requests: int) -> Load:
    """Two hundred clients ask at the same time."""
    return load.closed(server.url, ones, 200, requests=requests)


def server_killed(server, ones: list[Asked], requests: int) -> Load:
    """The process that listens is killed."""
    return load.closed(
        server.url, ones, CLIENTS, requests=requests, at={requests // 4: server.kill}
    )


# what breaks -> a function (server, asked, requests) -> Load
KEEP_UP = {
    "a worker is killed": worker_killed,
    "another version, and back": new_version,
    "a broken version": broken_version,
    "no room for a version": disk_full,
    "clients that never read": never_reads,
    "malformed requests": malformed_requests,
    "200 clients at once": overload,
}
DRILLS = {**KEEP_UP, "the server is killed": server_killed}  # the last needs a new server
