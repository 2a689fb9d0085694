"""python src/snippets/triton_configurations.py [FILE]

A StripedLSTM as TorchScript in two instances of Triton's python backend, one of which stands still
for a while. Then another line for its configuration, and another: who answers, or what is refused?
Prints a line of JSON for each. Needs `make triton`; for rows on GPUs, name a FILE that ends in .pt2
(src/serve/export.py), since a trace makes its tensors on the device where it was made.
"""

import json
import os
import re
import signal
import sys
import tempfile
from argparse import Namespace

import torch

from bootcamp.serving import artifacts, load_test, protocol, triton
from bootcamp.train import models

INSTANCES = "instance_group [ { kind: KIND_CPU count: 2 } ]"
LINES = {  # a line -> the field whose line it replaces
    'backend: "onnxruntime"': "backend",
    'platform: "pytorch_libtorch"': "backend",
    'platform: "tensorflow_savedmodel"': "backend",
    "instance_group [ { kind: KIND_GPU count: 2 } ]": "instance_group",
    "instance_group [ { kind: KIND_GPU gpus: [ 0, 1 ] } ]": "instance_group",
    "instance_groups [ { kind: KIND_CPU } ]": "instance_group",
}


def trace(path):
    """Write a StripedLSTM as TorchScript, and return the eager model as a function of ids."""
    args = Namespace(model="striped-lstm", size="tiny", dtype="float32", seed=0)
    context = models.shape(args)["context"]
    served = models.NextByte(models.build(args), pad_to=context).eval().requires_grad_(False)
    example = torch.zeros(2, context // 2, dtype=torch.int64)
    about = artifacts.ModelInfo(args.model, args.size, context).as_texts()
    settings = {artifacts.SETTINGS: json.dumps(about)}
    traced = torch.jit.trace(served, example, check_trace=False)
    torch.jit.save(traced, path, _extra_files=settings)
    return lambda ids: served(torch.from_numpy(ids)).numpy()


def ask_triton(file, model):
    """Serve a file in a configuration with each of these lines; return line -> Triton's answer."""
    context = artifacts.read_info(file).context
    asked = [one for n in (1, 7, context) for one in load_test.make_requests(model, 10, n)]
    with (
        tempfile.TemporaryDirectory() as place,
        triton.Server(place, file, context=context, max_batch=1) as server,
    ):
        one = server.workers()[0]
        at = {0: lambda: os.kill(one, signal.SIGSTOP), 30: lambda: os.kill(one, signal.SIGCONT)}
        right = count_right(server, asked, at)
        how = f"{server.instances} processes, one stands still while 30 requests are sent"
        answers = {INSTANCES: f"{how}: {right}"}
        for line, field in LINES.items():
            refusal = load(server, line, field)
            # a model that was served before its configuration was refused is served still
            right = count_right(server, asked)
            answers[line] = refusal or f"loaded: {right}"
            assert right.startswith("40 of 40"), right
    return answers


def count_right(server, asked, at=None):
    found = load_test.run_closed_loop(server.url, asked, clients=8, count=40, at=at)
    return f"{len(found.latencies)} of {found.sent} answers are within 1e-5 of the model's"


def load(server, line, field):
    """Ask Triton to load the model with this line in its configuration; return its refusal."""
    file, log = server.folder / "config.pbtxt", read_log(server)
    before = file.read_text()
    others = [each for each in before.splitlines() if not re.match(rf"{field}\b", each)]
    file.write_text("\n".join([*others, line, ""]))
    try:
        server.ask("POST", protocol.LOAD)
        return None
    except protocol.Refused as refused:
        # the parser tells the log alone what it has not understood
        parser = re.findall(r"inference\.ModelConfig: (.*)", read_log(server)[len(log) :])
        sentence = str(refused).rpartition("Invalid argument: ")[2].strip("; \n")
        return ": ".join([sentence, *parser])
    finally:
        file.write_text(before)


def read_log(server):
    return os.pread(server.out.fileno(), 1 << 20, 0).decode(errors="replace")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        file = sys.argv[1] if sys.argv[1:] else f"{place}/lstm.ts"
        model = artifacts.load(file) if sys.argv[1:] else trace(file)
        for line, answer in ask_triton(file, model).items():
            print(json.dumps({"line of config.pbtxt": line, "Triton's answer": answer}))
