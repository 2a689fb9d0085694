"""Lesson 11's drills: break one thing of a server under load, and count what its clients see.

    serving_drills.run("a worker is killed", server, asked)

They work on any service.Server: the course's own, and Triton behind its front (serving_lab.py).
Every answer is compared with that of the eager model.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

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
    """Run one of DRILLS; a row of what clients saw, and whether a load behind it was answered."""
    found = DRILLS[name](server, asked, requests)
    afterwards = load.closed(server.url, asked, CLIENTS, requests=AFTERWARDS)
    server.repair()
    return row(name, found, afterwards)


def row(name: str, found: Load, afterwards: Load) -> dict:
    """Count what clients saw. refused: with status 503 and a sentence, so they can ask again."""
    others = found.sent - sum(found.statuses[code] for code in (200, 503, load.NO_ANSWER))
    return {
        "drill": name,
        "requests": found.sent,
        "right": len(found.latencies),
        "wrong": found.wrong,
        "refused": found.statuses[503],
        "other errors": others,
        "no answer": found.statuses[load.NO_ANSWER],
        "afterwards": f"{AFTERWARDS - afterwards.failed} of {AFTERWARDS} right",
    }


def _while_asked(server, asked: list[Asked], requests: int, act: Callable[[], None]) -> Load:
    """Load the server, and act when a quarter of the requests has been sent."""
    return load.closed(server.url, asked, CLIENTS, requests=requests, at={requests // 4: act})


def worker_killed(server, asked: list[Asked], requests: int) -> Load:
    """Kill one of the instances' processes."""

    def kill() -> None:
        os.kill(server.workers()[0], signal.SIGKILL)

    return _while_asked(server, asked, requests, kill)


def new_version(server, asked: list[Asked], requests: int) -> Load:
    """Let the next version take over, and the one before come back. Both of their answers count."""
    first, second = versions.numbers(server.folder)[-2:]

    def there_and_back() -> None:
        server.switch(second)
        server.switch(first)

    return _while_asked(server, asked, requests, there_and_back)


def broken_version(server, asked: list[Asked], requests: int) -> Load:
    """Publish the first half of an exported file as the next version, and switch to it."""
    newest = versions.file(server.folder)
    torn = server.folder / f"torn.{newest.name.split('.', 1)[1]}"
    content = newest.read_bytes()
    torn.write_bytes(content[: len(content) // 2])
    number = server.publish(torn)
    torn.unlink()

    def switch() -> None:
        try:
            server.switch(number)
        except protocol.Refused as refused:
            print(f"refused: {str(refused).splitlines()[0][:150]}")

    try:
        return _while_asked(server, asked, requests, switch)
    finally:
        shutil.rmtree(server.folder / str(number))


def disk_full(server, asked: list[Asked], requests: int) -> Load:
    """Publish a version while no file may grow: a stand-in for a full disk."""
    there, newest = versions.numbers(server.folder), versions.file(server.folder)

    def publish() -> None:
        command = [sys.executable, "-c", WITHOUT_ROOM, server.folder, newest]
        errors = subprocess.run(command, capture_output=True, text=True).stderr
        print(f"not published: {errors.strip().splitlines()[-1]}")

    found = _while_asked(server, asked, requests, publish)
    assert versions.numbers(server.folder) == there
    return found


def never_reads(server, asked: list[Asked], requests: int) -> Load:
    """Let ten clients send all they can and read nothing."""
    body = json.dumps(protocol.request(asked[0].ids))
    request = f"POST {protocol.path()} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    address, _, port = server.url.removeprefix("http://").partition(":")
    with contextlib.ExitStack() as connections:
        for _ in range(10):
            one = connections.enter_context(socket.create_connection((address, int(port))))
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    one.sendall(100 * (request + body).encode())
        return load.closed(server.url, asked, CLIENTS, requests=requests)


def malformed_requests(server, asked: list[Asked], requests: int) -> Load:
    """Send requests that nobody should answer, while good ones come."""
    limits = protocol.Limits(MAX_BATCH, artifacts.about(versions.file(server.folder)).context)

    def send() -> None:
        sent = malformed.send(server.url, limits, times=2)
        assert not (badly := malformed.badly_answered(sent)), badly

    return _while_asked(server, asked, requests, send)


def overload(server, asked: list[Asked], requests: int) -> Load:
    """Let two hundred clients ask at the same time."""
    return load.closed(server.url, asked, clients=200, requests=requests)


def server_killed(server, asked: list[Asked], requests: int) -> Load:
    """Kill the process that listens: the only drill that a server does not survive."""
    return _while_asked(server, asked, requests, server.kill)


DRILLS = {
    "a worker is killed": worker_killed,
    "another version, and back": new_version,
    "a broken version": broken_version,
    "no room for a version": disk_full,
    "clients that never read": never_reads,
    "malformed requests": malformed_requests,
    "200 clients at once": overload,
}
