"""python src/snippets/fp8_alone.py --steps 20 --global-batch 32

One process that trains with the matrices that _train_fsdp_fp8.py gathers: rounded to FP8 with a
scale for each row wherever they are used, in full width for the optimizer. Its baseline.
"""

import torch
from torch.nn import functional

from bootcamp.train import checkpoint, config, data, models, optimizers, record

args, context = config.parse(devices=("cpu",))
model = models.build(args)


def round_rows(matrix):
    """The matrix in FP8 and back; its gradient goes to the matrix as if nothing had happened."""
    given = matrix.detach()
    scales = given.abs().amax(1, keepdim=True).clamp(min=1e-12) / 448
    rounded = (given / scales).to(torch.float8_e4m3fn).to(given.dtype) * scales
    return matrix + (rounded - given)


def apply_rounded(inputs, layer):
    return functional.linear(inputs, round_rows(layer.weight), layer.bias)


for layer in model[1:-1].modules():
    if isinstance(layer, torch.nn.Linear):
        layer.forward = lambda inputs, layer=layer: apply_rounded(inputs, layer)

batches = data.Batches(args, 0, 1)
optimizer = optimizers.build(args, model.parameters())
first = checkpoint.load(context, model, optimizer)
run = record.Run(context, model, optimizer, batches, 1)
for step in range(first, args.steps):
    with run.step(step):
        inputs, targets = batches(step)
        optimizer.zero_grad()
        loss = models.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    run.loss(loss.detach())
run.finish()
