"""Cuts of a sequence of stages into consecutive parts: `best([0, 1, 1, 4], parts=2)`.

A cut is a tuple of edges: (0, 3, 4) puts stages 0 to 2 on the first device and stage 3 on the last.
"""

from itertools import combinations, pairwise
from math import ceil

from bootcamp.costs import model_shapes


def part_costs(costs: list[float], edges: tuple[int, ...]) -> list[float]:
    return [sum(costs[begin:end]) for begin, end in pairwise(edges)]


def equal(stages: int, parts: int) -> tuple[int, ...]:
    """Cut into nearly equal numbers of stages, whatever they cost."""
    return tuple(stages * part // parts for part in range(parts + 1))


def layers_of_stage(layers: int, stages: int) -> tuple[int, int]:
    """Count the layers of the fullest stage, and of the first and the last.

    Where layers do not divide, embedding and head count as one each (arXiv:2407.21783).
    """
    deep = ceil(layers / stages)
    return deep, deep - 1 if stages > 1 and layers % stages else deep


def best(costs: list[float], parts: int) -> tuple[int, ...]:
    """Try all cuts and return the one whose most expensive part is the cheapest."""
    inner = combinations(range(1, len(costs)), parts - 1)
    cuts = [(0, *edges, len(costs)) for edges in inner]
    return min(cuts, key=lambda edges: max(part_costs(costs, edges)))


def gpt2(size: str) -> dict[str, list[float]]:
    """Return {"time": operations, "parameters"} of each stage of GPT-2."""
    layers = model_shapes.layers(model_shapes.GPT2, size)
    parameters = [sum(layer.numbers) for layer in layers]
    parameters[-1] += layers[0].numbers[0]  # the head's device holds the table that it reads too
    return {"time": [layer.flops for layer in layers], "parameters": parameters}


def compare(costs: dict[str, list[float]], parts: int) -> list[dict]:
    """Compare the equal cut with those that balance one kind of cost, as rows; 1 is balance."""
    stages = len(next(iter(costs.values())))
    cuts = {"equal numbers of stages": equal(stages, parts)}
    cuts |= {f"balanced for {kind}": best(values, parts) for kind, values in costs.items()}
    rows = []
    for name, edges in cuts.items():
        row = {"cut": name, "stages": " + ".join(str(b - a) for a, b in pairwise(edges))}
        for kind, values in costs.items():
            largest = max(part_costs(values, edges))
            row[f"{kind}, largest / mean"] = largest / (sum(values) / parts)
        rows.append(row)
    return rows
