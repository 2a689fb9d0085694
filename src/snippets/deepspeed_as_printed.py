"""torchrun --standalone --nproc-per-node 2 src/snippets/deepspeed_as_printed.py

DeepSpeed's configuration and loop as tutorials print them: what stops them on CPU ranks, one thing
after the other, and what `optimizer.zero_grad()` changes. Rank 0 prints what came of each. Without
DeepSpeed it prints nothing.
"""

import importlib.util
import json
import os
import sys

import torch

from bootcamp import machine

if machine.is_hidden("deepspeed") or importlib.util.find_spec("deepspeed") is None:
    sys.exit()
os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed  # noqa: E402
from deepspeed.accelerator import get_accelerator  # noqa: E402

PRINTED = {
    "train_batch_size": 32,
    "fp16": {"enabled": True},
    "zero_optimization": {
        "stage": 2,
        "allgather_partitions": True,
        "allgather_bucket_size": 5e8,
        "reduce_scatter": True,
        "reduce_bucket_size": 5e8,
        "overlap_comm": True,
    },
}
STEPS = 4
FLOAT32 = {"fp16": {"enabled": False}}
CAST = {"fp16": {"enabled": True, "auto_cast": True}}
SGD = {"zero_allow_untested_optimizer": True}  # of which DeepSpeed wants to be assured

torch.set_num_threads(1)
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled, for minutes
deepspeed.init_distributed("gloo")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()


def train(changed=None, place="device", widen=False, zero="", parts=1):
    """The last loss, and the engine; zero: where the optimizer's gradients are set to zero."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10))
    settings = {**PRINTED, "gradient_accumulation_steps": parts, **(changed or {})}
    if SGD.keys() <= settings.keys():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    draw = torch.Generator().manual_seed(rank)
    for _ in range(STEPS * parts):
        inputs = torch.randn(32 // world // parts, 8, generator=draw)
        targets = inputs.argmax(dim=1).to(model.device)
        inputs = inputs.to(getattr(model, place))
        if zero == "before backward":
            optimizer.zero_grad()
        outputs = model(inputs)
        loss = torch.nn.functional.cross_entropy(outputs.float() if widen else outputs, targets)
        model.backward(loss)
        if zero == "before step":
            optimizer.zero_grad()
        model.step()
    return loss.item(), model


def attempt(what, changed=None, **more):
    """Print how far it comes, and the last loss's distance from that of float32."""
    row = dict.fromkeys(["changed", "steps", "loss scale", "loss apart", "stopped by"])
    try:
        loss, model = train(changed, **more)
        row |= {"steps": STEPS - model.skipped_steps, "loss scale": model.optimizer.loss_scale}
        row["loss apart"] = abs(loss - train({**(changed or {}), **FLOAT32})[0])
    except (AssertionError, RuntimeError, ValueError) as error:
        row["stopped by"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if rank == 0:
        print(json.dumps(row | {"changed": what}))


attempt("-", place="local_rank")
get_accelerator().is_fp16_supported = lambda: True  # torch computes float16 on any CPU, slowly
attempt("float16 on this CPU", place="local_rank")
attempt("inputs.to(model.device)")
attempt('"auto_cast": True', CAST)
attempt("the loss in float32", CAST, widen=True)
attempt("SGD, untested optimizers allowed", {**CAST, **SGD}, widen=True)

for stage in (1, 2, 3):
    sharded = {**FLOAT32, "zero_optimization": {**PRINTED["zero_optimization"], "stage": stage}}
    row = {"stage": stage}
    for parts in (1, 2):
        ends = {}
        for zero in ("", "before backward", "before step"):
            _, model = train(sharded, zero=zero, parts=parts)
            with deepspeed.zero.GatheredParameters(list(model.parameters())):
                ends[zero] = torch.cat([p.detach().flatten() for p in model.module.parameters()])
        alone = ends.pop("")
        row |= {f"{z}, {parts}": (end - alone).abs().max().item() for z, end in ends.items()}
    if rank == 0:
        print(json.dumps(row))
torch.distributed.destroy_process_group()
