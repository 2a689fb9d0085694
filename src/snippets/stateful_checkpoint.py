"""torchrun --standalone --nproc-per-node 2 src/snippets/stateful_checkpoint.py --place logs/state

A training that saves all of its state with PyTorch's own tools and none of the course's: model and
optimizer by get_state_dict, the data loader's position and each rank's random generator by a class
that DCP asks (Stateful). It begins with what is at --place, if there is something, and saves there
after its last step. --export writes the parameters alone, complete, as safetensors. Prints losses
and samples of its steps.
"""

import argparse
import importlib.util
import json
import os

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--place", help="of the checkpoint; none: neither loaded nor saved")
parser.add_argument("--steps", type=int, default=8, help="of all runs together")
parser.add_argument("--wrap", choices=("fsdp", "ddp"), default="fsdp")
parser.add_argument("--dropout", type=float, default=0.1)
parser.add_argument("--export", help="file for the parameters alone")
args = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
inputs = torch.randn(48, 16, generator=torch.Generator().manual_seed(1))
targets = inputs.roll(1, dims=0).sum(-1, keepdim=True).tanh()


class Loader:
    """Batches of 12 samples, shuffled anew in each epoch; a rank takes its share of each."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(2)
        self.shuffle()

    def shuffle(self):
        self.epochs_generator = self.generator.get_state()
        self.order, self.next = torch.randperm(len(inputs), generator=self.generator), 0

    def batch(self):
        if self.next == len(inputs):
            self.shuffle()
        self.next += 12
        return self.order[self.next - 12 : self.next].chunk(world)[rank]

    def state_dict(self):
        return {"generator": self.epochs_generator, "next": self.next}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])
        self.shuffle()
        self.next = state["next"]


class Training:
    """All that the next step depends on. DCP calls both methods, on every rank."""

    def __init__(self):
        self.step = 0

    def state_dict(self):
        parameters, moments = get_state_dict(model, optimizer)
        state = {"model": parameters, "optimizer": moments, "step": self.step}
        return state | {"loader": loader.state_dict(), f"generator{rank}": torch.get_rng_state()}

    def load_state_dict(self, state):
        parameters, moments = state["model"], state["optimizer"]
        set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=moments)
        self.step = state["step"]
        loader.load_state_dict(state["loader"])
        torch.set_rng_state(state[f"generator{rank}"])


torch.manual_seed(0)
layers = torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Dropout(args.dropout)
model = torch.nn.Sequential(*layers, torch.nn.Linear(32, 1))
if args.wrap == "fsdp":
    model = fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(rank)  # dropout: another pattern on each rank
loader, training = Loader(), Training()
if args.place and os.path.exists(f"{args.place}/.metadata"):
    saved_by_fewer = DefaultLoadPlanner(allow_partial_load=True)  # a new rank keeps its generator
    dcp.load({"training": training}, checkpoint_id=args.place, planner=saved_by_fewer)

losses, samples = [], []
while training.step < args.steps:
    share = loader.batch()
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs[share]), targets[share])
    loss.backward()
    optimizer.step()
    mean = loss.detach() / world
    dist.all_reduce(mean)
    losses.append(mean.item())
    samples.append(share.tolist())
    training.step += 1

if args.place:
    dcp.save({"training": training}, checkpoint_id=args.place)
complete = StateDictOptions(full_state_dict=True, cpu_offload=True)
parameters = get_model_state_dict(model, options=complete)  # on rank 0; every rank has to ask
if args.export and rank == 0 and importlib.util.find_spec("safetensors"):
    from safetensors.torch import save_file

    save_file(parameters, args.export)
total = sum(value.double().sum().item() for value in parameters.values())
print(json.dumps({"rank": rank, "losses": losses, "samples": samples, "sum": total}))
dist.destroy_process_group()
