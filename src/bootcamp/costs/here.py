"""Seconds of a step of the course's own scripts on this machine: `here.seconds(job, machine)`.

A step is the sum of its kernels, each looked up in a table that was measured by size on this
machine, of its collectives by alpha and beta (bootcamp.costs.alpha_beta), and of what a framework
adds for each layer. One core is one rank: what a rank computes and what it sends take turns.
experiments.unseen measures the machine and tries predictions out. Numpy at most.
"""

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from bootcamp.costs import course, ddp, model_shapes, pipeline_orders, pipeline_schedules
from bootcamp.costs.alpha_beta import Fit, fit
from bootcamp.costs.course import NUMBER, Job

Kernels = Counter  # {(kind, sizes): how often}


@dataclass(frozen=True)
class Machine:
    """What was measured of a machine.

    alone, together: {kind: {"axes", "seconds": {"sizes": [forward, backward]}}} of kernels with one
    rank, and with a rank on each core. collectives: {kind: rows of bytes and seconds}. batches:
    {samples: seconds}. host: {what: seconds that a framework adds to a step for each}.
    """

    alone: dict
    together: dict
    collectives: dict
    batches: dict
    host: dict = field(default_factory=dict)

    @cached_property
    def links(self) -> dict[str, Fit]:
        """{kind of collective: alpha and beta}."""
        return {kind: fit(rows) for kind, rows in self.collectives.items()}

    def kernel(self, kind: str, sizes: tuple, busy: bool) -> tuple[float, float]:
        """Seconds of a kernel's forward and backward between, or beyond, the measured sizes.

        Their logarithms are interpolated along each axis.
        """
        table = (self.together if busy else self.alone)[kind]
        places = [_between(axis, size) for axis, size in zip(table["axes"], sizes, strict=True)]
        logs = [0.0, 0.0]
        for corner in itertools.product((0, 1), repeat=len(sizes)):
            ends = zip(table["axes"], places, corner, strict=True)
            key = ",".join(str(axis[place + up]) for axis, (place, _), up in ends)
            weight = math.prod(
                share if up else 1 - share for (_, share), up in zip(places, corner, strict=True)
            )
            for i, seconds in enumerate(table["seconds"][key]):
                logs[i] += weight * math.log(max(seconds, 1e-9))
        return math.exp(logs[0]), math.exp(logs[1])


def _between(axis: list[int], size: float) -> tuple[int, float]:
    """(the measured size below, how far from it to the next one) on a logarithmic axis."""
    place = max(i for i, known in enumerate(axis[:-1]) if known <= size or i == 0)
    return place, math.log(size / axis[place]) / math.log(axis[place + 1] / axis[place])


def of_layer(job: Job, layer: model_shapes.Layer, samples: int) -> Kernels:
    """A layer's kernels for so many samples on one rank."""
    kind, shape, t = layer.name.partition(" ")[0], job.shape, job.plan.tensor
    if job.model == "mlp":
        return _of_mlp(kind, layer, samples)
    tokens, width = samples * shape["context"], shape["width"]
    numbers, matrix = tokens * width, width // t
    if kind == "embedding":
        return Counter({("embedding", (tokens, width)): 1})
    if kind == "head":
        scores = model_shapes.VOCABULARY // t
        return Counter({("norm", (numbers,)): 1, ("linear", (tokens, width, scores)): 1})
    heads = samples * shape["heads"] // t
    found: Kernels = Counter()
    for count, kind, *sizes in (
        (2, "norm", numbers),
        (3, "linear", tokens, width, matrix),
        (1, "attention", heads, shape["context"], width // shape["heads"]),
        (1, "linear", tokens, matrix, width),  # without tensor parallelism as large as the others
        (1, "linear", tokens, width, 4 * matrix),
        (1, "bias", 4 * numbers // t),
        (1, "gelu", 4 * numbers // t),
        (1, "linear", tokens, 4 * matrix, width),
        (1, "bias", numbers),
        (2, "sum", numbers),  # residuals, and their gradients with that of the branch
        (2, "of three", numbers),  # gradients of what query, key and value read
    ):
        found[kind, tuple(sizes)] += count
    return found


def _of_mlp(kind: str, layer: model_shapes.Layer, samples: int) -> Kernels:
    if kind == "embedding":
        return Counter({("embedding", (samples * 16, model_shapes.EMBEDDING_WIDTH)): 1})
    outputs, inputs = layer.shapes[0]
    found = Counter({("linear", (samples, inputs, outputs)): 1, ("bias", (samples * outputs,)): 1})
    if kind == "hidden":
        found["relu", (samples * outputs,)] = 1
    return found


def computed(job: Job, layers: list, samples: int, machine: Machine) -> tuple[float, float]:
    """Seconds of the layers' forward and backward; the loss is with the head."""
    kernels: Kernels = Counter()
    for layer in layers:
        kernels += of_layer(job, layer, samples)
        if layer is job.layers[-1]:
            rows = samples * (job.shape["context"] if job.model == "gpt" else 1)
            kernels["loss", (rows,)] += 1
    busy, total = job.plan.ranks > 1, [0.0, 0.0]
    for (kind, sizes), count in kernels.items():
        forward, backward = _of(kind, sizes, machine, busy)
        total[0] += count * forward
        total[1] += count * backward
    return total[0], total[1]


def _of(kind: str, sizes: tuple, machine: Machine, busy: bool) -> tuple[float, float]:
    """Seconds of a kernel; sums of two tensors take what an addition takes."""
    if kind in ("sum", "of three"):
        added = machine.kernel("add", sizes, busy)[0]
        return (added if kind == "sum" else 0.0), added
    return machine.kernel(kind, sizes, busy)


def updated(shapes: list, machine: Machine, busy: bool) -> float:
    """Seconds in which AdamW updates parameters of these shapes."""
    sizes = (max(1, math.prod(shape)) for shape in shapes)
    return sum(machine.kernel("adamw", (size,), busy)[0] for size in sizes)


def seconds(job: Job, machine: Machine) -> dict[str, float]:
    """{part: seconds} of a step as rank 0 sees it."""
    p, busy = job.plan, job.plan.ranks > 1
    samples = p.batch // p.data
    if p.pipeline > 1:
        parts = {"compute": _pipeline(job, machine)}
    else:
        parts = {"compute": sum(computed(job, job.layers, samples, machine))}
    parts["communicate"] = communicated(job, machine)
    parts["optimizer"] = updated(_own_shapes(job), machine, busy)
    parts["data"] = _data(samples, machine)
    parts["host"] = sum(machine.host.get(key, 0.0) * n for key, n in hosted(job).items())
    return parts


def _own_shapes(job: Job) -> list[tuple[float, ...]]:
    """Of what rank 0 updates: its rows, or its part of each matrix."""
    p = job.plan
    if p.stage == 3:
        return [(math.ceil(rows / p.sharing), *rest) for rows, *rest in job.shapes(0)]
    return [(math.prod(shape) // (p.tensor if len(shape) > 1 else 1),) for shape in job.shapes(0)]


def _data(samples: int, machine: Machine) -> float:
    (few, short), (many, long) = sorted((int(n), s) for n, s in machine.batches.items())
    return max(0.0, short + (samples - few) * (long - short) / (many - few))


def communicated(job: Job, machine: Machine) -> float:
    """Seconds of a step's collectives, one after another; those of a pipeline are in its times."""
    links = machine.links
    if job.strategy == "ddp":
        sizes = [NUMBER * numbers for layer in job.layers for numbers in layer.numbers]
        filled = Counter(sum(sizes[i] for i in bucket) for bucket in ddp.buckets(sizes))
        calls = {("all-reduce", size): count for size, count in filled.items()}
    elif job.strategy in ("fsdp", "tp"):
        calls = course.calls(job)
    else:
        return 0.0
    copies = 2 if job.strategy == "ddp" else 1  # into the buckets and back; into what is sent
    return sum(
        count * (links[kind].predict(size) + copies * _copied(size, machine))
        for (kind, size), count in calls.items()
    )


def _copied(size: float, machine: Machine) -> float:
    """Seconds in which a rank copies so many bytes while the other copies, too."""
    return machine.kernel("add", (size / NUMBER,), True)[0]


def _pipeline(job: Job, machine: Machine) -> float:
    """Until rank 0 has done its last backward: its schedule, simulated."""
    p = job.plan
    stages = [layers for rank in range(p.pipeline) for layers in job.mine(rank)]
    times = [computed(job, layers, p.micro_batch, machine) for layers in stages]
    adds = machine.host.get("pp", 0.0) / 2
    rows = p.micro_batch * (job.shape["context"] if job.model == "gpt" else 1)
    hop = machine.links["send"].predict(NUMBER * rows * job.shape["width"])
    spans = pipeline_schedules.simulate(
        pipeline_orders.plan(p.schedule, p.pipeline, p.micro_batches),
        [forward + adds for forward, _ in times],
        [backward + adds for _, backward in times],
        transfer_seconds=hop,
    )
    return max(span.ended for span in spans if span.rank == 0)


def hosted(job: Job) -> dict[str, int]:
    """{what a framework does on the host: how often in a step}; see Machine.host."""
    found = {"layers": len(job.layers) // job.plan.pipeline}
    tensors = len(job.shapes(0))
    if job.strategy == "ddp":
        found["ddp"] = tensors
    if job.strategy == "fsdp":
        found |= {"fsdp": len(job.layers), "fsdp tensors": tensors}
    if job.strategy == "tp":
        found |= {"tp": len(job.layers) - 2, "tp ends": 1}
    return found
