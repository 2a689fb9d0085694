"""python src/snippets/stage_costs.py

What each layer of the tiny GPT costs on one CPU core: the bytes that it holds, its time.
"""

import json
import time
from argparse import Namespace

import torch

from bootcamp.train import data, models
from bootcamp.train.memory_usage import Activations

REPEATS = 15  # the fastest counts: other work on the machine only makes it slower

torch.set_num_threads(1)
args = Namespace(model="gpt", size="tiny", seed=0, dtype="float32", global_batch=32)
given, targets = data.Batches(args, rank=0, world=1)(0)
model = models.build(args)
for stage_name, stage in model.named_children():
    forwards, backwards, watch = [], [], Activations(stage)
    for repeat in range(REPEATS):
        stage.zero_grad()
        inputs = given.detach().requires_grad_(given.is_floating_point())
        if repeat == 0:
            watch.start()
        began = time.perf_counter()
        output = stage(inputs)
        if stage_name == "head":
            output = models.loss(output, targets)
        done = time.perf_counter()
        output.sum().backward()
        forwards.append(done - began)
        backwards.append(time.perf_counter() - done)
        if repeat == 0:
            watch.stop()
    given = output.detach()
    row = {
        "stage": stage_name,
        "parameter_bytes": sum(parameter.nbytes for parameter in stage.parameters()),
        "activation_bytes": watch.bytes,
        "forward_seconds": min(forwards),
        "backward_seconds": min(backwards),
    }
    print(json.dumps(row))
