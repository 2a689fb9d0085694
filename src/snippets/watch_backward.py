"""python src/snippets/watch_backward.py --file src/snippets/amp_from_apex.py

Runs two steps of a script in mixed precision, the first one with infinite gradients, and prints, as
JSON, what is wrong: no layer computes in fp16, autocast is on in the backward, the loss is not
scaled, the first step is made; or nothing, "".
"""

import argparse
import json
import math
import runpy
import sys

import torch

NOT_IN_FP16 = "no layer computes in fp16: autocast, with dtype=torch.float16."
WITHIN_AUTOCAST = "backward() runs within autocast. It needs none: end the block before it."
NOT_SCALED = "backward() begins with the bare loss: GradScaler(device.type) scales it."
NOT_LEFT_OUT = "a step with infinite gradients is made: scaler.step(optimizer) leaves it out."

parser = argparse.ArgumentParser()
parser.add_argument("--file", required=True)
args = parser.parse_args()
made = set()  # the number formats of layers' outputs
begun = []  # for each backward: whether autocast is on, and what it begins with
backward = torch.autograd.backward


def watched(tensors, *given, **how):
    """Make the first backward's gradients infinite; say at the second what is wrong."""
    losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    begun.append((torch.is_autocast_enabled(losses[0].device.type), losses[0].item()))
    if len(begun) == 1:
        losses = [loss * math.inf for loss in losses]
    elif len(begun) == 2:
        (within, scaled), (_, later) = begun
        checks = {
            NOT_IN_FP16: torch.float16 not in made,
            WITHIN_AUTOCAST: within,
            NOT_SCALED: scaled < 100,  # a loss is about 5, GradScaler begins with 65,536 times that
            NOT_LEFT_OUT: not math.isfinite(later),
        }
        print(json.dumps({"wrong": next((text for text in checks if checks[text]), "")}))
    backward(losses, *given, **how)


def note(layer, given, output):
    """Note an output's number format."""
    made.add(getattr(output, "dtype", None))


torch.autograd.backward = watched
torch.nn.modules.module.register_module_forward_hook(note)
sys.argv = [args.file, "--steps", "2", "--model", "mlp"]
runpy.run_path(args.file, run_name="__main__")
