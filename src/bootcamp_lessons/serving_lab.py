"""Lesson 11: loads that compare servers, and one that a server pauses under."""

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
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
from bootcamp_lessons import serving_drills

RECORDS = REFERENCE / "11_serving"
SCRIPT = "batching"
PAUSE_SECONDS = 0.5
CLIENTS = 16  # of a load that a server can't keep up with
# words -> settings of serve/batching.py
SERVERS = {
    "1 instance": {"instances": 1, "max_batch": 1},
    "1 instance, batches of 8": {"instances": 1, "max_batch": 8},
    "2 instances": {"instances": 2, "max_batch": 1},
    "2 instances, batches of 8": {"instances": 2, "max_batch": 8},
    "2 instances, batches of 8, delay 20 ms": {"instances": 2, "max_batch": 8, "delay_ms": 20},
}


def seconds(wanted: float) -> float:
    """How long a load goes on: what is wanted, or less where claims get less (claims.SECONDS)."""
    return min(wanted, float(os.environ.get("BOOTCAMP_CLAIM_SECONDS", wanted)) + 0.3)


def measured() -> Measurement:
    """What a figure of loads says at its foot."""
    found = Measurement()
    found.folder, found.what = LOGS, "Server and client"
    about = {"machine": machine.describe(), "versions": {"torch": version("torch")}}
    found.config = {"device": "cpu", "cores_per_rank": 1, **about}
    return found


def ablation(folder: Path, asked: list[Asked], each_seconds: float = 1.5) -> list[dict]:
    """A row for each of SERVERS under the same load: answers per second, and percentiles."""
    found = []
    for words, settings in SERVERS.items():
        with service.start(SCRIPT, folder, **settings) as server:
            rate = load.closed(server.url, asked, CLIENTS, seconds=seconds(each_seconds))
            counts = server.counts()
        row = {"server": words, "batches": settings["max_batch"] > 1, **rate.row()}
        row["samples in a batch"] = counts["samples"] / max(1, counts["batches"])
        found.append(row)
    return found


@contextlib.contextmanager
def two_servers(folder: Path, asked: list[Asked], requests: int = 200) -> Iterator[tuple]:
    """The best and the plainest of SERVERS, each as a function: its seconds for so many requests.

    For a claim: both are up, and each is loaded in turn.
    """
    with (
        service.start(SCRIPT, folder, **SERVERS["2 instances, batches of 8"]) as best,
        service.start(SCRIPT, folder, **SERVERS["1 instance"]) as plain,
    ):

        def loaded(server) -> Callable[[], float]:
            return lambda: load.closed(server.url, asked, CLIENTS, requests=requests).seconds

        yield loaded(best), loaded(plain)


def paused(server, asked: list[Asked], each_seconds: float = 2.0) -> dict[str, Load]:
    """A closed and an open loop; the server's workers stand still for a while in the middle."""

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


def by_clients(server, asked: list[Asked], each_seconds: float = 1.0) -> list[dict]:
    """A row for each number of clients in a closed loop, with what Little's law makes of it."""
    found = []
    for clients in (1, 4, 16, 64):
        under = load.closed(server.url, asked, clients, seconds=seconds(each_seconds))
        row = {"clients": clients, "answers/s": under.per_second, "mean, ms": 1e3 * under.mean}
        found.append(row | {"answers/s x mean": under.per_second * under.mean})
    return found


def by_rate(server, asked: list[Asked], each_seconds: float = 2.0) -> dict[float, Load]:
    """Open loops at rates from a fifth of what the server answers at most to a quarter above it."""
    most = load.closed(server.url, asked, CLIENTS, seconds=seconds(1.5)).per_second
    shares = (0.2, 0.4, 0.6, 0.8, 1.0, 1.25)
    return {
        round(share * most): load.open(server.url, asked, share * most, seconds(each_seconds))
        for share in shares
    }


def malformed(server, context: int, count: int = 200) -> list[dict]:
    """What a server says to malformed requests: a row for each kind. Raises AssertionError.

    It does so for a kind that is not refused with a status from 400 to 499 and a sentence.
    """
    found = malformed_requests.send(server.url, Limits(serving_drills.MAX_BATCH, context), count)
    assert not (badly := malformed_requests.badly_answered(found)), badly
    return found


def other_model(exported: Path, place: Path) -> Path:
    """An .onnx file with other weights than this one, as after more training; its path."""
    import onnx

    model = onnx.load(exported)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 2:
            changed = 1.25 * onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(changed, tensor.name))
    onnx.save(model, place)
    return place


WAYS = {
    "one process": ("serve_replicas.py", 1, {}),
    "replicas on two ranks": ("serve_replicas.py", 2, {}),
    "pipeline over two ranks": ("serve_pipeline.py", 2, {"micro_batches": 4}),
}


def several_devices(batch: int = 32, steps: int = 12) -> list[dict]:
    """A row for each of WAYS: throughput of a batch, time of one request, bytes on a rank."""
    found, losses = [], []
    for words, (snippet, ranks, flags) in WAYS.items():
        script, same = SRC / "snippets" / snippet, {"steps": steps, "device": "cpu", "quiet": True}
        many = launch(script, ranks, global_batch=batch, **flags, **same)
        # as few requests as the ranks can take: one each, or one for all of them
        one = {"global_batch": ranks if "replicas" in words else 1}
        alone = launch(script, ranks, **one, **(flags and {"micro_batches": 1}), **same)
        losses.append(many.losses)
        row = {"way": words, "samples/s": many.samples_per_second}
        row["ms for one request"] = 1e3 * median(step["seconds"] for step in alone.steps[2:])
        row["MB of parameters on a rank"] = many.ranks[0]["parameter_bytes"] / 1e6
        found.append(row)
    apart = max(abs(a - b) for other in losses for a, b in zip(losses[0], other, strict=True))
    assert apart < 1e-5, f"the ways answer differently: losses are {apart:.1e} apart"
    return found


class Triton:
    """Triton's part of the lesson: measured where `make triton` has been run, else recorded.

    A server is started for each measurement, behind a front that checks requests.
    """

    def __init__(self, folder: Path, model: Path, asked: list[Asked]):
        self.folder, self.model, self.asked = folder, model, asked
        self.context = artifacts.about(model).context
        self.why_not = triton.why_not()
        self.says = ""

    def config(self) -> str:
        """The configuration of a model in the repository."""
        with tempfile.TemporaryDirectory() as place:
            return self._repository(place).config.read_text()

    def _repository(self, place: str, **settings) -> triton.Repository:
        return triton.write_repository(place, self.model, "gpt", self.context, **settings)

    @contextlib.contextmanager
    def server(self, **settings) -> Iterator["Fronted"]:
        """A running Triton behind its front."""
        with (
            tempfile.TemporaryDirectory(dir=self.folder, prefix="triton-") as place,
            triton.start(self._repository(place, **settings)) as behind,
            service.start("front", behind.url, context=self.context) as front,
        ):
            yield Fronted(front, behind)

    def measure(self) -> list[dict]:
        """The plainest and the best of SERVERS as Triton has them, without the front."""
        return self._replay("triton_measured", self._measure)

    def drills(self) -> list[dict]:
        """serving_drills.KEEP_UP."""
        return self._replay("triton_drills", self._drills)

    def _measure(self) -> list[dict]:
        found = []
        for words in ("1 instance", "2 instances, batches of 8"):
            settings = SERVERS[words]
            with self.server(**settings) as server:
                rate = load.closed(server.behind.url, self.asked, CLIENTS, seconds=seconds(2))
                counts = server.behind.metrics()
            row = {"Triton": words, "ready after, s": server.behind.seconds_to_start, **rate.row()}
            row["samples in a batch"] = counts["samples"] / max(1, counts["batches"])
            found.append(row)
        return found

    def _drills(self) -> list[dict]:
        other = other_model(self.model, self.folder / "other-triton.onnx")
        predict = artifacts.load(self.model)
        both = load.ask(predict, 50, 8, or_else=artifacts.load(other))
        with self.server() as server:
            server.publish(other)
            return [serving_drills.run(name, server, both) for name in serving_drills.KEEP_UP]

    def _replay(self, name: str, measure: Callable[[], list[dict]]) -> list[dict]:
        def here() -> dict:
            return {"machine": machine.describe(), "rows": measure()}

        note = f"{self.why_not}: what was recorded elsewhere stands in ({name})."
        found = replay(RECORDS / f"{name}.json", here, note if self.why_not else None)
        about = found["machine"]
        how = "recorded on another machine" if self.why_not else "measured here"
        self.says = f"Triton on {about['cpu']}, {about['cores']} cores; {how}"
        return found["rows"]


class Fronted:
    """Triton and the front before it, as serving_drills takes a server."""

    def __init__(self, front: service.Service, behind: triton.Server):
        self.front, self.behind = front, behind
        self.url, self.folder = front.url, behind.folder
        self.workers, self.switch = behind.workers, behind.switch
        self.publish, self.kill = behind.repository.publish, behind.kill
        self.instances = len(behind.workers())

    def repair(self) -> None:
        """Replace instances whose process has died: Triton does not."""
        if len(self.workers()) < self.instances:
            self.behind.repair()
