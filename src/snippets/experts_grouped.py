"""python src/snippets/experts_grouped.py

All experts of a layer in two grouped products, where the course's model loops over them: `lines`
are those of _train_ep.py that change. Prints how far outputs and gradients are from the loop's,
with an expert that has no row, and how many rows are right with the groups' starts for their ends.
"""

import json
from argparse import Namespace
from collections import Counter

import torch
from torch.nn.functional import gelu, grouped_mm
from torch.overrides import TorchFunctionMode

from bootcamp.train import models


class Waits(TorchFunctionMode):
    """Count the calls for which a GPU's host waits: numbers that Python or a shape needs."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function.__name__ in ("tolist", "bincount"):
            self.counts[function.__name__] += 1
        return function(*args, **(kwargs or {}))

    def __str__(self):
        return json.dumps(self.counts)


def at_once(experts, rows, counts):
    """Do what moe.Experts does; the counts of each rank's rows stay on the device."""
    counts = counts.view(-1, len(experts)).to(rows.device)
    numbers = torch.arange(len(experts), device=rows.device).repeat(len(counts))
    of_row = numbers.repeat_interleave(counts.flatten(), output_size=len(rows))
    order = of_row.argsort(stable=True)  # by rank and expert before, by expert now
    ends = counts.sum(0).cumsum(0, dtype=torch.int32)
    # a program for GPUs keeps each stack as one parameter, and copies nothing here
    up, down = (
        torch.stack([getattr(e, part).weight for e in experts]).mT for part in ("up", "down")
    )
    hidden = gelu(grouped_mm(rows[order], up, offs=ends))
    return grouped_mm(hidden, down, offs=ends)[order.argsort()]


def lines() -> dict[str, str]:
    """Return {line of _train_ep.py: what stands there}; the last step's waits are printed."""
    find = "import sys\nfrom bootcamp.paths import SRC\nsys.path.append(str(SRC))"
    loss = "loss = models.loss(model(inputs), targets)"
    return {
        "model = models.build(args)": f"{find}\nfrom snippets import experts_grouped\n"
        "models.moe.Experts.forward = experts_grouped.at_once\nmodel = models.build(args)",
        loss: f"with experts_grouped.Waits() as waits:\n    {loss}",
        "run.finish()": "print(waits)\nrun.finish()",
    }


def compare() -> dict:
    """Return what the docstring says."""
    layer = models.build(Namespace(model="moe", size="tiny", seed=0, dtype="float32"))[1].experts
    counts = torch.tensor([[3, 0, 4, 2, 1, 5, 6, 3], [1, 0, 2, 2, 7, 0, 1, 3]])  # of two ranks
    rows = torch.randn(int(counts.sum()), layer[0].up.in_features)
    found = []
    for forward in (layer.forward, lambda *given: at_once(layer, *given)):
        given = rows.clone().requires_grad_()
        layer.zero_grad()
        results = forward(given, counts)
        (results * torch.arange(len(rows)).unsqueeze(1)).sum().backward()
        gradients = torch.cat([parameter.grad.flatten() for parameter in layer.parameters()])
        found.append({"output": results, "rows' gradients": given.grad, "experts'": gradients})
    apart = {
        name: ((value - found[1][name]).norm() / value.norm()).item()
        for name, value in found[0].items()
    }
    starts = counts.sum(0).cumsum(0) - counts.sum(0)
    weights = torch.stack([expert.up.weight for expert in layer]).mT
    by_expert = torch.arange(len(layer)).repeat_interleave(counts.sum(0))
    right = torch.bmm(rows.unsqueeze(1), weights[by_expert]).squeeze(1)
    wrong = grouped_mm(rows, weights, offs=starts.to(torch.int32))
    # behind the last start is what memory held, which may be the right products of before
    near = (right - wrong)[: starts[-1]].norm(dim=1) < 1e-5
    return apart | {"right with starts": int(near.sum())}


if __name__ == "__main__":
    torch.manual_seed(0)
    print(json.dumps(compare()))
