"""torchrun --standalone --nproc-per-node 2 src/snippets/pipeline_sleep.py --schedule 1f1b

A pipeline whose stages sleep instead of computing, as if each rank had a device of its own: so a
machine with few cores shows how long ranks wait. Records its actions as _train_pp.py does.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from bootcamp.train import pipeline_stages

parser = argparse.ArgumentParser()
for flag, settings in pipeline_stages.FLAGS.items():
    parser.add_argument(flag, **settings)
parser.add_argument("--milliseconds", type=float, default=9.0, help="of a rank's forward")
parser.add_argument("--steps", type=int, default=2)
args = parser.parse_args()
args.run_dir = Path(os.environ.get("BOOTCAMP_RUN") or tempfile.mkdtemp())
(args.run_dir / "ranks").mkdir(exist_ok=True)


class Sleep(torch.autograd.Function):
    """Returns its input; sleeps in its forward and in its backward pass."""

    @staticmethod
    def forward(ctx, x, forward_seconds, backward_seconds):
        ctx.backward_seconds = backward_seconds
        time.sleep(forward_seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.backward_seconds)
        return gradient.clone(), None, None


class SleepingStage(torch.nn.Module):
    """A forward pass sleeps `seconds`; so does each half of a backward pass: input and weight."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        if not x.requires_grad:  # the first stage's input: its half sleeps too, as layers would
            x = x + 0 * self.weight
        weight = Sleep.apply(self.weight, 0.0, self.seconds)
        return Sleep.apply(x, self.seconds, self.seconds) * weight


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mine = pipeline_stages.stages_of_rank(args.schedule, rank, world)
last = len(mine) * world - 1
seconds = args.milliseconds / 1e3 / len(mine)
device = torch.device("cpu")
stages = [PipelineStage(SleepingStage(seconds), i, last + 1, device) for i in mine]
pipeline_stages.record_actions(args.run_dir, rank, stages)
schedule_class = get_schedule_class(pipeline_stages.NAMES_IN_TORCH[args.schedule])
whole = stages if len(stages) > 1 else stages[0]
schedule = schedule_class(whole, args.micro_batches, loss_fn=torch.nn.functional.mse_loss)
batch = torch.ones(args.micro_batches, 4)
for _ in range(args.steps):
    dist.barrier()  # a step begins on all ranks at once
    target = {"target": batch} if last in mine else {}
    schedule.step(*([batch] if 0 in mine else []), **target)
dist.destroy_process_group()
