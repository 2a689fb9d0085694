"""Where to cut a sequence of stages into consecutive parts: `best([0, 1, 1, 4], parts=2)`.

A cut is a tuple of edges: (0, 3, 4) puts stages 0 to 2 on the first device and stage 3 on the last.
"""

from itertools import combinations, pairwise

from bootcamp.costs import model_shapes


def part_costs(costs: list[float], edges: tuple[int, ...]) -> list[float]:
    """What each part of the cut costs."""
    return [sum(costs[begin:end]) for begin, end in pairwise(edges)]


def equal(stages: int, parts: int) -> tuple[int, ...]:
    """Nearly equal numbers of stages, whatever they cost."""
    return tuple(stages * part // parts for part in range(parts + 1))


def best(costs: list[float], parts: int) -> tuple[int, ...]:
    """The cut whose most expensive part is the cheapest: all cuts are tried."""
    inner = combinations(range(1, len(costs)), parts - 1)
    cuts = [(0, *edges, len(costs)) for edges in inner]
    return min(cuts, key=lambda edges: max(part_costs(costs, edges)))


def gpt2(size: str) -> dict[str, list[float]]:
    """{"time": operations of each stage, "parameters": of each stage} of GPT-2.

    The head reads the embedding's table, so the device with the head holds the table too.
    """
    layers = model_shapes.layers(model_shapes.GPT2, size)
    parameters = [sum(layer.numbers) for layer in layers]
    parameters[-1] += layers[0].numbers[0]
    return {"time": [layer.flops for layer in layers], "parameters": parameters}


def compare(costs: dict[str, list[float]], parts: int) -> list[dict]:
    """A row for the cut by numbers of stages, and for each one that balances a kind of cost.

    Each row has the largest part of every kind of cost as a multiple of the mean: 1 is balance.
    """
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


def traffic(samples: int) -> list[dict]:
    """What each of two devices sends in a step over a cut of this course's GPTs, or as data ranks.

    Both are equal from so many samples on: when tokens times width is the number of parameters.
    """
    rows = []
    for size, shape in model_shapes.GPT.items():
        gradients = model_shapes.NUMBER * model_shapes.parameters("gpt", size)
        a_sample = model_shapes.NUMBER * shape["context"] * shape["width"]
        row = {"size": size, "over the cut, MB": samples * a_sample / 1e6}
        row |= {"gradients, MB": gradients / 1e6}
        rows.append(row | {"equal from samples": round(gradients / a_sample)})
    return rows
