"""Why each line of a training script is there: `reasons.why("ddp", line)`.

Every code line that a script adds to its parent has one sentence here, and so has every line of the
baseline. A line that a script shares with an ancestor has the ancestor's reason. The sentences say
what a line is for, the lessons explain it. Tests find lines without a reason, and reasons whose
line is gone. Standard library only.
"""

from pathlib import Path

from bootcamp.scripts import family

# [script], then each line without its indent and comment, its reason indented below it
WRITTEN = r"""
[cpu]
from bootcamp.train import checkpoint, config, data, models, optimizers, record
    The course's helpers: flags, data, models, records; they hide nothing of the strategy.
args, context = config.parse(devices=("cpu",))
    The flags, and what follows from them on this machine; this script trains on the CPU only.
rank, world = 0, 1
    One process: it is rank 0 of a world of 1.
model = models.build(args)
    Builds the model on the CPU; the seed decides its parameters, so all runs begin alike.
batches = data.Batches(args, rank, world)
    Deals out this rank's share of every global batch.
optimizer = optimizers.build(args, model.parameters())
    Gets the parameters that it shall change, so it comes after all that is done to the model.
first = checkpoint.load(context, model, optimizer)
    The step to begin with: 0, or where a checkpoint named by `--resume` ended.
run = record.Run(context, model, optimizer, batches, world)
    Takes down what this rank does, and changes nothing of it.
for step in range(first, args.steps):
    One round is one optimizer step.
inputs, targets = batches(step)
    This rank's samples; the global batch depends on the seed and the step alone.
optimizer.zero_grad()
    Clears the last step's gradients, since the backward adds to what is there.
loss = models.loss(model(inputs), targets)
    Forward: predictions, and their mean loss over the samples that went in.
loss.backward()
    Backward: computes a gradient for each parameter and adds it to the one that is there.
optimizer.step()
    Changes each parameter a little against its gradient.
with run.step(step):
    The record's clock runs for this block: the seconds of a step are those of the training alone.
run.loss(loss.detach())
    Hands the loss to the record; `detach` leaves behind what belongs to the backward.
checkpoint.save(context, step, model, optimizer)
    Writes a checkpoint from time to time, if `--save` asks for it.
run.finish()
    Writes this rank's record, and on rank 0 the run's summary.

[gpu]
import torch
    The script now says itself which device it means.
args, context = config.parse()
    Any device may be asked for: `auto`, the default, takes a GPU for each rank if there is one.
device = torch.device(context.device)
    The device of this rank: its GPU, or the CPU.
model = models.build(args).to(device)
    Moves the parameters to the device, before the optimizer is given them.
inputs, targets = (tensor.to(device) for tensor in batches(step))
    Moves the batch to where the model is: an operation needs its tensors on one device.

[amp]
FLAGS = {"--autocast": {"default": "bfloat16", "choices": ("bfloat16", "float16")}}
    The two 16-bit formats: bf16 has float32's range, fp16 has finer steps and a small range.
args, context = config.parse(own_flags=FLAGS)
    A flag chooses the format.
scaler = torch.amp.GradScaler(device.type, enabled=args.autocast == "float16")
    Keeps small gradients from becoming 0 in fp16; with bf16 it is off and passes all on.
first = checkpoint.load(context, model, optimizer, scaler=scaler)
    The scale is part of the training's state, so it is loaded too.
with torch.autocast(device.type, dtype=getattr(torch, args.autocast)):
    Within it matrix products run in 16 bits, while norms, softmax and loss stay in float32.
loss = models.loss(model(inputs), targets)
    The forward stands within autocast; the backward, outside, uses the same formats by itself.
scaler.scale(loss).backward()
    Multiplies the loss by the scale, and so every gradient, lest fp16 rounds them to 0.
scaler.step(optimizer)
    Divides the gradients by the scale; if one is infinite or no number, it leaves the step out.
scaler.update()
    Makes the scale smaller after a step that was left out, and larger after many good ones.
checkpoint.save(context, step, model, optimizer, scaler=scaler)
    Saves the scale with the rest.

[checkpoint]
from functools import partial
    Fills in some of a function's arguments.
from torch.utils.checkpoint import checkpoint as recompute
    Runs a function without keeping its activations, and again in the backward.
from torch.utils.checkpoint import create_selective_checkpoint_contexts, noop_context_fn
    They say which results are kept nevertheless.
MATRIX_PRODUCTS = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
    PyTorch's own names of a matrix product, without and with a bias.
KEEP = {
    The two ways to choose from.
"inputs": noop_context_fn,
    Keeps nothing but a block's input.
"products": partial(create_selective_checkpoint_contexts, MATRIX_PRODUCTS),
    Keeps the results of the matrix products too: they are what costs time to compute again.
args, context = config.parse(own_flags={"--keep": {"default": "inputs", "choices": KEEP}})
    A flag chooses what is kept.
for block in model[1:-1]:
    Every block; the embedding and the head stay as they are.
block.forward = partial(
    The block's forward becomes one that keeps less; nobody who calls it has to know.
recompute, block.forward, use_reentrant=False, context_fn=KEEP[args.keep]
    The old forward runs inside, once now and once in the backward; False is torch's newer way.

[accumulate]
args, context = config.parse(own_flags={"--micro-batches": {"type": int, "default": 4}})
    A flag says into how many parts the batch is cut.
mean_loss = torch.zeros((), device=device, dtype=getattr(torch, args.dtype))
    Will add up the parts' losses, for the record.
parts = zip(*(whole.chunk(args.micro_batches) for whole in (inputs, targets)), strict=True)
    Cuts inputs and targets into the same parts.
for part_inputs, part_targets in parts:
    One part after another: only one part's activations are alive at a time.
loss = models.loss(model(part_inputs), part_targets) * len(part_inputs) / len(inputs)
    The part's mean loss, counted with its share of the samples: so the parts add up to the mean.
loss.backward()
    Adds this part's gradients to those of the parts before it.
mean_loss += loss.detach()
    Adds the loss without what belongs to its backward, so that it can be freed.
run.loss(mean_loss)
    Records the mean over the whole batch, not the loss of the last part.

[dp]
from torch.nn import DataParallel
    PyTorch's data parallelism by threads in one process.
args, context = config.parse(devices=("cuda",) if torch.cuda.is_available() else ("cpu",))
    It splits over GPUs only, so it asks for them wherever there are some.
model = DataParallel(model)
    From now on a forward scatters the batch, copies the model to each GPU and gathers the outputs.
if len(model.device_ids) < 2:
    With fewer than two GPUs it silently does nothing, so the script asks.
print("DataParallel found fewer than two GPUs: it runs the bare model and splits nothing.")
    Says aloud what the library keeps to itself.

[dp_by_hand]
import copy
    For copies of the model.
from concurrent.futures import ThreadPoolExecutor
    A pool of threads that take work.
from torch.profiler import record_function
    Gives a piece of the step a name in the profiler's trace.
FLAGS = {"--replicas": {"type": int, "default": 2}}
    The one flag of this script.
args, context = config.parse(devices=("cpu",), own_flags=FLAGS)
    A flag says how many replicas there are; they compute on CPU cores.
torch.set_num_threads(1)
    One core for each operation: the replicas' threads are what runs in parallel.
threads = ThreadPoolExecutor(args.replicas)
    One thread for each replica.
with record_function("scatter"):
    Names the phase that cuts the batch.
shards = inputs.chunk(args.replicas)
    A share of the inputs for each replica; the targets stay where the loss is computed.
with record_function("replicate"):
    Names the phase that copies the model.
replicas = [copy.deepcopy(model) for _ in shards]
    Copies the whole model for each share, in every step anew.
with record_function("parallel forward"):
    Names the phase in which the replicas compute.
outputs = list(threads.map(lambda replica, shard: replica(shard), replicas, shards))
    Each replica computes its share in a thread; `list` waits for all of them.
with record_function("gather"):
    Names the phase that puts the outputs together.
loss = models.loss(torch.cat(outputs), targets)
    One loss over the whole batch, as in one process.
with record_function("backward"):
    Names the backward.
loss.backward()
    Goes back through all replicas; each gets the gradients of its own share.
with record_function("reduce"):
    Names the phase that adds up the gradients.
same = zip(*(m.parameters() for m in [model, *replicas]), strict=True)
    The same parameter of the model and of each replica, one after another.
for parameter, *copies in same:
    Each parameter of the model, together with its copies in the replicas.
parameter.grad = sum(replica.grad for replica in copies)
    A sum, not a mean: the loss is a mean over the whole batch, and these are the parts of it.

[ddp]
import torch.distributed as dist
    Process groups and collectives.
from torch.nn.parallel import DistributedDataParallel
    PyTorch's data parallelism over processes.
dist.init_process_group(context.backend, timeout=context.timeout)
    Waits until all ranks have come; `timeout` is how long a collective may wait for one of them.
rank, world = dist.get_rank(), dist.get_world_size()
    Which rank this is, and of how many.
model = DistributedDataParallel(model)
    Gives all ranks rank 0's parameters, and averages the gradients within every backward.
mean_loss = loss.detach() / world
    This rank's part of the mean over the global batch.
run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    Adds up the ranks' parts for the record while training goes on: the handle says when it is done.
dist.destroy_process_group()
    Leaves the group when all is done.

[ddp_by_hand]
import torch.distributed as dist
    Process groups and collectives.
dist.init_process_group(context.backend, timeout=context.timeout)
    Waits until all ranks have come; `timeout` is how long a collective may wait for one of them.
rank, world = dist.get_rank(), dist.get_world_size()
    Which rank this is, and of how many.
for parameter in model.parameters():
    All parameters, one after another, in the same order on every rank.
dist.broadcast(parameter.data, src=0)
    Gives all ranks rank 0's parameters, so that they begin alike.
dist.all_reduce(parameter.grad)
    Adds up the gradients of all ranks; every rank gets the sum.
parameter.grad /= world
    Makes the sum a mean, which is the gradient of the mean over the global batch.
mean_loss = loss.detach() / world
    This rank's part of the mean over the global batch.
run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    Adds up the ranks' parts for the record while training goes on: the handle says when it is done.
dist.destroy_process_group()
    Leaves the group when all is done.

[ddp_options]
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    PyTorch's simple hooks: they average a bucket as it is, or in 16 bits.
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
    PowerSGD: two thin matrices travel in place of a gradient.
def bf16_compress(state, bucket):
    A hook gets a bucket of gradients and returns a future of their average.
half = bucket.buffer().bfloat16() / dist.get_world_size()
    Halves the bytes, and divides first, so that the sum is a mean.
summed = dist.all_reduce(half, async_op=True).get_future()
    Starts the all-reduce and goes on: the backward need not wait for it.
return summed.then(lambda done: bucket.buffer().copy_(done.value()[0]))
    When the sum is there it goes back into the bucket, in the bucket's own format.
HOOKS = {
    The forms in which gradients may travel.
"none": default_hooks.allreduce_hook,
    As they are: what DDP does without a hook.
"fp16": default_hooks.fp16_compress_hook,
    In fp16: half the bytes.
"bf16": bf16_compress,
    In bf16, by the function above.
"powersgd": powerSGD_hook,
    As an approximation of low rank.
args, context = config.parse(
    The options as flags of this script.
own_flags={
    Each flag with its default.
"--hook": {"default": "none", "choices": HOOKS},
    The form in which gradients travel.
"--powersgd-rank": {"type": int, "default": 1},
    The rank of PowerSGD's approximation: higher is closer, and more bytes.
"--bucket-mb": {"type": float, "default": 25.0},
    The size at which a bucket is full; 25 is DDP's own default.
"--bucket-view": {"action": "store_true"},
    Whether gradients lie in the buckets rather than being copied into them.
"--static-graph": {"action": "store_true"},
    Whether every step uses the same parameters in the same way.
model = DistributedDataParallel(
    Wraps the model as before, now with options.
model,
    The model that is wrapped.
bucket_cap_mb=args.bucket_mb,
    Small buckets leave early and cost more calls, large ones the other way round.
gradient_as_bucket_view=args.bucket_view,
    Saves a copy of all gradients where it is set.
static_graph=args.static_graph,
    A promise by which DDP may plan ahead.
powersgd = PowerSGDState(None, args.powersgd_rank, start_powerSGD_iter=2)
    What PowerSGD remembers from step to step; the first two steps are averaged plainly.
model.register_comm_hook(powersgd if args.hook == "powersgd" else None, HOOKS[args.hook])
    DDP calls the hook for each full bucket, in place of its own all-reduce.

[ddp_sync_batchnorm]
from torch.distributed.nn.functional import all_reduce
    An all-reduce through which gradients flow: its backward is an all-reduce too.
class SyncBatchNorm(torch.nn.BatchNorm2d):
    BatchNorm with its parameters and buffers, and another forward.
def forward(self, x):
    Gets this rank's share: (batch, channels, height, width).
count = dist.get_world_size() * x.numel() / x.shape[1]
    How many values a channel has on all ranks together.
mean = all_reduce(x.sum((0, 2, 3), keepdim=True)) / count
    Each channel's mean over the global batch, from the sums of all ranks.
centred = x - mean
    This rank's values around the mean of all.
variance = all_reduce(centred.square().sum((0, 2, 3), keepdim=True)) / count
    Each channel's variance over the global batch.
scale = self.weight.view(mean.shape) * (variance + self.eps).rsqrt()
    The learnt weight over the standard deviation; eps keeps it from a division by 0.
with torch.no_grad():
    The running statistics are no part of the gradient.
self.running_mean.lerp_(mean.flatten(), self.momentum)
    The running mean moves a little towards this batch's.
self.running_var.lerp_(variance.flatten() * count / (count - 1), self.momentum)
    So does the variance, with the correction for a sample that BatchNorm makes too.
return centred * scale + self.bias.view(mean.shape)
    What BatchNorm returns, with the statistics of all ranks.
for module in model.modules():
    Looks through all layers of the model.
if type(module) is torch.nn.BatchNorm2d:
    Takes the plain BatchNorm layers only.
module.__class__ = SyncBatchNorm
    The layer keeps its parameters and gets the other forward.

[local_sgd]
args, context = config.parse(own_flags={"--average-every": {"type": int, "default": 4}})
    A flag says how many steps each rank trains alone.
if (step + 1) % args.average_every == 0:
    Only after that many steps are all ranks' parameters the same.
for parameter in model.parameters():
    All parameters, in the same order on every rank.
dist.all_reduce(parameter.data)
    Adds up the parameters themselves, after the optimizer's step: no gradient travels.
parameter.data /= world
    Makes the sum a mean.
checkpoint.save(context, step, model, optimizer)
    Saves at these moments only: between them rank 0's parameters are nobody else's.

[horovod]
from functools import partial
    A function with its argument, for the record to call.
import horovod.torch as hvd
    Horovod in place of torch.distributed.
args, context = config.parse(devices=("auto", "cpu", "cuda") if hvd.nccl_built() else ("cpu",))
    A Horovod that was built without NCCL takes no tensors on GPUs.
hvd.init()
    Joins the ranks that horovodrun has started; there is no back end or time-out to give.
rank, world = hvd.rank(), hvd.size()
    The same two numbers, from Horovod.
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    Averages the gradients: the optimizer is wrapped here, not the model.
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    Gives all ranks rank 0's parameters; DDP does it by itself, here it is your line.
if optimizer.state:
    A new optimizer has no state, and to make some Horovod would take a step.
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    After a checkpoint was loaded, all ranks get rank 0's state.
mean_loss = loss.detach()
    This rank's loss, without what belongs to the backward.
average = hvd.allreduce_async_(mean_loss, name="mean_loss")
    Begins to put the mean over all ranks in its place: Horovod's allreduce divides by itself.
run.loss(mean_loss, partial(hvd.synchronize, average))
    Records the loss of the global batch, once the all-reduce is done.
hvd.shutdown()
    Leaves Horovod when all is done.

[lightning]
import lightning
    The framework whose Trainer owns the loop.
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
    Reads the environment variables that torchrun sets.
from torch.utils.data import DataLoader
    The Trainer wants its batches from one.
from bootcamp.train import checkpoint, config, data, environment, models, optimizers, record
    `environment` too: it knows how many ranks are on this host.
class Training(lightning.LightningModule):
    What stands in the other scripts' loop, as methods that the Trainer calls.
def __init__(self):
    Runs when the object is made.
super().__init__()
    Lightning prepares the object.
self.model = model
    As an attribute, so that the Trainer finds the parameters.
def configure_optimizers(self):
    The Trainer asks for the optimizer.
return optimizer
    The same one as in the other scripts.
def training_step(self, batch, _):
    The Trainer asks for the loss of one batch; moving it, backward and step are the Trainer's.
inputs, targets = batch
    On the device already.
return models.loss(self.model(inputs), targets)
    The forward and the loss, as ever.
def on_train_start(self):
    Called once, before the first batch.
self.run = record.Run(context, model, optimizer, batches, world)
    The record, begun when all is wrapped and in its place.
def on_train_batch_end(self, outputs, _, index):
    Called after each optimizer step.
self.run.begin_step(first)
    The clock of the first step runs.
self.run.end_step()
    The step's clock stops: what follows is no training.
self.run.loss(trainer.strategy.reduce(outputs["loss"]))
    The mean of the ranks' losses, for the record.
self.run.begin_step(first + index + 1)
    The next step's clock runs; the Trainer counts from 0 after a restart, too.
checkpoint.save(context, first + index, model, optimizer)
    The course's own checkpoint: `barebones` has switched Lightning's off.
args, context = config.parse(own_flags={"--strategy": {"default": "ddp"}})
    A flag names Lightning's strategy.
trainer = lightning.Trainer(
    Owns processes, wrapping and loop.
accelerator=device.type,
    CPU or GPU.
devices=environment.local_count(),
    As many as there are ranks on this host.
strategy=args.strategy,
    How the model is wrapped: `ddp` is the same DistributedDataParallel.
plugins=TorchElasticEnvironment(),
    Torchrun has started the ranks, so Lightning shall start none.
max_epochs=1,
    The step count decides the end.
barebones=True,
    Without logging, checkpoints, progress bar and checks.
use_distributed_sampler=False,
    Our batches are shared out already; else Lightning would do it again.
rank, world = trainer.global_rank, trainer.world_size
    The same two numbers, from the Trainer.
training = Training()
    The object that the Trainer calls.
trainer.fit(training, DataLoader(batches, batch_size=None, sampler=range(first, args.steps)))
    Runs the whole loop; the loader asks `batches` for one step after another.
training.run.finish()
    Writes this rank's record, and on rank 0 the run's summary.

[accelerate]
from accelerate import Accelerator
    The one object of the framework.
accelerator = Accelerator(cpu=device.type == "cpu")
    Joins the process group, as torchrun's environment variables say.
rank, world = accelerator.process_index, accelerator.num_processes
    The same two numbers, from Accelerate.
model = accelerator.prepare(model)
    Wraps the model in DDP.
optimizer = accelerator.prepare(optimizer)
    Wraps the optimizer too, for mixed precision and accumulation.
accelerator.backward(loss)
    `loss.backward()` here; with fp16 it would scale the loss as well.
run.loss(accelerator.reduce(loss.detach(), reduction="mean"))
    The mean of the ranks' losses, for the record.
accelerator.end_training()
    Leaves the process group when all is done.

[mp]
args, context = config.parse(devices_per_rank=2, mixed_devices=True)
    Asks for two devices: two GPUs, a GPU and the CPU, or twice the CPU.
device, second_device = (torch.device(name) for name in context.devices)
    One for the first half of the model, one for the second.
model = models.build(args)
    Stays on the CPU for a moment, since its halves go to different places.
half = len(model) // 2
    Where the sequence of stages is cut.
model[:half].to(device)
    A slice holds the same layers, so this moves the model's own first half.
model[half:].to(second_device)
    And this its second half.
model[half].register_forward_pre_hook(lambda stage, inputs: inputs[0].to(second_device))
    Before the first stage behind the cut, the activations move; autograd moves gradients back.
loss = models.loss(model(inputs), targets.to(second_device))
    The outputs come from the second device, so the targets go there.

[ddp_mp]
import torch.distributed as dist
    Process groups and collectives.
from torch.nn.parallel import DistributedDataParallel
    PyTorch's data parallelism over processes.
args, context = config.parse(devices_per_rank=2)
    Two devices for each rank, of one kind: DDP refuses a model on two kinds.
dist.init_process_group(context.backend, timeout=context.timeout)
    Waits until all ranks have come; `timeout` is how long a collective may wait for one of them.
rank, world = dist.get_rank(), dist.get_world_size()
    Which rank this is, and of how many.
model = DistributedDataParallel(model, device_ids=None)
    None, because the model has two devices and moves its inputs itself.
mean_loss = loss.detach() / world
    This rank's part of the mean over the global batch.
run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))
    Adds up the ranks' parts for the record while training goes on: the handle says when it is done.
dist.destroy_process_group()
    Leaves the group when all is done.

[pp]
from torch.distributed.pipelining import PipelineStage
    A part of the model that knows its neighbours.
from torch.distributed.pipelining.schedules import get_schedule_class
    The orders of forwards and backwards, by name.
from bootcamp.train import checkpoint, config, data, models, optimizers, pipeline_stages, record
    `pipeline` too: which stages a rank takes, and how the sequence is cut.
args, context = config.parse(own_flags=pipeline_stages.FLAGS, mesh=("pipeline",))
    Flags for schedule and micro-batches; all ranks stand in one pipeline.
pipeline_stages.check(context)
    Refuses numbers that the schedule can't do, before anything is built.
mine = pipeline_stages.stages_of_rank(args.schedule, rank, world)
    The numbers of the stages that the schedule gives this rank: one, or two.
count = len(mine) * world
    How many stages there are on all ranks.
parts = pipeline_stages.cut(models.build(args), count)
    Builds the whole model and cuts it into consecutive parts.
stages = [PipelineStage(parts[i].to(device), i, count, device) for i in mine]
    Number and count tell a stage from whom it receives and to whom it sends.
model = pipeline_stages.join(parts[i] for i in mine)
    What this rank holds, as one module for the optimizer and the record.
del parts
    Frees the stages of the other ranks.
first_here, last_here = 0 in mine, count - 1 in mine
    Whether this rank reads the inputs, and whether it has the loss.
batches = data.Batches(args, 0, 1)
    All ranks draw the same batch: one pipeline trains it together.
pipeline_stages.record_actions(context.run_dir, rank, stages)
    Writes down every forward and backward, for the lesson's pictures.
zero = next(model.parameters()).new_zeros(())
    What ranks without the last stage add to the loss.
schedule_class = get_schedule_class(pipeline_stages.SCHEDULES[args.schedule].name_in_torch)
    The schedule by the name that PyTorch has for it.
whole = stages if pipeline_stages.SCHEDULES[args.schedule].chunks > 1 else stages[0]
    Schedules with several stages on a rank want a list, the others the one stage.
schedule = schedule_class(whole, args.micro_batches, loss_fn=models.loss)
    Will cut the batch and compute the loss where the last stage is.
given, losses = (inputs,) if first_here else (), []
    Only the first stage reads inputs; the losses of the micro-batches come into the list.
if last_here:
    Only the last stage needs the targets.
schedule.step(*given, target=targets, losses=losses, return_outputs=False)
    All forwards and backwards of the step, in the schedule's order; outputs are thrown away.
else:
    The ranks before the last stage.
schedule.step(*given)
    The same step where there is no loss: it computes, sends and receives.
mean_loss = sum(losses, zero).detach() / args.micro_batches
    The mean over the micro-batches; 0 on ranks without the last stage.

[ddp_pp]
from torch.distributed.device_mesh import init_device_mesh
    Lays the ranks out along named axes.
args, context = config.parse(own_flags=pipeline_stages.FLAGS, mesh=("data", "pipeline"))
    Two axes: `--mesh 2x2` is two pipelines of two ranks.
mesh = init_device_mesh(device.type, context.mesh, mesh_dim_names=context.axes)
    Makes a process group for each row and each column.
copies, pipe = mesh["data"], mesh["pipeline"]
    Those with the same stages in the other pipelines, and those of this pipeline.
mine = pipeline_stages.stages_of_rank(args.schedule, pipe.get_local_rank(), pipe.size())
    The place within this pipeline counts, not the rank among all.
count = len(mine) * pipe.size()
    How many stages one pipeline has.
stages = [
    As before, but within one pipeline.
PipelineStage(parts[i].to(device), i, count, device, group=pipe.get_group()) for i in mine
    The group says who the neighbours are: without it all ranks would be one pipeline.
batches = data.Batches(args, copies.get_local_rank(), copies.size())
    One share of the batch for each pipeline.
for parameter in model.parameters():
    After the schedule's step, when the gradients of all micro-batches are in.
dist.all_reduce(parameter.grad, group=copies.get_group())
    Adds up the gradients of the same stages in all pipelines.
parameter.grad /= copies.size()
    Makes the sum a mean over the pipelines.
mean_loss /= copies.size()
    Each pipeline's loss counts with its share of the global batch.

[tp]
from torch.distributed.device_mesh import init_device_mesh
    Lays the ranks out along named axes.
from torch.distributed.tensor import Replicate, Shard
    Layouts: the whole on every rank, or a part of one dimension on each.
from torch.distributed.tensor.parallel import (
    What a plan is made of.
ColwiseParallel,
    Splits a matrix by columns: each rank computes some of the outputs.
PrepareModuleInput,
    Changes the layout of a module's input.
PrepareModuleOutput,
    Changes the layout of a module's output.
RowwiseParallel,
    Splits a matrix by rows: each rank computes a part of the sum.
SequenceParallel,
    Lets a norm work on a part of the text.
loss_parallel,
    Computes the loss from split scores.
parallelize_module,
    Carries out a plan on a module.
from bootcamp.train import checkpoint, config, data, models, optimizers, record, tensor_flags
    `tensor` too: this script's flag, and what it asks of the others.
args, context = config.parse(own_flags=tensor_flags.FLAGS, mesh=("tensor",))
    A flag for sequence parallelism; all ranks stand along one axis and train the same samples.
tensor_flags.check(context)
    Refuses a model whose heads do not divide over the ranks.
mesh = init_device_mesh(device.type, context.mesh, mesh_dim_names=context.axes)
    Makes a process group for each axis of the mesh, by name.
between = Shard(1) if args.sequence_parallel else Replicate()
    How activations lie between the split parts: whole on each rank, or the text in parts.
plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
    Split by columns: each rank gets some of the heads.
plan["attention"] = PrepareModuleInput(input_layouts=between, desired_input_layouts=Replicate())
    Every head needs the whole text, so the attention's input is gathered if it lies in parts.
plan["attention.out"] = RowwiseParallel(output_layouts=between)
    Split by rows: takes the heads as they lie, and adds up the ranks' parts of the sum.
plan["up"] = ColwiseParallel(input_layouts=between)
    The MLP's first matrix by columns.
plan["down"] = RowwiseParallel(output_layouts=between)
    Its second by rows, so nothing has to travel between the two.
scores = {"output_layouts": Shard(-1), "use_local_output": False}
    The scores stay split over the vocabulary, as DTensors that know it.
around = {"head.scores": ColwiseParallel(input_layouts=between, **scores)}
    The head by columns: each rank scores some of the byte values.
if args.sequence_parallel:
    Only where the text is split between the blocks.
plan |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}
    The blocks' norms work on their part of the text.
around["embedding"] = PrepareModuleOutput(
    All ranks compute the whole embedding, so its output is cut behind it.
output_layouts=Replicate(), desired_output_layouts=Shard(1)
    From the whole text on each rank to its part of it: dimension 1 is the text.
around["head.norm"] = SequenceParallel()
    So does the norm of the head.
for block in model[1:-1]:
    Every block; the embedding and the head come below.
parallelize_module(block, mesh["tensor"], plan)
    Splits this block's matrices as planned; PyTorch then calls the collectives.
parallelize_module(model, mesh["tensor"], around)
    The same for embedding and head.
batches = data.Batches(args, 0, 1)
    All ranks draw the same batch: they train one model together.
with loss_parallel():
    The loss from split scores: only maxima, sums and the targets' scores travel.
loss = models.loss(model(inputs), targets)
    The forward and the loss, as ever; within `loss_parallel` nobody gathers the scores.
loss.backward()
    Stands within it too, since the backward of a split loss is its own.
run.loss(loss.detach().full_tensor())
    All ranks have the same loss; `full_tensor` makes a plain tensor of it.

[fsdp_tp]
from torch.distributed.fsdp import fully_shard
    PyTorch's sharding of parameters, FSDP2.
args, context = config.parse(own_flags=tensor_flags.FLAGS, mesh=("data", "tensor"))
    Two axes: `--mesh 2x2` is two rows of two ranks.
row, rows = mesh["data"].get_local_rank(), mesh["data"].size()
    Which row this rank stands in, and of how many.
fully_shard(block, mesh=mesh["data"])
    What tensor parallelism has split is sharded over the rows too, and gathered before use.
fully_shard(model, mesh=mesh["data"])
    The same for what is in no block: embedding and head.
batches = data.Batches(args, row, rows)
    The ranks of a row train one share of the batch, together.
mean_loss = loss.detach().full_tensor() / rows
    This row's part of the mean over the global batch.
reduced = dist.all_reduce(mean_loss, group=mesh["data"].get_group(), async_op=True)
    Adds up the rows' parts of the loss, for the record, while training goes on.
run.loss(mean_loss, reduced)
    Records the loss of the global batch rather than that of one row's share.

[zero1]
from torch.distributed.optim import ZeroRedundancyOptimizer
    PyTorch's optimizer with sharded state.
kind, settings = optimizers.choose(args)
    The optimizer's class and settings, not an optimizer: each rank builds one over its share.
optimizer = ZeroRedundancyOptimizer(model.parameters(), kind, **settings)
    Each rank keeps the state of some tensors, updates these, and sends them to the others.

[fsdp]
from torch.distributed.device_mesh import init_device_mesh
    Lays the ranks out along axes.
from torch.distributed.fsdp import fully_shard
    PyTorch's sharding of parameters, FSDP2.
from bootcamp.train import checkpoint, config, data, models, optimizers, record, sharding_flags
    `sharding` too: the flags of the sharded scripts.
args, context = config.parse(own_flags=sharding_flags.FLAGS)
    A flag asks whether gathered parameters are kept until the backward.
mesh = init_device_mesh(device.type, (world,))
    One axis: parameters are sharded over all ranks.
for block in model[1:-1]:
    What one call shards is gathered together, and a block is a good size for that.
fully_shard(block, mesh=mesh, reshard_after_forward=not args.keep_gathered)
    Gathers the block's parameters before use, frees them after, reduce-scatters their gradients.
fully_shard(model, mesh=mesh, reshard_after_forward=not args.keep_gathered)
    The same for what is in no block: embedding and head.

[hsdp]
args, context = config.parse(own_flags=sharding_flags.HYBRID_FLAGS)
    One more flag: how many ranks share one copy of the model.
sharding_flags.check(args)
    Refuses a number that the ranks do not divide by.
shape = (world // args.shard, args.shard)
    Rows of that many ranks; as launchers number ranks host by host, a row can be a host.
mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
    Two axes make FSDP hybrid: it shards over the second and has a copy for each of the first.

[zero]
import os
    For an environment variable.
from bootcamp.train import checkpoint, config, data, models, optimizers, record, sharding_flags
    `sharding` too: the flags of the sharded scripts.
args, context = config.parse(devices=("auto", "cpu", "cuda"), own_flags=sharding_flags.STAGE_FLAGS)
    A flag gives the stage, which is what is sharded; `meta`, the rehearsal, is not among devices.
os.environ["DS_ACCELERATOR"] = device.type
    Else DeepSpeed takes a GPU wherever there is one.
import deepspeed
    Only here, because it reads that variable when it is imported.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    Keeps it from compiling an extension for CPU ranks, which would take minutes.
deepspeed.init_distributed(context.backend, timeout=context.timeout)
    Joins the process group, of torch.distributed here too.
settings = {
    DeepSpeed's configuration, which is often a file.
"train_batch_size": args.global_batch,
    Samples in a step, all ranks together.
"zero_optimization": {
    How states are sharded.
"stage": args.stage,
    1: optimizer state; 2: gradients too; 3: parameters too.
"reduce_bucket_size": 2**20,
    Elements that are reduced at once.
"allgather_bucket_size": 2**20,
    Elements that are gathered at once.
"overlap_comm": False,
    Whether gradients are reduced while the backward goes on: not here.
"stage3_param_persistence_threshold": 0,
    Stage 3 would leave small parameters whole: shard them too.
"gradient_clipping": 0.0,
    Left out, gradients would be clipped to a norm of 1, which is another training.
"zero_allow_untested_optimizer": True,
    The optimizer is PyTorch's, which DeepSpeed asks to have confirmed.
model, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    Wraps both into an engine, which owns backward, reduction, step and zeroing of gradients.
model.backward(loss)
    The engine's backward, which also averages the gradients over the ranks.
model.step()
    The engine's step: it updates what this rank owns, and sets gradients to zero.

[megatron]
from functools import partial
    Fills in some of a function's arguments.
from megatron.core import ModelParallelConfig, parallel_state
    Megatron's settings and process groups.
from megatron.core.tensor_parallel import (
    Its layers, and what goes around them.
ColumnParallelLinear,
    A linear layer split by columns.
RowParallelLinear,
    A linear layer split by rows.
copy_to_tensor_model_parallel_region,
    The f of the lesson: passes on in the forward, adds up gradients in the backward.
vocab_parallel_cross_entropy,
    The loss from scores that are split over the vocabulary.
from torch.distributed.tensor import DTensor, Shard
    So that the record knows each part's place in the whole.
args, context = config.parse(mesh=("tensor",))
    Without the flag for sequence parallelism, which Megatron has on GPUs only.
parallel_state.initialize_model_parallel(tensor_model_parallel_size=world)
    Megatron makes process groups of its own: here one of all ranks.
model = models.build(args)
    Stays on the CPU until its linear layers are replaced.
settings = ModelParallelConfig(
    What every layer has to know.
tensor_model_parallel_size=world,
    Over how many ranks a matrix is split.
params_dtype=getattr(torch, args.dtype),
    The format of the parameters.
use_cpu_initialization=True,
    Each rank fills the whole matrix on the CPU and keeps its part: equal for any number of ranks.
column = partial(ColumnParallelLinear, gather_output=False)
    By columns; the outputs stay split.
row = partial(RowParallelLinear, input_is_parallel=True, skip_bias_add=False)
    By rows; the inputs come split, and the bias is added after the sum.
plan = {f"attention.{name}": column for name in ("query", "key", "value")}
    Split by columns: each rank gets some of the heads.
plan = {name: partial(layer, disable_grad_reduce=True) for name, layer in plan.items()}
    These three do not add up their input's gradients each: it is done for them together, below.
plan |= {"attention.out": row, "up": column, "down": row, "scores": column}
    The rest of a block, and the head.
for part in model[1:]:
    All stages but the embedding.
for name, whole in list(part.named_modules()):
    Their layers by name; a list, because layers are replaced on the way.
if name in plan:
    Norms and the like stay as they are.
split = plan[name](
    Megatron's layer for the one that was there.
whole.in_features,
    As many inputs as the whole layer has.
whole.out_features,
    As many outputs.
bias=whole.bias is not None,
    With a bias if the layer has one.
init_method=partial(torch.Tensor.copy_, other=whole.weight.data),
    Begins with the parameters that are there, so that the training is the baseline's.
config=settings,
    The settings from above.
split.register_forward_hook(lambda layer, given, result: result[0])
    Megatron's layers return output and bias; the model wants the output.
part.set_submodule(name, split)
    Puts the new layer in the place of the old one.
for block in model[1:-1]:
    Every block has an attention.
block.attention.register_forward_pre_hook(
    Something runs before query, key and value.
lambda attention, given: copy_to_tensor_model_parallel_region(*given)
    It is f: so one all-reduce in the backward serves all three.
model.to(device)
    Now that all layers are in place.
for parameter in model.parameters():
    Looks for the parameters that were split.
if getattr(parameter, "tensor_model_parallel", False):
    Megatron marks them.
cut = [Shard(parameter.partition_dim)]
    Along which dimension it was cut.
parameter.dtensor = DTensor.from_local(parameter.data, mesh, cut)
    For the record and for checkpoints: this part and its place in the whole.
loss = vocab_parallel_cross_entropy(model(inputs), targets).mean()
    The loss from split scores, one for each byte, then their mean.
loss.backward()
    Nothing has to stand around it: Megatron's loss has a backward of its own.
run.loss(loss.detach())
    All ranks have the same loss, as a plain tensor.
"""


def _parsed(written: str) -> dict[str, dict[str, str]]:
    """{script: {code line: reason}}; a reason may go on over several indented lines."""
    found: dict[str, dict[str, str]] = {}
    for row in filter(str.strip, written.splitlines()):
        if row.startswith("[") and row.endswith("]"):
            lines = found[row[1:-1]] = {}
        elif not row.startswith(" "):
            lines[line := row] = ""
        else:
            lines[line] = f"{lines[line]} {row.strip()}".strip()
    return found


REASONS = _parsed(WRITTEN)


def why(script: str | Path, line: str) -> str:
    """Why a script of the family has this code line; "" where nothing has to be said.

    script: a name of the family or its path. line: with or without its indent, without a comment.
    """
    for name in _lineage(script):
        if reason := REASONS[name].get(line.strip()):
            return reason
    return ""


def _lineage(script: str | Path) -> list[str]:
    """A script of the family, its parent, and so on to the baseline; empty for any other file."""
    names = {str(known.path): name for name, known in family.SCRIPTS.items()}
    name = names.get(str(script), str(script))
    line = []
    while name in family.SCRIPTS:
        line.append(name)
        name = family.SCRIPTS[name].parent
    return line
