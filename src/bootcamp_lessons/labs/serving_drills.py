"""Lesson 11's drills: break one thing of a server under load, and count its clients' answers.

    serving_drills.run("a worker is killed", server, asked)

They work on any service.Server, also Triton behind its front (serving_lab.py). Every answer is
compared with the eager model's.
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
from functools import partial

from bootcamp.serving import artifacts, load_test, malformed, protocol, versions
from bootcamp.serving.load_test import CheckedRequest, Load

Asked = list[CheckedRequest]
CLIENTS = 8
MAX_BATCH = 8  # samples, of every server here
AFTERWARDS = 50  # requests
WITHOUT_ROOM = """import resource, sys
from bootcamp.serving import versions
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14))
versions.publish(*sys.argv[1:])"""


def run(name: str, server, asked: Asked, requests: int = 400) -> dict:
    """Run one of DRILLS and a load after it, and return a row of what clients saw."""
    found = DRILLS[name](server, asked, requests)
    afterwards = load_test.run_closed_loop(server.url, asked, CLIENTS, count=AFTERWARDS)
    server.repair()
    return make_row(name, found, afterwards)


def make_row(name: str, found: Load, afterwards: Load) -> dict:
    """Count what clients saw. refused: with status 503, so that they can ask again."""
    others = found.sent - sum(found.statuses[code] for code in (200, 503, load_test.NO_ANSWER))
    return {
        "drill": name,
        "requests": found.sent,
        "right": len(found.latencies),
        "wrong": found.wrong,
        "refused": found.statuses[503],
        "other errors": others,
        "no answer": found.statuses[load_test.NO_ANSWER],
        "afterwards": f"{AFTERWARDS - afterwards.failed} of {AFTERWARDS} right",
    }


def _load_and_act(server, asked: Asked, requests: int, act: Callable[[], None]) -> Load:
    """Load the server, and act when a quarter of the requests is sent."""
    at = {requests // 4: act}
    return load_test.run_closed_loop(server.url, asked, CLIENTS, count=requests, at=at)


def kill_worker(server, asked: Asked, requests: int) -> Load:
    """Kill one of the instances' processes."""
    return _load_and_act(
        server, asked, requests, lambda: os.kill(server.workers()[0], signal.SIGKILL)
    )


def switch_version(server, asked: Asked, requests: int) -> Load:
    """Switch to the next version and back; the answers of both count as right."""
    first, second = versions.list_versions(server.folder)[-2:]

    def there_and_back() -> None:
        server.switch(second)
        server.switch(first)

    return _load_and_act(server, asked, requests, there_and_back)


def publish_broken_version(server, asked: Asked, requests: int) -> Load:
    """Publish the first half of an exported file as the next version, and switch to it."""
    newest = versions.find_file(server.folder)
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
        return _load_and_act(server, asked, requests, switch)
    finally:
        shutil.rmtree(server.folder / str(number))


def publish_without_room(server, asked: Asked, requests: int) -> Load:
    """Publish a version while no file may grow: a stand-in for a full disk."""
    there, newest = versions.list_versions(server.folder), versions.find_file(server.folder)

    def publish() -> None:
        command = [sys.executable, "-c", WITHOUT_ROOM, server.folder, newest]
        errors = subprocess.run(command, capture_output=True, text=True).stderr
        print(f"not published: {errors.strip().splitlines()[-1]}")

    found = _load_and_act(server, asked, requests, publish)
    assert versions.list_versions(server.folder) == there
    return found


def send_without_reading(server, asked: Asked, requests: int) -> Load:
    """Let ten clients send all they can and read nothing."""
    body = json.dumps(protocol.make_request(asked[0].ids))
    path = protocol.INFER
    request = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    address, _, port = server.url.removeprefix("http://").partition(":")
    with contextlib.ExitStack() as connections:
        for _ in range(10):
            one = connections.enter_context(socket.create_connection((address, int(port))))
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    one.sendall(100 * (request + body).encode())
        return load_test.run_closed_loop(server.url, asked, CLIENTS, count=requests)


def send_malformed(server, asked: Asked, requests: int) -> Load:
    """Send requests that nobody should answer, while good ones come."""
    context = artifacts.read_info(versions.find_file(server.folder)).context
    check = partial(check_malformed, server, context, times=2)
    return _load_and_act(server, asked, requests, check)


def check_malformed(server, context: int, times: int = 8) -> list[dict]:
    """Send malformed requests; return a row for each kind. AssertionError for a bad answer."""
    found = malformed.send(server.url, protocol.Limits(MAX_BATCH, context), times=times)
    assert not (badly := malformed.list_bad_answers(found)), badly
    return found


def overload_server(server, asked: Asked, requests: int) -> Load:
    """Let two hundred clients ask at the same time."""
    return load_test.run_closed_loop(server.url, asked, clients=200, count=requests)


def kill_server(server, asked: Asked, requests: int) -> Load:
    """Kill the process that listens: the only drill that a server does not survive."""
    return _load_and_act(server, asked, requests, server.kill)


DRILLS = {
    "a worker is killed": kill_worker,
    "another version, and back": switch_version,
    "a broken version": publish_broken_version,
    "no room for a version": publish_without_room,
    "clients that never read": send_without_reading,
    "malformed requests": send_malformed,
    "200 clients at once": overload_server,
}
