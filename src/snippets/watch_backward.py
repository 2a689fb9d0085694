"""python src/snippets/watch_backward.py --file src/snippets/amp_from_apex.py

Runs a script's first step and prints, as JSON, what is wrong with how its backward begins: no layer
has computed in fp16, autocast is still on, the loss is not scaled; or nothing, "".
"""

import argparse
import json
import runpy
import sys

import torch

NOT_IN_FP16 = "no layer computes in fp16: autocast, with dtype=torch.float16."
WITHIN_AUTOCAST = "backward() runs within autocast. It needs none: end the block before it."
NOT_SCALED = "backward() begins with the bare loss: GradScaler(device.type) scales it."

parser = argparse.ArgumentParser()
parser.add_argument("--file", required=True)
args = parser.parse_args()
made = set()  # the number formats of layers' outputs
backward = torch.autograd.backward


def watched(tensors, *given, **how):
    """Say what is wrong, and do it."""
    loss = tensors if isinstance(tensors, torch.Tensor) else tensors[0]
    within, value = torch.is_autocast_enabled(loss.device.type), loss.item()
    bare = value < 100  # a loss is about 5, and GradScaler begins with 65,536 times that
    checks = ((torch.float16 not in made, NOT_IN_FP16), (within, WITHIN_AUTOCAST))
    wrong = [text for fault, text in (*checks, (bare, NOT_SCALED)) if fault]
    print(json.dumps({"wrong": wrong[0] if wrong else ""}), flush=True)
    backward(tensors, *given, **how)


def note(layer, given, output):
    """Note an output's number format."""
    made.add(getattr(output, "dtype", None))


torch.autograd.backward = watched
torch.nn.modules.module.register_module_forward_hook(note)
sys.argv = [args.file, "--steps", "1"]
runpy.run_path(args.file, run_name="__main__")
