"""python src/_train_dp_by_hand.py --steps 20 --global-batch 32 --replicas 2 --cores-per-rank 2

DataParallel without the library: one process, a thread for each replica, on CPU cores.
"""

import copy
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.profiler import record_function

from bootcamp.train import checkpoint, config, data, models, optimizers, record

FLAGS = {"--replicas": {"type": int, "default": 2}}

# A flag says how many replicas there are; they compute on CPU cores.
args, context = config.parse(devices=("cpu",), own_flags=FLAGS)
device = torch.device(context.device)

# 1. Processes
rank, world = 0, 1
# One core for each operation: the replicas' threads are what runs in parallel.
torch.set_num_threads(1)
# One thread for each replica.
threads = ThreadPoolExecutor(args.replicas)

# 2. Model
model = models.build(args).to(device)

# 3. Data
batches = data.Batches(args, rank, world)

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
first = checkpoint.load(context, model, optimizer)

# 5. Training loop
run = record.Run(context, model, optimizer, batches, world)
for step in range(first, args.steps):
    with run.step(step):
        inputs, targets = (tensor.to(device) for tensor in batches(step))
        optimizer.zero_grad()
        with record_function("scatter"):
            # A share of the inputs for each replica; the targets stay where the loss is computed.
            shards = inputs.chunk(args.replicas)
        with record_function("replicate"):
            # Copies the model for each share, in every step anew.
            replicas = [copy.deepcopy(model) for _ in shards]
        with record_function("parallel forward"):
            # Each replica computes its share in a thread; `list` waits for all of them.
            outputs = list(threads.map(lambda replica, shard: replica(shard), replicas, shards))
        with record_function("gather"):
            loss = models.loss(torch.cat(outputs), targets)
        with record_function("backward"):
            # Goes back through all replicas; each gets the gradients of its own share.
            loss.backward()
        with record_function("reduce"):
            same = zip(*(m.parameters() for m in [model, *replicas]), strict=True)
            # Each parameter of the model, together with its copies in the replicas.
            for parameter, *copies in same:
                # A sum: the loss is a mean over the batch, and these are its parts.
                parameter.grad = sum(replica.grad for replica in copies)
        optimizer.step()
    run.loss(loss.detach())
    checkpoint.save(context, step, model, optimizer)
run.finish()
