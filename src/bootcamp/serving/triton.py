"""A real Triton Inference Server, without a container, for a cell or a test:

    repository = triton.write_repository("logs/triton", "logs/exported/gpt.onnx", "gpt", context=64)
    with triton.start(repository) as server:
        answer = requests.post(server.url + protocol.path("gpt"), json=protocol.request(ids))

`make triton` puts the binary of PyPI's nvidia-pytriton into an environment of its own,
`.venv-triton`. It carries the python backend only: src/serve/triton_model.py runs the model with
ONNX Runtime. A server listens on 127.0.0.1 alone, and ends with the process that started it
(triton_holder.py). A repository is a folder that it reads:

    gpt/config.pbtxt       the shapes, the batcher, the instances, the version to serve
    gpt/1/model.onnx       the exported model
    gpt/1/model.py         what runs it: a copy of src/serve/triton_model.py
    gpt/2/...              the next version

Triton says that it is ready while the process of an instance is dead: requests that come to that
instance then fail, each after a second (HTTP 500), until `Server.repair`. A body of a hundred
thousand brackets ends the server itself. So nothing but this machine may reach it.

BOOTCAMP_WITHOUT=triton in the environment hides it, to see what a lesson shows without it.
"""

import contextlib
import http.client
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bootcamp import machine
from bootcamp.costs.model_shapes import VOCABULARY
from bootcamp.files import read_json, write_whole
from bootcamp.launcher import process_tree
from bootcamp.paths import ROOT, SRC
from bootcamp.serving import triton_holder, versions
from bootcamp.serving.protocol import INPUT, OUTPUT

ENVIRONMENT = ROOT / ".venv-triton"
READY = ENVIRONMENT / ".ready"  # written last
NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME")  # they are the course's Python's, not Triton's
STUB = "triton_python_backend_stub"
PORT_TAKEN = "already in use"
SECONDS_TO_STOP = 5  # for answers that have been begun
TRIES = 5  # ports that another program took between our look and Triton's
MODEL = SRC / "serve/triton_model.py"
CONFIG = """name: "{name}"
backend: "python"
max_batch_size: {max_batch}
input [ {{ name: "{INPUT}" data_type: TYPE_INT64 dims: [ -1 ] }} ]
output [ {{ name: "{OUTPUT}" data_type: TYPE_FP32 dims: [ {VOCABULARY} ] }} ]
instance_group [ {{ kind: KIND_CPU count: {instances} }} ]
version_policy: {{ specific: {{ versions: [ {version} ] }} }}
parameters: {{ key: "context" value: {{ string_value: "{context}" }} }}
"""
BATCHING = """dynamic_batching {{
  max_queue_delay_microseconds: {delay}
  default_queue_policy {{ max_queue_size: {queue} }}
}}
"""
SERVED = re.compile(r"(?<=versions: \[ )\d+")
# what Triton calls its counters -> what `Server.metrics` does
COUNTERS = {
    "nv_inference_request_success": "requests",
    "nv_inference_request_failure": "failures",
    "nv_inference_count": "samples",
    "nv_inference_exec_count": "batches",
    "nv_inference_compute_infer_duration_us": "compute_microseconds",
}
METRIC = re.compile(r'^(\w+)\{.*?model="([^"]*)".*\} (\S+)$', re.MULTILINE)


class TritonError(Exception):
    """A server that can't be had, or a model that it does not load. Its text says why."""


class _PortTaken(Exception):
    """Another program has taken the port."""


def why_not() -> str | None:
    """Why this machine can't run Triton, in one sentence; None if it can."""
    if machine.hidden("triton"):
        return "BOOTCAMP_WITHOUT hides it in this environment"
    if sys.platform != "linux":
        return "Triton Inference Server needs Linux"
    if not (programs() / "bin" / "tritonserver").exists():
        return f"there is no {ENVIRONMENT.name}: make triton makes it"
    return None


def programs() -> Path:
    """The folder with the binary and the backends; one that is not there without them."""
    return Path(read_json(READY).get("triton", ENVIRONMENT / "missing"))


def environment() -> dict[str, str]:
    """A server's environment: how its instances find their Python and that Python's library.

    With the library of another Python, even one of the same version, they fail when they start.
    """
    own = {name: text for name, text in os.environ.items() if name not in NOT_INHERITED}
    search = os.pathsep.join([str(ENVIRONMENT / "bin"), os.environ.get("PATH", os.defpath)])
    libraries = [read_json(READY)["python_libraries"], os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        **own,
        "PATH": search,
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        "PYTHONDONTWRITEBYTECODE": "1",  # the repository is Triton's to read
        "OMP_NUM_THREADS": "1",
    }


@dataclass(frozen=True)
class Repository:
    """A folder that Triton reads, with one model in it; `write_repository` makes one."""

    folder: Path
    name: str

    @property
    def config(self) -> Path:
        return self.folder / self.name / "config.pbtxt"

    @property
    def version(self) -> int:
        """The version that the configuration asks for; Triton reads it when it loads the model."""
        return int(SERVED.search(self.config.read_text())[0])

    @property
    def place(self) -> Path:
        """The folder of the model's versions."""
        return self.folder / self.name

    def publish(self, model: Path | str) -> int:
        """Put an exported model here as the next version; nothing serves it yet."""
        return versions.publish(self.place, model, {"model.py": MODEL})

    def choose(self, version: int) -> None:
        """Ask for this version; Triton follows when it is told to load the model."""
        if version not in versions.numbers(self.place):
            raise ValueError(f"version {version}: there are {versions.numbers(self.place)}")
        _write(self.config, SERVED.sub(str(version), self.config.read_text()))

    def touch(self) -> None:
        """Make the served version look changed: Triton does not load what it has loaded already."""
        os.utime(self.folder / self.name / str(self.version) / "model.py")


def write_repository(
    folder: Path | str,
    model: Path | str,
    name: str,
    context: int,
    instances: int = 2,
    max_batch: int = 8,
    delay_seconds: float = 0.002,
    queue: int = 64,
) -> Repository:
    """Write a repository with one model, from the .onnx file that it was exported to.

    context: bytes of the longest sample.
    instances: processes that run the model, one core each.
    max_batch: samples in a request, and in a batch that Triton makes of several requests. It joins
    requests of one length only, because the input does not allow ragged batches. 1: its batcher is
    left out, and the queue with it.
    delay_seconds: how long a request waits for others to join it.
    queue: requests that wait; those beyond it are refused at once (HTTP 503), as answering them
    late would help nobody.
    """
    made = Repository(Path(folder).resolve(), name)
    version = made.publish(model)
    settings = {"delay": round(delay_seconds * 1e6), "context": context, "queue": queue}
    settings |= {"name": name, "version": version, "max_batch": max_batch, "instances": instances}
    constants = {"INPUT": INPUT, "OUTPUT": OUTPUT, "VOCABULARY": VOCABULARY}
    # with batches of one, the batcher's thread only adds waits of up to half a second
    text = CONFIG + (BATCHING if max_batch > 1 else "")
    _write(made.config, text.format(**settings, **constants))
    return made


def _write(path: Path, text: str) -> None:
    write_whole(path, lambda file: file.write(text.encode()))


def start(repository: Repository, seconds: float = 60, log: Path | str | None = None) -> "Server":
    """Start a server; returns when the repository's model answers.

    seconds: how long that may take. log: the server's own; None is triton.log in the repository.

    Raises TritonError with the end of the log if the model does not load.
    """
    if why := why_not():
        raise TritonError(f"no Triton here: {why}")
    triton_holder.remove_stale_regions()
    log = Path(log or repository.folder / "triton.log").resolve()
    for _ in range(TRIES):
        began = time.monotonic()
        server = Server(repository, log)
        try:
            server._wait_until_ready(seconds)
            server.seconds_to_start = time.monotonic() - began
            return server
        except _PortTaken:
            server.stop()
        except BaseException:
            server.stop()
            raise
    raise TritonError(f"{TRIES} times, another program took the port first")


class Server:
    """A running Triton; `start` makes it.

    url: of its HTTP service, such as "http://127.0.0.1:41233". log: the file that it writes to.
    """

    def __init__(self, repository: Repository, log: Path):
        self.repository, self.log = repository, log
        self.id = f"{triton_holder.PREFIX}{secrets.token_hex(6)}-"
        self.port, self.metrics_port = _free_ports(2)
        self.url = f"http://127.0.0.1:{self.port}"
        settings = {
            "command": self._command(),
            "environment": environment(),
            "log": str(log),
            "prefix": self.id,
            "starter": os.getpid(),
            "seconds_to_stop": SECONDS_TO_STOP + 2,
        }
        self.holder = subprocess.Popen(
            [sys.executable, "-P", triton_holder.__file__, json.dumps(settings)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # the notebook's stop button is not meant for it
        )

    def _command(self) -> list[str]:
        place = programs()
        return [
            str(place / "bin" / "tritonserver"),
            f"--id={self.id}",
            f"--model-repository={self.repository.folder}",
            "--model-control-mode=explicit",
            f"--load-model={self.repository.name}",
            "--disable-auto-complete-config",
            f"--backend-directory={place / 'backends'}",
            f"--backend-config=python,shm-region-prefix-name={self.id}",
            "--http-address=127.0.0.1",
            f"--http-port={self.port}",
            "--metrics-address=127.0.0.1",
            f"--metrics-port={self.metrics_port}",
            "--allow-grpc=false",
            "--allow-cpu-metrics=false",
            f"--exit-timeout-secs={SECONDS_TO_STOP}",
        ]

    def _wait_until_ready(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not (self._is_ours() and self.ready()):
            ended = self.holder.poll() is not None
            if ended and PORT_TAKEN in self._log_tail(1 << 20):
                raise _PortTaken
            if ended or time.monotonic() > deadline:
                what = "ended" if ended else f"was not ready after {seconds:g} s"
                raise TritonError(f"Triton {what}. The end of {self.log}:\n{self._log_tail()}")
            time.sleep(0.02)

    def _is_ours(self) -> bool:
        """Whether the server that answers at our address is this one, not another program's."""
        try:
            return self._ask("GET", "/v2")["name"] == self.id
        except (OSError, http.client.HTTPException, TritonError, KeyError, TypeError):
            return False

    def _log_tail(self, size: int = 2000) -> str:
        return self.log.read_text(errors="replace")[-size:] if self.log.exists() else ""

    def _ask(self, method: str, path: str, port: int | None = None, seconds: float = 60):
        """The JSON of an answer; its text if it is none. Raises TritonError on a refusal."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=seconds)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= 400:
            raise TritonError(f"{method} {path}: {answer.status} {text}")
        return json.loads(text) if text[:1] in ("{", "[") else text

    @property
    def folder(self) -> Path:
        """The folder of the model's versions."""
        return self.repository.place

    def kill(self) -> None:
        """Kill the process that listens; nothing of the server is left when this returns."""
        below = process_tree.below({self.holder.pid})
        process_tree.end({pid for pid in below if "tritonserver" in process_tree.command(pid)})
        self.holder.wait()

    def ready(self) -> bool:
        """Whether Triton says that the model is ready; a dead instance does not change that."""
        try:
            self._ask("GET", f"/v2/models/{self.repository.name}/ready", seconds=5)
        except (OSError, http.client.HTTPException, TritonError):
            return False
        return True

    def workers(self) -> list[int]:
        """The process ids of the instances, those of a version that is on its way out too."""
        below = process_tree.below({self.holder.pid})
        return sorted(pid for pid in below if STUB in process_tree.command(pid))

    def served(self) -> list[int]:
        """The versions that answer."""
        about = self._ask("GET", f"/v2/models/{self.repository.name}")
        return sorted(map(int, about["versions"]))

    def metrics(self) -> dict[str, float]:
        """Triton's counters of the model since it started, as it tells them to Prometheus.

        requests, failures, samples, batches: how many; compute_microseconds: a sum over requests.
        Summed over the versions that are loaded: those of a version end with it.
        """
        found = dict.fromkeys(COUNTERS.values(), 0.0)
        text = self._ask("GET", "/metrics", self.metrics_port)
        for name, model, value in METRIC.findall(text):
            if name in COUNTERS and model == self.repository.name:
                found[COUNTERS[name]] += float(value)
        return found

    def load(self) -> None:
        """Load the model as the repository has it now; without a change nothing happens.

        The version that is served goes on until the new one is ready, and for good if that one does
        not load. Raises TritonError then.
        """
        self._ask("POST", f"/v2/repository/models/{self.repository.name}/load")

    def switch(self, version: int) -> None:
        """Serve this version of the repository, without refusing a request; also the way back.

        If it does not load, or fails its own test (src/serve/triton_model.py), the repository
        names the served one again, which goes on. Raises TritonError then.
        """
        before = self.repository.version
        self.repository.choose(version)
        try:
            self.load()
        except BaseException:
            self.repository.choose(before)
            raise

    def repair(self, seconds: float = 2) -> None:
        """Start all instances anew: Triton does not bring back one whose process has died.

        The new ones take over before the old ones go. One of the old that is still there after so
        many seconds is killed: beside a dead one, Triton does not end it.
        """
        old = set(self.workers())
        self.repository.touch()
        self.load()
        deadline = time.monotonic() + seconds
        while left := old & set(self.workers()):
            if time.monotonic() > deadline:
                process_tree.end(left)
            time.sleep(0.02)

    def stop(self) -> None:
        """Let it answer what it has begun, and end it. Nothing happens if it has ended already."""
        with contextlib.suppress(BrokenPipeError, ValueError):  # it has ended, or was told already
            self.holder.stdin.write(b"stop")
            self.holder.stdin.close()
        try:
            self.holder.wait(SECONDS_TO_STOP + 10)
        except subprocess.TimeoutExpired:
            self.holder.kill()
            self.holder.wait()
        triton_holder.remove_regions(self.id)  # of a holder that was killed

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "running" if self.holder.poll() is None else "stopped"
        return f"Triton with {self.repository.name} at {self.url}: {state}"


def _free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now; `start` tries others if that changes."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
