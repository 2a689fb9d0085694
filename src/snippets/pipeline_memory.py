"""torchrun --standalone --nproc-per-node 2 src/snippets/pipeline_memory.py --schedule 1f1b

What each rank of a pipeline holds for its backwards, in bytes, looked at before and after every
action of a schedule's second step. (The first also finds out which shapes the stages send.) Each
rank prints a list of [action, stage, micro-batch, bytes before, bytes after].
"""

import argparse
import json

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from bootcamp.train import models, pipeline_stages
from bootcamp.train.memory_usage import Activations

parser = argparse.ArgumentParser()
for flag, settings in pipeline_stages.FLAGS.items():
    parser.add_argument(flag, **settings)
parser.add_argument("--global-batch", type=int, default=16)
args = parser.parse_args()
args.model, args.size, args.seed, args.dtype = "gpt", "tiny", 0, "float32"

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mine = pipeline_stages.stages_of_rank(args.schedule, rank, world)
parts = pipeline_stages.cut(models.build(args), len(mine) * world)
stages = [PipelineStage(parts[i], i, len(parts), torch.device("cpu")) for i in mine]
whole = stages if len(stages) > 1 else stages[0]
schedule_class = get_schedule_class(pipeline_stages.NAMES_IN_TORCH[args.schedule])
schedule = schedule_class(whole, args.micro_batches, loss_fn=models.loss)
inputs = torch.randint(256, (args.global_batch, models.data_format(args)["context"]))
watch = Activations(pipeline_stages.join(parts[i] for i in mine))
seen = []


def note(method, stage, kinds):
    """The method, which leaves a line for every call."""

    def call(micro_batch, *arguments, **named):
        before = watch._count_living()
        result = method(micro_batch, *arguments, **named)
        kind = kinds[0] if named.get("full_backward", True) else kinds[1]
        seen.append([kind, stage, micro_batch, before, watch._count_living()])
        return result

    return call


for stage in stages:
    for name, kinds in (
        ("forward_one_chunk", "F"),
        ("backward_one_chunk", "BI"),
        ("backward_weight_one_chunk", "W"),
    ):
        setattr(stage, name, note(getattr(stage, name), stage.stage_index, kinds))
given = [inputs] if 0 in mine else []
target = {"target": inputs} if len(parts) - 1 in mine else {}
schedule.step(*given, **target, return_outputs=False)
seen.clear()
with watch:
    schedule.step(*given, **target, return_outputs=False)
print(json.dumps(seen))
dist.destroy_process_group()
