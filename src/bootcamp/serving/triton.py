"""A real Triton Inference Server, without a container, for a cell or a test:

    repository = triton.Repository("logs/triton", context=64)
    repository.publish("logs/exported/gpt.onnx")
    with triton.Server(repository) as server:
        answer = requests.post(server.url + protocol.path(), json=protocol.request(ids))

`make triton` puts the binary of PyPI's nvidia-pytriton into an environment of its own,
`.venv-triton`. It carries the python backend only: src/serve/triton_model.py runs the model with
ONNX Runtime. A server listens on 127.0.0.1 alone, and ends with the process that started it
(triton_holder.py).

Triton says that it is ready while the process of an instance is dead: requests that come to that
instance then fail, each after a second (HTTP 500), until `Server.repair`. A body of a hundred
thousand brackets ends the server itself. So nothing but this machine may reach it.

BOOTCAMP_WITHOUT=triton in the environment hides it, to see what a lesson shows without it.
"""

import os
import re
import secrets
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bootcamp import machine
from bootcamp.costs.model_shapes import VOCABULARY
from bootcamp.files import read_json, write_whole
from bootcamp.launcher import process_tree
from bootcamp.paths import ROOT, SRC
from bootcamp.serving import protocol, service, triton_holder, versions

ENVIRONMENT = ROOT / ".venv-triton"
READY = ENVIRONMENT / ".ready"  # written last
STUB = "triton_python_backend_stub"
SECONDS_TO_STOP = 5  # for answers that have been begun
MODEL = SRC / "serve" / "triton_model.py"


def why_not() -> str | None:
    """Say why this machine can't run Triton, in one sentence; None if it can."""
    if machine.hidden("triton"):
        return "BOOTCAMP_WITHOUT hides it in this environment"
    if sys.platform != "linux":
        return "Triton Inference Server needs Linux"
    if not (_programs() / "bin" / "tritonserver").exists():
        return f"there is no {ENVIRONMENT.name}: make triton makes it"
    return None


def _programs() -> Path:
    """The folder with the binary and the backends; one that is not there without them."""
    return Path(read_json(READY).get("triton", ENVIRONMENT / "missing"))


@dataclass
class Repository:
    """A folder that Triton reads, with one model in it, of which it serves one version.

        gpt/config.pbtxt       the shapes, the batcher, the instances, the version to serve
        gpt/1/model.onnx       the exported model
        gpt/1/model.py         what runs it: a copy of src/serve/triton_model.py
        gpt/2/...              the next version

    context: bytes of the longest sample. instances: processes that run the model, one core each.
    max_batch: samples in a request, and in a batch that Triton makes of several requests. It joins
    requests of one length only, because the input does not allow ragged batches. 1: its batcher is
    left out, and the queue with it. delay_ms: how long a request waits for others to join it.
    queue: requests that wait; those beyond it are refused at once (HTTP 503).
    """

    folder: Path
    context: int
    instances: int = 2
    max_batch: int = 8
    delay_ms: float = 2.0
    queue: int = 64
    version: int = 1

    @property
    def place(self) -> Path:
        """The folder of the model's versions."""
        return Path(self.folder).resolve() / protocol.NAME

    @property
    def config(self) -> str:
        """The text of config.pbtxt."""
        text = f"""name: "{protocol.NAME}"
backend: "python"
max_batch_size: {self.max_batch}
input [ {{ name: "{protocol.INPUT}" data_type: TYPE_INT64 dims: [ -1 ] }} ]
output [ {{ name: "{protocol.OUTPUT}" data_type: TYPE_FP32 dims: [ {VOCABULARY} ] }} ]
instance_group [ {{ kind: KIND_CPU count: {self.instances} }} ]
version_policy: {{ specific: {{ versions: [ {self.version} ] }} }}
parameters: {{ key: "context" value: {{ string_value: "{self.context}" }} }}
"""
        if self.max_batch == 1:  # the batcher's thread would only add waits of up to half a second
            return text
        return f"""{text}dynamic_batching {{
  max_queue_delay_microseconds: {round(1000 * self.delay_ms)}
  default_queue_policy {{ max_queue_size: {self.queue} }}
}}
"""

    def publish(self, model: Path | str) -> int:
        """Put an .onnx file here as the next version; nothing serves it yet."""
        return versions.publish(self.place, model, MODEL)

    def choose(self, version: int) -> None:
        """Ask for this version; Triton follows when it is told to load the model."""
        if version not in versions.numbers(self.place):
            raise ValueError(f"version {version}: there are {versions.numbers(self.place)}")
        self.version = version
        write_whole(self.place / "config.pbtxt", lambda file: file.write(self.config.encode()))

    def touch(self) -> None:
        """Make the served version look changed: Triton does not load what it has loaded already."""
        os.utime(self.place / str(self.version) / "model.py")


class Server(service.Server):
    """A running Triton with the repository's model. Raises ServerFailed where it can't be had."""

    def __init__(self, repository: Repository):
        if why := why_not():
            raise service.ServerFailed(f"no Triton here: {why}")
        triton_holder.remove_stale_regions()
        repository.choose(repository.version)
        self.repository = repository
        self.id = f"{triton_holder.ANY}{secrets.token_hex(6)}-"
        port, self.metrics_port = _free_ports(2)
        holder = [triton_holder.__file__, str(os.getpid()), self.id]
        command = [*holder, *_environment(), *self._command(port)]
        super().__init__(command, port, repository.place, protocol.MODEL_READY)

    def _command(self, port: int) -> list[str]:
        return [
            str(_programs() / "bin" / "tritonserver"),
            f"--id={self.id}",
            f"--model-repository={self.repository.place.parent}",
            "--model-control-mode=explicit",
            f"--load-model={protocol.NAME}",
            "--disable-auto-complete-config",
            f"--backend-directory={_programs() / 'backends'}",
            f"--backend-config=python,shm-region-prefix-name={self.id}",
            "--http-address=127.0.0.1",
            f"--http-port={port}",
            "--metrics-address=127.0.0.1",
            f"--metrics-port={self.metrics_port}",
            "--allow-grpc=false",
            "--allow-cpu-metrics=false",
            f"--exit-timeout-secs={SECONDS_TO_STOP}",
        ]

    def workers(self) -> list[int]:
        """List the process ids of the instances, of a version that is on its way out too."""
        return [pid for pid in super().workers() if STUB in process_tree.command(pid)]

    def metrics(self) -> dict[str, float]:
        """Return Triton's counters since it started, by the names that Prometheus gets.

        Summed over the versions that are loaded: those of a version end with it.
        """
        found: dict[str, float] = {}
        text = self.ask("GET", "/metrics", self.metrics_port)
        own = rf'^(\w+)\{{.*?model="{protocol.NAME}".*\}} (\S+)$'
        for name, value in re.findall(own, text, re.MULTILINE):
            found[name] = found.get(name, 0.0) + float(value)
        return found

    def publish(self, model: Path) -> int:
        """Put an exported model into the repository; nothing serves it yet."""
        return self.repository.publish(model)

    def switch(self, version: int) -> None:
        """Serve this version of the repository, without refusing a request; also the way back.

        If it does not load, or fails its own test (src/serve/triton_model.py), the repository names
        the served one again, which goes on. Raises Refused then.
        """
        before = self.repository.version
        self.repository.choose(version)
        try:
            self.ask("POST", protocol.LOAD)
        except BaseException:
            self.repository.choose(before)
            raise

    def repair(self, seconds: float = 2) -> None:
        """Start all instances anew if one has died: Triton does not bring it back.

        The new ones take over before the old ones go. One of the old that is still there after so
        many seconds is killed: beside a dead one, Triton does not end it.
        """
        old = set(self.workers())
        if len(old) == self.repository.instances:
            return
        self.repository.touch()
        self.ask("POST", protocol.LOAD)
        deadline = time.monotonic() + seconds
        while left := old & set(self.workers()):
            if time.monotonic() > deadline:
                process_tree.end(left)
            time.sleep(0.02)

    def stop(self) -> None:
        """Let it answer what it has begun, and end it. Nothing happens if it has ended already."""
        super().stop()
        triton_holder.remove_regions(self.id)  # of a holder that was killed


def _environment() -> list[str]:
    """Words for env(1): how Triton's instances find their Python and that Python's library.

    With the library of another Python, even one of the same version, they fail when they start.
    """
    search = os.pathsep.join([str(ENVIRONMENT / "bin"), os.environ.get("PATH", os.defpath)])
    libraries = [read_json(READY)["python_libraries"], os.environ.get("LD_LIBRARY_PATH", "")]
    return [
        *("env", "-u", "PYTHONPATH", "-u", "PYTHONHOME"),  # they are the course's Python's
        f"PATH={search}",
        f"LD_LIBRARY_PATH={os.pathsep.join(filter(None, libraries))}",
        "PYTHONDONTWRITEBYTECODE=1",  # the repository is Triton's to read
        "OMP_NUM_THREADS=1",
    ]


def _free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
