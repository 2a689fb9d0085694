"""Lesson 11: loads that compare servers, one that a server pauses under, and Triton's part."""

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median

from bootcamp import launch, machine
from bootcamp.experiments.replay import replay
from bootcamp.paths import LOGS, REFERENCE, SRC
from bootcamp.records.measurement import Measurement
from bootcamp.serving import artifacts, load, service, triton
from bootcamp.serving import malformed as malformed_requests
from bootcamp.serving.load import Asked, Load
from bootcamp.serving.protocol import Limits
from bootcamp_lessons.labs import serving_drills

RECORDS = REFERENCE / "11_serving"
PAUSE_SECONDS = 0.5
CLIENTS = 16  # of a load that a server can't keep up with
PLAIN, BEST = "1 instance", "2 instances, batches of 8"
SERVERS = {  # name -> settings of serve/batching.py
    PLAIN: {"instances": 1, "max_batch": 1},
    "1 instance, batches of 8": {"instances": 1, "max_batch": 8},
    "2 instances": {"instances": 2, "max_batch": 1},
    BEST: {"instances": 2, "max_batch": 8},
    "2 instances, batches of 8, delay 20 ms": {"instances": 2, "max_batch": 8, "delay_ms": 20},
}


def seconds(wanted: float) -> float:
    """Return how long a load goes on: less where claims get less (claims.SECONDS)."""
    return min(wanted, float(os.environ.get("BOOTCAMP_CLAIM_SECONDS", wanted)) + 0.3)


def measured() -> Measurement:
    """Describe what a figure of loads says at its foot."""
    found = Measurement()
    found.folder, found.what = LOGS, "Server and client"
    about = {"machine": machine.describe(), "versions": {"torch": version("torch")}}
    found.config = {"device": "cpu", "cores_per_rank": 1, **about}
    return found


def ablation(folder: Path, asked: list[Asked], each_seconds: float = 1.5) -> list[dict]:
    """Make a row for each of SERVERS under the same load: answers per second, and percentiles."""
    found = []
    for name, settings in SERVERS.items():
        with service.start("batching", folder, **settings) as server:
            row = _at_most(server, asked, each_seconds).row()
            counts = server.counts()
        batches = {"samples in a batch": counts["samples"] / max(1, counts["batches"])}
        found.append({"server": name, "batches": settings["max_batch"] > 1, **row, **batches})
    return found


def _at_most(server, asked: list[Asked], each_seconds: float, clients: int = CLIENTS) -> Load:
    return load.closed(server.url, asked, clients, seconds=seconds(each_seconds))


@contextlib.contextmanager
def two_servers(folder: Path, asked: list[Asked], requests: int = 200) -> Iterator[tuple]:
    """Start the best and the plainest of SERVERS, for a claim that loads them in turn.

    Each is a function that returns its seconds for so many requests.
    """
    with (
        service.start("batching", folder, **SERVERS[BEST]) as best,
        service.start("batching", folder, **SERVERS[PLAIN]) as plain,
    ):

        def loaded(server) -> float:
            return load.closed(server.url, asked, CLIENTS, requests=requests).seconds

        yield partial(loaded, best), partial(loaded, plain)


def paused(server, asked: list[Asked], each_seconds: float = 2.0) -> dict[str, Load]:
    """Load in a closed and an open loop, while the server's workers stand still for a moment."""

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
    return {
        "closed loop, 1 client": load.closed(server.url, asked, 1, seconds=each_seconds, at=at),
        f"open loop, {rate} requests/s": load.open(server.url, asked, rate, each_seconds, at=at),
    }


def by_clients(server, asked: list[Asked]) -> list[dict]:
    """Make a row for each number of clients in a closed loop, with Little's law for each."""
    loads = {clients: _at_most(server, asked, 1.0, clients) for clients in (1, 4, 16, 64)}
    return [
        {
            "clients": clients,
            "answers/s": found.per_second,
            "mean, ms": 1e3 * found.mean,
            "answers/s x mean": found.per_second * found.mean,
        }
        for clients, found in loads.items()
    ]


def by_rate(server, asked: list[Asked]) -> dict[float, Load]:
    """Load in open loops, from a fifth of what the server answers at most to a quarter above it."""
    most = _at_most(server, asked, 1.5).per_second
    rates = [share * most for share in (0.2, 0.4, 0.6, 0.8, 1.0, 1.25)]
    return {round(rate): load.open(server.url, asked, rate, seconds(2.0)) for rate in rates}


def malformed(server, context: int) -> list[dict]:
    """Send malformed requests; a row for each kind. Raises AssertionError for a bad answer."""
    limits = Limits(serving_drills.MAX_BATCH, context)
    found = malformed_requests.send(server.url, limits, times=8)
    assert not (badly := malformed_requests.badly_answered(found)), badly
    return found


def other_model(exported: Path, place: Path) -> Path:
    """Write an .onnx file with other weights than this one, as after more training; its path."""
    import onnx

    model = onnx.load(exported)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 2:
            changed = 1.25 * onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(changed, tensor.name))
    onnx.save(model, place)
    return place


WAYS = {  # name -> snippet, ranks, flags, requests at a time: one for each rank or one for all
    "one process": ("serve_replicas.py", 1, {}, 1),
    "replicas on two ranks": ("serve_replicas.py", 2, {}, 2),
    "pipeline over two ranks": ("serve_pipeline.py", 2, {"micro_batches": 4}, 1),
}


def several_devices() -> list[dict]:
    """Make a row for each of WAYS: throughput of a batch, time of one request, bytes on a rank."""
    found, losses = [], []
    for name, (snippet, ranks, flags, fewest) in WAYS.items():
        script, same = SRC / "snippets" / snippet, {"steps": 12, "device": "cpu", "quiet": True}
        many = launch(script, ranks, global_batch=32, **flags, **same)
        one = dict.fromkeys(flags, 1)
        alone = launch(script, ranks, global_batch=fewest, **one, **same)
        losses.append(many.losses)
        row = {"way": name, "samples/s": many.samples_per_second}
        row["ms for one request"] = 1e3 * median(step["seconds"] for step in alone.steps[2:])
        row["MB of parameters on a rank"] = many.ranks[0]["parameter_bytes"] / 1e6
        found.append(row)
    furthest = max(abs(a - b) for other in losses for a, b in zip(losses[0], other, strict=True))
    assert furthest < 1e-5, f"the ways answer differently: losses are {furthest:.1e} apart"
    return found


class Triton:
    """Triton's part of the lesson: measured where `make triton` has been run, else recorded.

    says: where the last rows come from.
    """

    def __init__(self, folder: Path, model: Path, asked: list[Asked]):
        self.folder, self.model, self.asked = folder, model, asked
        self.context = artifacts.about(model).context
        self.says = ""

    def config(self) -> str:
        """Return the configuration of a model in the repository."""
        return triton.config(self.context)

    def measure(self) -> list[dict]:
        """Measure the plainest and the best of SERVERS as Triton has them."""
        return self._replay("triton_measured", self._measure)

    def drills(self) -> list[dict]:
        """Run serving_drills.DRILLS, behind a front that checks requests."""
        return self._replay("triton_drills", self._drills)

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
                row = _at_most(server, self.asked, 2).row()
                counts = server.metrics()
            row = {"Triton": name, "ready after, s": server.seconds_to_start, **row}
            batches = counts["nv_inference_exec_count"]
            row["samples in a batch"] = counts["nv_inference_count"] / max(1, batches)
            found.append(row)
        return found

    def _drills(self) -> list[dict]:
        other = other_model(self.model, self.folder / "other-triton.onnx")
        both = load.ask(artifacts.load(self.model), 50, 8, or_else=artifacts.load(other))
        with (
            self._server() as server,
            service.start("front", server.url, context=self.context) as front,
        ):
            server.url = front.url
            server.publish(other)
            return [serving_drills.run(name, server, both) for name in serving_drills.DRILLS]

    def _replay(self, name: str, measure: Callable[[], list[dict]]) -> list[dict]:
        why_not = triton.why_not()
        found = replay(
            RECORDS / f"{name}.json",
            lambda: {"machine": machine.describe(), "rows": measure()},
            why_not and f"{why_not}: what was recorded elsewhere stands in ({name}).",
        )
        about = found["machine"]
        how = "recorded on another machine" if why_not else "measured here"
        self.says = f"Triton on {about['cpu']}, {about['cores']} cores; {how}"
        return found["rows"]
