"""A real Triton Inference Server, without a container, for a cell or a test:

    with triton.Server("logs/triton", "logs/exported/gpt.onnx", context=64) as server:
        answer = requests.post(server.url + protocol.path(), json=protocol.request(ids))

`make triton` puts the binary of PyPI's nvidia-pytriton into `.venv-triton`. It carries the python
backend only: src/serve/triton_model.py runs the model with ONNX Runtime. It reads a repository:

    gpt/config.pbtxt       the shapes, the batcher, the instances, the version to serve
    gpt/1/model.onnx       the exported model
    gpt/1/model.py         what runs it: a copy of src/serve/triton_model.py
    gpt/2/...              the next version

Triton says that it is ready while the process of an instance is dead: requests that come to that
instance then fail, each after a second (HTTP 500), until `Server.repair`. A body of a hundred
thousand brackets ends the server itself. So nothing but this machine may reach it.

The python backend shares regions of memory, files in /dev/shm, with a process for each instance
(a stub). Whichever of them is killed leaves its regions there. So all of a server's begin with a
prefix of its own, and whatever survives removes them: the holder, which is this file as a program;
`Server.stop`, if that was killed; the next server's start, if both were.

BOOTCAMP_WITHOUT=triton in the environment hides it, to see what a lesson shows without it.
"""

import contextlib
import os
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil

if __name__ == "__main__":  # started with -P as a file: the package lies two folders up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bootcamp import linux, machine
from bootcamp.costs.model_shapes import VOCABULARY
from bootcamp.files import read_json, write_whole
from bootcamp.launcher import process_tree
from bootcamp.paths import ROOT, SRC
from bootcamp.serving import protocol, service

ENVIRONMENT = ROOT / ".venv-triton"
READY = ENVIRONMENT / ".ready"  # written last
STUB = "triton_python_backend_stub"
REGIONS = Path("/dev/shm")
PREFIX = "bootcamp-triton-"  # begins those of every server
PREFIX_LENGTH = len(PREFIX) + 13  # with a server's own 12 digits and a dash


def why_not() -> str | None:
    """Say why this machine can't run Triton, in one sentence; None if it can."""
    if machine.hidden("triton"):
        return "BOOTCAMP_WITHOUT hides it in this environment"
    if not (_programs() / "bin" / "tritonserver").exists():
        return f"there is no {ENVIRONMENT.name}: make triton makes it"
    return None


def _programs() -> Path:
    """The folder with the binary and the backends; one that is not there without them."""
    return Path(read_json(READY).get("triton", ENVIRONMENT / "missing"))


def config(
    context: int,
    instances: int = 2,
    max_batch: int = 8,
    delay_ms: float = 2.0,
    queue: int = 64,
    version: int = 1,
) -> str:
    """Return the text of config.pbtxt.

    context: bytes of the longest sample. instances: processes that run the model, one core each.
    max_batch: samples in a request, and in a batch that Triton makes of several requests. It joins
    requests of one length only, because the input does not allow ragged batches. delay_ms: how long
    a request waits for others to join it. queue: requests that wait; those beyond it are refused at
    once (HTTP 503). version: the one to serve.
    """
    text = f"""name: "{protocol.NAME}"
backend: "python"
max_batch_size: {max_batch}
input [ {{ name: "{protocol.INPUT}" data_type: TYPE_INT64 dims: [ -1 ] }} ]
output [ {{ name: "{protocol.OUTPUT}" data_type: TYPE_FP32 dims: [ {VOCABULARY} ] }} ]
instance_group [ {{ kind: KIND_CPU count: {instances} }} ]
version_policy: {{ specific: {{ versions: [ {version} ] }} }}
parameters: {{ key: "context" value: {{ string_value: "{context}" }} }}
"""
    batching = f"""dynamic_batching {{
  max_queue_delay_microseconds: {round(1000 * delay_ms)}
  default_queue_policy {{ max_queue_size: {queue} }}
}}
"""
    # with batches of one, the batcher's thread only adds waits of up to half a second
    return text + batching if max_batch > 1 else text


class Server(service.Server):
    """A running Triton; what it answers with is the model of a folder, exported to ONNX.

    settings: of `config`. Raises ServerFailed.
    """

    program = SRC / "serve" / "triton_model.py"

    def __init__(self, folder: Path | str, model: Path | str, **settings):
        if why := why_not():
            raise service.ServerFailed(f"no Triton here: {why}")
        remove_stale_regions()
        self.folder, self.settings = Path(folder).resolve() / protocol.NAME, settings
        self._choose(self.publish(model))
        self.id = f"{PREFIX}{secrets.token_hex(6)}-"
        port, self.metrics_port = _free_port(), _free_port()
        command = [__file__, str(os.getpid()), self.id, *_environment(), *self._command(port)]
        super().__init__(command, port, self.folder, protocol.MODEL_READY)
        self.instances = len(self.workers())

    def _command(self, port: int) -> list[str]:
        return [
            str(_programs() / "bin" / "tritonserver"),
            f"--id={self.id}",
            f"--model-repository={self.folder.parent}",
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
            "--exit-timeout-secs=5",  # for answers that have been begun
        ]

    def workers(self) -> list[int]:
        return [pid for pid in super().workers() if STUB in process_tree.command(pid)]

    def metrics(self) -> Counter:
        """Return Triton's counters, as Prometheus gets them, summed over the loaded versions."""
        found = Counter()
        text = self.ask("GET", "/metrics", self.metrics_port)
        own = rf'^(\w+)\{{.*?model="{protocol.NAME}".*\}} (\S+)$'
        for name, value in re.findall(own, text, re.MULTILINE):
            found[name] += float(value)
        return found

    def _choose(self, version: int) -> None:
        """Ask for this version; Triton follows when it is told to load the model."""
        self.version, text = version, config(**self.settings, version=version)
        write_whole(self.folder / "config.pbtxt", lambda file: file.write(text.encode()))

    def switch(self, version: int) -> None:
        """Serve this version of the repository, without refusing a request; also the way back.

        If it does not load, or fails its own test (src/serve/triton_model.py), the repository names
        the served one again, which goes on. Raises Refused then.
        """
        before = self.version
        self._choose(version)
        try:
            self.ask("POST", protocol.LOAD)
        except BaseException:
            self._choose(before)
            raise

    def repair(self) -> None:
        """Start all instances anew if one has died: Triton does not bring it back.

        The new ones take over before the old ones go. One that still runs after two seconds is
        killed: beside a dead one, Triton does not end it.
        """
        old = set(self.workers())
        if len(old) == self.instances:
            return
        os.utime(self.folder / str(self.version) / "model.py")  # else nothing is loaded
        self.ask("POST", protocol.LOAD)
        deadline = time.monotonic() + 2
        while left := old & set(self.workers()):
            if time.monotonic() > deadline:
                process_tree.end(left)
            time.sleep(0.02)

    def stop(self) -> None:
        super().stop()
        _remove_regions(self.id)  # of a holder that was killed


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


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def _remove_regions(prefix: str) -> None:
    for region in REGIONS.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)


def remove_stale_regions() -> None:
    """Remove the shared memory of servers of which no process is left."""
    regions = list(REGIONS.glob(f"{PREFIX}*"))  # first: every owner of one runs by now
    commands = " ".join(map(process_tree.command, psutil.pids()))
    for region in regions:
        if region.name[:PREFIX_LENGTH] not in commands:
            with contextlib.suppress(OSError):  # another user's, or just removed
                region.unlink()


def hold(starter: int, prefix: str, command: list[str]) -> None:
    """Run a server until it or the process that started it ends, and see that nothing stays."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    linux.adopt_orphans()
    try:
        starter_ends = os.pidfd_open(starter)
        if os.getppid() == starter:
            # it is killed with this process; its stubs end themselves then
            server = subprocess.Popen(command, preexec_fn=linux.die_with_parent)
            select.select([starter_ends, os.pidfd_open(server.pid)], [], [])
    finally:
        process_tree.end_everything_below()
        _remove_regions(prefix)


if __name__ == "__main__":
    hold(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
