"""python src/_train_dp_by_hand.py --steps 20 --global-batch 32 --replicas 2 --cores-per-rank 2

DataParallel without the library: one process, a thread for each replica, on CPU cores.
"""

import copy
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.profiler import record_function

from bootcamp.train import checkpoint, config, data, models, optimizers, record

FLAGS = {"--replicas": {"type": int, "default": 2}}

args, context = config.parse(devices=("cpu",), own_flags=FLAGS)
device = torch.device(context.device)

# 1. Processes
rank, world = 0, 1
torch.set_num_threads(1)  # the replicas' threads are the parallelism
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
            shards = inputs.chunk(args.replicas)
        with record_function("replicate"):
            replicas = [copy.deepcopy(model) for _ in shards]
        with record_function("parallel forward"):
            outputs = list(threads.map(lambda replica, shard: replica(shard), replicas, shards))
        with record_function("gather"):
            loss = models.loss(torch.cat(outputs), targets)
        with record_function("backward"):
            loss.backward()
        with record_function("reduce"):
            same = zip(*(m.parameters() for m in [model, *replicas]), strict=True)
            for parameter, *copies in same:
                parameter.grad = sum(replica.grad for replica in copies)
        optimizer.step()
    run.loss(loss.detach())
    checkpoint.save(context, step, model, optimizer)
run.finish()
