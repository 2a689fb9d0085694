"""torchrun --standalone --nproc-per-node 2 src/snippets/zero_accumulate.py

What ZeRO-1 and ZeRO-2 hold of the gradients in a step of two micro-batches, with DeepSpeed. For
each rank 0 prints the bytes that it holds: looked at whenever the backward pass has another
gradient, and at the end of each of the two passes. Without DeepSpeed it prints nothing.
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

LAYERS, WIDTH, MICRO_BATCHES = 8, 96, 2

torch.set_num_threads(1)
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled, for minutes
deepspeed.init_distributed("gloo")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()


def find_tensors(nested):
    """All tensors in dictionaries and lists of them."""
    if torch.is_tensor(nested):
        return [nested]
    inside = nested.values() if isinstance(nested, dict) else nested or ()
    return [tensor for item in inside for tensor in find_tensors(item)]


def gradient_bytes(model, optimizer):
    """Of the gradients that parameters have, and of what the optimizer has made of them."""
    held = [p.grad for p in model.parameters() if p.grad is not None]
    held += find_tensors([optimizer.all_grad_tensors, optimizer.averaged_gradients])
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in held}
    return sum(storages.values())


def step(stage):
    """Bytes of gradients through one step: as they come in, at the passes' ends, and of all."""
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    settings = {
        "train_batch_size": 4 * world * MICRO_BATCHES,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": WIDTH * WIDTH,  # one layer
            "allgather_bucket_size": WIDTH * WIDTH,
            "overlap_comm": False,
        },
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
    }
    model = torch.nn.Sequential(*layers)
    adamw = torch.optim.AdamW(model.parameters())
    engine, optimizer, *_ = deepspeed.initialize(model=model, optimizer=adamw, config=settings)
    looks, ends = [], []

    def look(_):
        looks.append(gradient_bytes(model, optimizer))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(look)
    for _ in range(MICRO_BATCHES):
        engine.backward(engine(torch.randn(4, WIDTH)).square().mean())
        ends.append(gradient_bytes(model, optimizer))
        engine.step()
    whole = sum(4 * p.numel() for p in model.parameters())
    return {"stage": stage, "whole": whole, "looks": looks, "ends": ends}


for stage in (1, 2):
    seen = step(stage)
    if rank == 0:
        print(json.dumps(seen))
torch.distributed.destroy_process_group()
