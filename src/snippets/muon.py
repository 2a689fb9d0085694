"""python src/snippets/muon.py

Muon (Jordan et al., 2024) for the hidden matrices of a GPT, whole or in shards: `lines` are those
of a training script that change. By itself it prints singular values before and after, and how far
updates are from those of `torch.optim.Muon`, which computes in bfloat16.
"""

import itertools
import json

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, distribute_tensor


def orthogonalise(matrix, steps=5):
    """Bring all singular values near 1, as Newton and Schulz do: by products of matrices alone."""
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if tall else matrix  # of the two products the smaller
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)  # now none is above 1
    for _ in range(steps):
        square = x @ x.mT
        # Makes 3.4445 s - 4.775 s³ + 2.0315 s⁵ of each singular value s.
        x = 3.4445 * x + (2.0315 * square @ square - 4.775 * square) @ x
    return x.mT if tall else x


def whole(matrices):
    """Each rank has every matrix, as in DDP."""
    return map(orthogonalise, matrices)


def gathered(matrices):
    """Each rank gathers all matrices of a shape, orthogonalises them, and keeps its own parts."""
    for _, same in itertools.groupby(matrices, key=lambda matrix: matrix.shape):
        stack = torch.stack(list(same))
        complete = orthogonalise(stack.full_tensor())
        # `None`: every rank cuts its part out of what it has, and nothing is sent.
        how = {"placements": stack.placements, "src_data_rank": None}
        yield from distribute_tensor(complete, stack.device_mesh, **how).unbind()


def exchanged(matrices):
    """Each rank orthogonalises its share of the matrices."""
    rank, world = dist.get_rank(), dist.get_world_size()
    if odd := [tuple(matrix.shape) for matrix in matrices if matrix.shape[0] % world]:
        raise ValueError(f"{odd[0]}: the rows do not divide by {world} ranks; use `gathered`")
    order = sorted(range(len(matrices)), key=lambda k: k % world)  # rank 0's, rank 1's ...
    local = [matrices[k].to_local() for k in order]
    sizes = [matrix.numel() // world for matrix in matrices]
    out = [sum(sizes[k::world]) for k in range(world)]
    parts = torch.cat([part.flatten() for part in local])
    # To each rank this rank's parts of its matrices, and from each its parts of mine.
    mine, back = parts.new_empty(world, out[rank]), [out[rank]] * world
    dist.all_to_all_single(mine.view(-1), parts, back, out)
    for matrix, part in zip(matrices[rank::world], mine.split(sizes[rank::world], 1), strict=True):
        part.copy_(orthogonalise(part.reshape(matrix.shape)).reshape(part.shape))
    # The same way back.
    dist.all_to_all_single(parts, mine.view(-1), out, back)
    updates = dict(zip(order, parts.split([part.numel() for part in local]), strict=True))
    for k, matrix in enumerate(matrices):
        part = updates[k].view_as(matrix.to_local())
        yield DTensor.from_local(part, matrix.device_mesh, matrix.placements)


def shards(matrices):
    """Wrong: each rank orthogonalises what it has."""
    for matrix in matrices:
        part = orthogonalise(matrix.to_local())
        yield DTensor.from_local(part, matrix.device_mesh, matrix.placements)


class Muon:
    """Momentum, made orthogonal. The rest goes number by number: it needs no other rank's part."""

    def __init__(self, matrices, directions=whole, dtype=None, lr=0.02, momentum=0.95, decay=0.1):
        """directions: a function above. dtype: of what it computes and sends; torch's is bf16."""
        self.momenta = {matrix: torch.zeros_like(matrix) for matrix in matrices}
        self.directions, self.dtype = directions, dtype
        self.lr, self.momentum, self.decay = lr, momentum, decay

    @torch.no_grad()
    def step(self):
        ahead = []
        for matrix, average in self.momenta.items():
            average.lerp_(matrix.grad, 1 - self.momentum)
            ahead.append(matrix.grad.lerp(average, self.momentum).to(self.dtype))  # Nesterov's
        for matrix, update in zip(self.momenta, self.directions(ahead), strict=True):
            matrix.mul_(1 - self.lr * self.decay)
            tall = max(1, matrix.shape[0] / matrix.shape[1]) ** 0.5
            matrix.add_(update, alpha=-self.lr * tall)


def hidden(model):
    """List the matrices between embedding and head, those of one shape together."""
    found = [p for name, p in model.named_parameters() if "block" in name and p.ndim == 2]
    return sorted(found, key=lambda matrix: tuple(matrix.shape))


def others(model):
    """List all other parameters: embedding, head, norms, biases."""
    return [p for name, p in model.named_parameters() if "block" not in name or p.ndim < 2]


def lines(how):
    """Return {line of a training script: what stands in its place}; how: code that has `hidden`."""
    build = "optimizer = optimizers.build(args, model.parameters())"
    others = build.replace("model.parameters()", "muon.others(model)")
    find = "import sys\nfrom bootcamp.paths import SRC\nsys.path.append(str(SRC))"
    load = f"{find}\nfrom snippets import muon\nhidden = muon.hidden(model)"
    return {
        build: f"{load}\n{others}\nmatrices = {how}",
        "optimizer.zero_grad()": "model.zero_grad()",
        "optimizer.step()": "matrices.step()\noptimizer.step()",
    }


def compare_with_torch(shape, dtype=None, steps=3):
    """Update a matrix with random gradients: the distance from torch's, in distances moved."""
    draw = torch.Generator().manual_seed(0)
    matrices = [torch.nn.Parameter(torch.zeros(shape)) for _ in range(2)]
    both = Muon(matrices[:1], dtype=dtype), torch.optim.Muon(matrices[1:], lr=0.02)
    for _ in range(steps):
        gradient = torch.randn(shape, generator=draw)
        for matrix, optimizer in zip(matrices, both, strict=True):
            matrix.grad = gradient
            optimizer.step()
    mine, torchs = matrices
    return ((mine - torchs).norm() / torchs.norm()).item()


if __name__ == "__main__":
    torch.manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(6, 6)).Q for _ in range(2))
    before = torch.tensor([0.9, 0.4, 0.1, 0.03, 0.01, 0.003])
    after = torch.linalg.svdvals(orthogonalise(left @ before.diag() @ right))
    apart = compare_with_torch((64, 256))
    print(json.dumps({"before": before.tolist(), "after": after.tolist(), "apart": apart}))
