"""A real Triton Inference Server, without a container, for a cell or a test:

    repository = triton.write_repository("logs/triton", "logs/exported/gpt.onnx", "gpt", context=64)
    with triton.start(repository) as server:
        answer = requests.post(server.url + protocol.path("gpt"), json=protocol.request(ids))

`make triton` puts the binary of PyPI's nvidia-pytriton into an environment of its own,
`.venv-triton`. It carries the python backend only, so src/_serve_triton.py runs the model, with
ONNX Runtime. A server listens on 127.0.0.1 alone, and ends with the process that started it
(triton_holder.py); triton_repository.py has the folder that it reads.

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
from pathlib import Path

from bootcamp.launcher import process_tree
from bootcamp.serving import triton_holder, triton_site
from bootcamp.serving.triton_repository import Repository, write_repository
from bootcamp.serving.triton_site import why_not

__all__ = ["Repository", "Server", "TritonError", "start", "why_not", "write_repository"]

STUB = "triton_python_backend_stub"
PORT_TAKEN = "already in use"
TRIES = 5  # ports that another program took between our look and Triton's
# what Triton calls its counters -> what `Server.metrics` does
COUNTERS = {
    "nv_inference_request_success": "requests",
    "nv_inference_request_failure": "failures",
    "nv_inference_count": "samples",
    "nv_inference_exec_count": "batches",
    "nv_inference_pending_request_count": "waiting",
    "nv_inference_request_duration_us": "request_microseconds",
    "nv_inference_queue_duration_us": "queue_microseconds",
    "nv_inference_compute_infer_duration_us": "compute_microseconds",
}
METRIC = re.compile(r'^(\w+)\{.*?model="([^"]*)".*\} (\S+)$', re.MULTILINE)


class TritonError(Exception):
    """A server that can't be had, or a model that it does not load. Its text says why."""


class _PortTaken(Exception):
    """Another program has taken the port."""


def start(
    repository: Repository,
    seconds: float = 60,
    seconds_to_stop: int = 5,
    log: Path | str | None = None,
) -> "Server":
    """Start a server; returns when the repository's model answers.

    seconds: how long that may take. seconds_to_stop: how long `Server.stop` waits for answers that
    have been begun. log: the server's own; None is triton.log in the repository.

    Raises TritonError with the end of the log if the model does not load.
    """
    if why := why_not():
        raise TritonError(f"no Triton here: {why}")
    triton_holder.remove_stale_regions()
    log = Path(log or repository.folder / "triton.log").resolve()
    for _ in range(TRIES):
        began = time.monotonic()
        server = Server(repository, log, seconds_to_stop)
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

    def __init__(self, repository: Repository, log: Path, seconds_to_stop: int):
        self.repository, self.log = repository, log
        self.id = f"{triton_holder.PREFIX}{secrets.token_hex(6)}-"
        self.port, self.metrics_port = _free_ports(2)
        self.url = f"http://127.0.0.1:{self.port}"
        self.seconds_to_stop = seconds_to_stop
        settings = {
            "command": self._command(),
            "environment": triton_site.environment(),
            "log": str(log),
            "prefix": self.id,
            "starter": os.getpid(),
            "seconds_to_stop": seconds_to_stop + 2,
        }
        self.holder = subprocess.Popen(
            [sys.executable, "-P", triton_holder.__file__, json.dumps(settings)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # the notebook's stop button is not meant for it
        )

    def _command(self) -> list[str]:
        place = triton_site.programs()
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
            f"--exit-timeout-secs={self.seconds_to_stop}",
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

        requests, failures, samples, batches: how many; waiting: requests in the queue now;
        request_, queue_ and compute_microseconds: sums over requests. Summed over the versions that
        are loaded: those of a version end with it.
        """
        found = dict.fromkeys(COUNTERS.values(), 0.0)
        text = self._ask("GET", "/metrics", self.metrics_port)
        for name, model, value in METRIC.findall(text):
            if name in COUNTERS and model == self.repository.name:
                found[COUNTERS[name]] += float(value)
        return found

    def statistics(self) -> dict:
        """What Triton's statistics extension says of the model, batch sizes among it."""
        name = self.repository.name
        return self._ask("GET", f"/v2/models/{name}/stats")["model_stats"][0]

    def load(self, name: str | None = None) -> None:
        """Load the model as the repository has it now; without a change nothing happens.

        The version that is served goes on until the new one is ready, and for good if that one does
        not load. Raises TritonError then.
        """
        self._ask("POST", f"/v2/repository/models/{name or self.repository.name}/load")

    def unload(self, name: str | None = None) -> None:
        """Stop to serve the model, when it has answered what it has begun."""
        self._ask("POST", f"/v2/repository/models/{name or self.repository.name}/unload")

    def switch(self, version: int) -> None:
        """Serve this version of the repository, without refusing a request; also the way back.

        If it does not load, or can't answer its own test (src/_serve_triton.py), the repository
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
            self.holder.wait(self.seconds_to_stop + 10)
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
