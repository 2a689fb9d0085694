"""A Triton model repository: the folder of a model, its versions, and which of them is served.

    gpt/config.pbtxt       the shapes, the batcher, the instances, the version to serve
    gpt/1/model.onnx       the exported model
    gpt/1/model.py         what runs it: a copy of src/_serve_triton.py
    gpt/2/...              the next version

The settings are explained in Triton's documentation, docs/user_guide/model_configuration.md.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from bootcamp import machine
from bootcamp.costs.model_shapes import VOCABULARY
from bootcamp.files import write_whole
from bootcamp.paths import SRC
from bootcamp.serving import triton_site, versions
from bootcamp.serving.protocol import INPUT, OUTPUT

MODEL = SRC / "_serve_triton.py"
CONFIG = """name: "{name}"
backend: "python"
max_batch_size: {max_batch}
input [ {{ name: "{INPUT}" data_type: TYPE_INT64 dims: [ -1 ] }} ]
output [ {{ name: "{OUTPUT}" data_type: TYPE_FP32 dims: [ {VOCABULARY} ] }} ]
instance_group [ {{ {group} }} ]
version_policy: {{ specific: {{ versions: [ {version} ] }} }}
parameters: {{ key: "context" value: {{ string_value: "{context}" }} }}
"""
BATCHING = """dynamic_batching {{
  max_queue_delay_microseconds: {delay}
  default_queue_policy {{ max_queue_size: {queue} }}
}}
"""
SERVED = re.compile(r"(?<=versions: \[ )\d+")


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
    gpus: int | None = None,
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
    gpus: an instance on each of so many GPUs, in place of `instances` on cores. None: on all GPUs
    if the ONNX Runtime of Triton's environment can use them. Not tested on a GPU.
    """
    if gpus is None:
        gpus = len(machine.gpu_names()) if triton_site.runs_on_gpus() else 0
    group = f"kind: KIND_CPU count: {instances}"
    if gpus:
        group = f"kind: KIND_GPU count: 1 gpus: {list(range(gpus))}"
    made = Repository(Path(folder).resolve(), name)
    version = made.publish(model)
    settings = {"delay": round(delay_seconds * 1e6), "context": context, "queue": queue}
    settings |= {"name": name, "version": version, "max_batch": max_batch, "group": group}
    constants = {"INPUT": INPUT, "OUTPUT": OUTPUT, "VOCABULARY": VOCABULARY}
    # with batches of one, the batcher's thread only adds waits of up to half a second
    text = CONFIG + (BATCHING if max_batch > 1 else "")
    _write(made.config, text.format(**settings, **constants))
    return made


def _write(path: Path, text: str) -> None:
    write_whole(path, lambda file: file.write(text.encode()))
