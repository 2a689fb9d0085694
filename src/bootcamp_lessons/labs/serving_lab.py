"""Lesson 11: loads that compare servers, malformed requests, several devices, Triton, and drills.

Drills work on any Server, also Triton behind its front. Answers must be the eager model's.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median

from bootcamp import launch, machine, run_command
from bootcamp.experiments.replay import hide_own_folders, replay
from bootcamp.paths import LOGS, REFERENCE, SRC
from bootcamp.records.measurement import Measurement
from bootcamp.serving import (
    artifacts,
    load_test,
    malformed,
    protocol,
    server_process,
    triton,
    versions,
)
from bootcamp.serving.load_test import CheckedRequest, Load
from bootcamp_lessons import excerpts

Asked = list[CheckedRequest]
RECORDS = REFERENCE / "11_serving"
PAUSE_SECONDS = 0.5
CLIENTS = 16  # of a load that a server can't keep up with
PLAIN, BEST = "1 instance", "2 instances, batches of 8"
SERVERS = {  # name -> settings of serve/batching_server.py
    PLAIN: {"instances": 1, "max_batch": 1},
    "1 instance, batches of 8": {"instances": 1, "max_batch": 8},
    "2 instances": {"instances": 2, "max_batch": 1},
    BEST: {"instances": 2, "max_batch": 8},
    "2 instances, batches of 8, delay 20 ms": {"instances": 2, "max_batch": 8, "delay_ms": 20},
}


def limit_seconds(wanted: float) -> float:
    """Return a load's seconds: fewer where claims get fewer (claims.SECONDS)."""
    return min(wanted, float(os.environ.get("BOOTCAMP_CLAIM_SECONDS", wanted)) + 0.3)


def describe_measurement() -> Measurement:
    """Return what a figure of loads says at its foot."""
    found = Measurement()
    found.folder, found.what = LOGS, "Server and client"
    about = {"machine": machine.describe(), "versions": {"torch": version("torch")}}
    found.config = {"device": "cpu", "cores_per_rank": 1, **about}
    return found


def compare_servers(folder: Path, asked: Asked, each_seconds: float = 1.5) -> list[dict]:
    """Load each of SERVERS alike, and return rows of answers per second and percentiles."""
    found = []
    for name, settings in SERVERS.items():
        with server_process.start("batching_server", folder, **settings) as server:
            row = _load_fully(server, asked, each_seconds).row()
            counts = server.counts()
        batches = {"samples in a batch": counts["samples"] / max(1, counts["batches"])}
        found.append({"server": name, "batches": settings["max_batch"] > 1, **row, **batches})
    return found


def _load_fully(server, asked: Asked, each_seconds: float, clients: int = CLIENTS) -> Load:
    seconds = limit_seconds(each_seconds)
    return load_test.run_closed_loop(server.url, asked, clients, seconds=seconds)


@contextlib.contextmanager
def start_two_servers(folder: Path, asked: Asked, requests: int = 200) -> Iterator[tuple]:
    """Start the best and the plainest of SERVERS; yield functions that time requests to each."""
    with (
        server_process.start("batching_server", folder, **SERVERS[BEST]) as best,
        server_process.start("batching_server", folder, **SERVERS[PLAIN]) as plain,
    ):

        def loaded(server) -> float:
            return load_test.run_closed_loop(server.url, asked, CLIENTS, count=requests).seconds

        yield partial(loaded, best), partial(loaded, plain)


def load_with_pause(server, asked: Asked, each_seconds: float = 2.0) -> dict[str, Load]:
    """Load in a closed and an open loop, and stop the server's workers for a moment."""

    def pause() -> None:
        workers = server.workers()
        try:
            for pid in workers:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(PAUSE_SECONDS)
        finally:
            for pid in workers:
                os.kill(pid, signal.SIGCONT)

    rate, at = 100, {20: pause}
    closed = load_test.run_closed_loop(server.url, asked, 1, seconds=each_seconds, at=at)
    opened = load_test.run_open_loop(server.url, asked, rate, each_seconds, at=at)
    return {"closed loop, 1 client": closed, f"open loop, {rate} requests/s": opened}


def load_by_clients(server, asked: Asked) -> list[dict]:
    """Load in closed loops of 1 to 64 clients, and return rows that show Little's law."""
    rows = []
    for clients in (1, 4, 16, 64):
        found = _load_fully(server, asked, 1.0, clients)
        row = {"clients": clients, "answers/s": found.per_second, "mean, ms": 1e3 * found.mean}
        rows.append(row | {"answers/s x mean": found.per_second * found.mean})
    return rows


def load_by_rate(server, asked: Asked) -> dict[float, Load]:
    """Load in open loops, from a fifth of what the server answers at most to a quarter above it."""
    most = _load_fully(server, asked, 1.5).per_second
    rates, seconds = [share * most for share in (0.2, 0.4, 0.6, 0.8, 1.0, 1.25)], limit_seconds(2.0)
    return {round(r): load_test.run_open_loop(server.url, asked, r, seconds) for r in rates}


def write_other_model(exported: Path, place: Path) -> Path:
    """Write an .onnx file with other weights, as after more training, and return its path."""
    import onnx

    model = onnx.load(exported)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 2:
            changed = 1.25 * onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(changed, tensor.name))
    onnx.save(model, place)
    return place


WAYS = {  # name -> snippet, ranks, flags, requests that are answered together
    "one process": ("serve_replicas.py", 1, {}, 1),
    "replicas on two ranks": ("serve_replicas.py", 2, {}, 2),
    "pipeline over two ranks": ("serve_pipeline.py", 2, {"micro_batches": 4}, 1),
}


def compare_devices() -> list[dict]:
    """Return a row for each of WAYS: throughput, time of one request, bytes on a rank."""
    found, losses = [], []
    for name, (snippet, ranks, flags, fewest) in WAYS.items():
        script, same = SRC / "snippets" / snippet, {"steps": 12, "device": "cpu", "quiet": True}
        many = launch(script, ranks, global_batch=32, **flags, **same)
        alone = launch(script, ranks, global_batch=fewest, **dict.fromkeys(flags, 1), **same)
        losses.append(many.losses)
        row = {"way": name, "samples/s": many.samples_per_second}
        row["ms for one request"] = 1e3 * median(step["seconds"] for step in alone.steps[2:])
        row["MB of parameters on a rank"] = many.ranks[0]["parameter_bytes"] / 1e6
        found.append(row)
    furthest = max(abs(a - b) for other in losses for a, b in zip(losses[0], other, strict=True))
    assert furthest < 1e-5, f"the ways answer differently: losses are {furthest:.1e} apart"
    return found


class Triton:
    """Triton, measured and drilled where `make triton` was run, else recorded; says: which."""

    def __init__(self, folder: Path, model: Path, asked: Asked):
        self.folder, self.model, self.asked = folder, model, asked
        self.context = artifacts.read_info(model).context
        self.says = ""

    def config(self) -> str:
        """Return the configuration of a model in the repository."""
        return triton.make_config(self.context)

    def measure(self) -> list[dict]:
        """Measure the plainest and the best of SERVERS as Triton has them."""
        return self._replay("triton_measured", self._measure, triton.why_not())

    def drills(self) -> list[dict]:
        """Run DRILLS, behind a front that checks requests."""
        return self._replay("triton_drills", self._drills, triton.why_not())

    def configurations(self, snippet: Path) -> list[dict]:
        """Run a snippet that serves a StripedLSTM in one configuration after the other."""
        ask = partial(run_command, ["python", str(snippet)])
        missing = triton.why_not(torch=True)
        return self._replay(snippet.stem, lambda: excerpts.parse_printed(ask()), missing)

    @contextlib.contextmanager
    def _server(self, **settings) -> Iterator[triton.Server]:
        with (
            tempfile.TemporaryDirectory(dir=self.folder, prefix="triton-") as place,
            triton.Server(place, self.model, context=self.context, **settings) as server,
        ):
            yield server

    def _measure(self) -> list[dict]:
        found = []
        for name in (PLAIN, BEST):
            with self._server(**SERVERS[name]) as server:
                row = _load_fully(server, self.asked, 2).row()
                counts = server.metrics()
            row = {"Triton": name, "ready after, s": server.seconds_to_start, **row}
            batches = counts["nv_inference_exec_count"]
            row["samples in a batch"] = counts["nv_inference_count"] / max(1, batches)
            found.append(row)
        return found

    def _drills(self) -> list[dict]:
        other = write_other_model(self.model, self.folder / "other-triton.onnx")
        loaded, or_else = artifacts.load(self.model), artifacts.load(other)
        both = load_test.make_requests(loaded, 50, 8, or_else=or_else)
        with (
            self._server() as server,
            server_process.start("checking_front", server.url, context=self.context) as front,
        ):
            server.url = front.url
            server.publish(other)
            return [run_drill(name, server, both) for name in DRILLS]

    def _replay(self, name: str, measure: Callable[[], list[dict]], why_not: str | None):
        found = replay(
            RECORDS / f"{name}.json",
            lambda: {"machine": machine.describe(), "rows": measure()},
            why_not and f"{why_not}: what was recorded elsewhere stands in ({name}).",
        )
        about = found["machine"]
        how = "recorded on another machine" if why_not else "measured here"
        self.says = f"Triton on {about['cpu']}, {about['cores']} cores; {how}"
        return found["rows"]


# Drills: break one thing of a server under load, and count its clients' answers

DRILL_CLIENTS = 8
MAX_BATCH = 8  # samples, of every server here
AFTERWARDS = 50  # requests
WITHOUT_ROOM = """import resource, sys
from bootcamp.serving import versions
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14))
versions.publish(*sys.argv[1:])"""


def run_drill(name: str, server, asked: Asked, requests: int = 400) -> dict:
    """Run one of DRILLS and a load after it, and return a row of what clients saw."""
    found = DRILLS[name](server, asked, requests)
    afterwards = load_test.run_closed_loop(server.url, asked, DRILL_CLIENTS, count=AFTERWARDS)
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
    return load_test.run_closed_loop(server.url, asked, DRILL_CLIENTS, count=requests, at=at)


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
            said = hide_own_folders(str(refused).splitlines()[0])
            print(f"refused: {textwrap.shorten(said, 150, placeholder=' ...')}")

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
    request = f"POST {protocol.INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    address, _, port = server.url.removeprefix("http://").partition(":")
    with contextlib.ExitStack() as connections:
        for _ in range(10):
            one = connections.enter_context(socket.create_connection((address, int(port))))
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    one.sendall(100 * (request + body).encode())
        return load_test.run_closed_loop(server.url, asked, DRILL_CLIENTS, count=requests)


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
