"""Exercises of lessons 00 to 02c that are a function: speed, memory, one graph, workers."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from statistics import median

import torch

from bootcamp.classroom.tasks import FunctionTask, Wrong
from bootcamp_lessons.labs import faster_step


@FunctionTask.from_solution(
    hint="Leave out steps first. Then each of the others has a speed, samples / seconds. The "
    "median is the one in the middle when they are sorted.",
    stronger="statistics.median of samples / s, for each s in seconds[warm_up:], which count.",
    cases=(  # an odd number of steps is left: the middle of the times is that of the speeds
        ([0.9, 0.2, 0.1, 0.4], 32, 1),
        ([2.0, 0.5, 0.25, 0.2, 0.25, 0.3, 4.0], 64, 2),
        ([0.05, 0.01, 0.02], 8, 0),
    ),
    unit="samples/s",
    mistakes={
        ("[warm_up:]", ""): "That is the median of all steps. Leave out the first warm_up.",
        ("median(speeds)", "len(speeds) / sum(1 / each for each in speeds)"): "That takes the mean "
        "of the times. One slow step moves a mean, hardly a median.",
        ("samples / took", "took"): "Those are seconds. The speed is samples divided by seconds.",
        ("median(speeds)", "speeds[len(speeds) // 2]"): "That is the step in the middle of the "
        "run. For a median the values are sorted first; statistics.median does it.",
    },
)
def throughput(seconds, samples, warm_up):
    """Samples per second: the median over the steps after the first `warm_up`.

    seconds: what each step took. samples: how many there are in each step.
    """
    speeds = [samples / took for took in seconds[warm_up:]]
    return median(speeds)


@FunctionTask.from_solution(
    hint="One number is kept between steps. What is left of it when the next gradient comes?",
    stronger="total = momentum * total + gradient, value -= lr * total, and value joins the list.",
    cases=(([1.0, 1.0, -2.0, 0.5], 0.1, 0.9), ([4.0, 0.0, 1.0], 0.5, 0.5)),
    mistakes={
        ("momentum * total", "total"): "That sum never fades, as in the loop without zero_grad.",
        ("momentum * total + ", ""): "That has no momentum: it uses each gradient once.",
        ("+ gradient", "+ (1 - momentum) * gradient"): "That is a mean, as AdamW keeps: add all.",
        ("value -=", "value +="): "That climbs: a step goes against the gradient.",
    },
)
def sgd(gradients, lr, momentum):
    """The values of a parameter after each step; it begins at 0. momentum: left of the sum."""
    total, value, values = 0.0, 0.0, []
    for gradient in gradients:
        total = momentum * total + gradient  # of equal ones up to gradient / (1 - momentum)
        value -= lr * total
        values.append(value)
    return values


@FunctionTask.from_solution(
    hint="How many operations a weight and token in the forward pass? The backward pass has twice.",
    stronger="A weight takes 2 operations in the forward and 4 in the backward, so it is 6 * "
    "weights * tokens. Divide by share * peak_flops_per_second, then by the seconds of a day.",
    cases=((124e6, 10e9, 312e12, 0.4), (7e9, 1e12, 989e12, 0.5), (1e6, 1e9, 1e11, 0.25)),
    unit="days",
    mistakes={
        1 / 3: "That is the forward alone, 2 operations a weight and token; the backward does 4.",
        2 / 3: "That counts the backward as one forward. It computes two products for each one of "
        "the forward: for the gradient of the weights, and for that of the input.",
        ("share * peak", "peak"): "That is the time at the peak. The device achieves less.",
        ("/ (share * peak", "* share / (peak"): "That is shorter than at the peak. With a share of "
        "a half the training takes twice as long: divide by the share.",
        86_400: "Those are seconds. A day has 24 * 60 * 60 of them.",
    },
)
def training_days(weights, tokens, peak_flops_per_second, share):
    """Days that one device needs to train a model.

    weights: numbers in the model's matrices. tokens: all that it is trained on.
    share: of the device's peak that the training achieves, between 0 and 1.
    """
    forward = 2 * weights  # for each token: one multiplication and one addition with each weight
    backward = 2 * forward  # the gradient of the weights, and that of the input
    operations = (forward + backward) * tokens
    return operations / (share * peak_flops_per_second) / (24 * 60 * 60)


@FunctionTask.from_solution(
    hint="Leave out what does not fit. The best throughput of the rest tells what is good enough.",
    stronger="fitting = [row for row in curve if row[2] <= memory], best = max(row[1] for row in "
    "fitting), and then the min() of the samples with a speed of at least 0.95 * best.",
    cases=(  # throughput saturates, still grows when memory ends, falls again; not always sorted
        ([(8, 310, 4), (32, 980, 9), (128, 1210, 29), (256, 1225, 55), (512, 1230, 107)], 80),
        ([(128, 2200, 37), (64, 2100, 20), (16, 600, 8), (32, 1150, 12), (256, 2280, 70)], 40),
        ([(4, 100, 6), (8, 118, 10), (16, 120, 18), (32, 116, 34), (64, 80, 66)], 80),
        ([(8, 310, 4), (32, 980, 9), (128, 1210, 29)], 16),
    ),
    unit="samples",
    mistakes={
        ("min(good)", "max(row[0] for row in fitting)"): "That is the largest batch that fits. "
        "Full memory does not mean a busy device: look at the throughput.",
        ("if row[2] <= memory", ""): "That forgets the memory: the largest batches do not fit.",
        ("0.95 * best", "best"): "That has the best throughput. A smaller batch reaches nearly as "
        "much, at least 95 % of it, and takes less memory.",
        ("_ in fitting)", "_ in curve)", "(good)", "(good, default=0)"): "That compares with the "
        "best throughput of all, and the best may not fit. Leave out what does not fit first.",
    },
)
def best_batch(curve, memory):
    """The smallest batch that fits and reaches at least 95 % of the best throughput that fits.

    curve: (samples in a step, samples per second, GB) of each size. memory: of the device, in GB.
    """
    fitting = [row for row in curve if row[2] <= memory]
    best = max(speed for _, speed, _ in fitting)
    good = [samples for samples, speed, _ in fitting if speed >= 0.95 * best]
    return min(good)


@FunctionTask.from_solution(
    hint="The product adds up along a row of a and a column of b. Where may a scale differ?",
    stronger="x.abs().amax(dim, keepdim=True) / 448, dim 1 of a, 0 of b: divide, then multiply.",
    cases=tuple((a, a.roll(1, 0)) for a in [torch.tensor([[1e3, -7.0], [1.0, -2.3]])]),
    mistakes={
        ("b.abs().amax(0", "b.abs().amax(1"): "A scale that differs along the sum can't be taken "
        "out of it: b needs one for each column.",
        ("a.abs().amax(1", "a.abs().amax(0"): "The sum runs along a's rows: a scale for each row.",
        (" * of_a * of_b", ""): "That is the product of the scaled numbers: undo the scales.",
        (".abs()", ""): "The largest number may be a negative one: it is cut off at -448.",
        ("amax(1, keepdim=True)", "amax()", "amax(0, keepdim=True)", "amax()"): "With one scale "
        "for a matrix, the row that has an outlier takes digits from the others.",
    },
)
def multiply_in_fp8(a, b):
    """The product of two float32 matrices in e4m3, the largest of each row or column at 448."""
    of_a, of_b = a.abs().amax(1, keepdim=True) / 448, b.abs().amax(0, keepdim=True) / 448
    rounded_a, rounded_b = (x.to(torch.float8_e4m3fn).float() for x in (a / of_a, b / of_b))
    return rounded_a @ rounded_b * of_a * of_b


@dataclass(frozen=True)
class OneGraphTask(FunctionTask):
    """A function of a tensor that torch.compile must record as one graph."""

    def attempt(self, given: Callable | None) -> str:
        """Compare values, then count graphs. Raises Wrong."""
        said = super().attempt(given)
        made, why = faster_step.count_graphs(given, *self.cases)
        if made[-1] != 1:
            count = "no graph" if not made[-1] else f"{made[-1]} graphs"
            why = f'torch says: "{why}".' if why else "An if on a tensor ends a graph."
            raise Wrong("one graph in all calls", count, f"The values are right. {why}")
        return f"{said} And it is one graph."


@OneGraphTask.from_solution(
    name="one_graph",
    hint="An if needs the tensor's value, so a graph ends. Compute a factor that may be 1.",
    stronger="The factor is longest / gradient.norm(), but never more than 1: .clamp(max=1).",
    cases=tuple((torch.tensor(g), 1.0) for g in ((3.0, 4.0), (0.3, 0.4), (6.0, -8.0), (0.0, 2.0))),
    mistakes={
        (".clamp(max=1)", ""): "That scales short gradients up to the length. They stay.",
        (lambda gradient, longest: gradient.clamp(-longest, longest)): "That cuts off each number "
        "by itself, which turns the gradient. Scale all of them by one factor.",
        ("gradient.norm()", "gradient.norm() ** 2"): "That divides by the length's square.",
        ("longest / gradient.norm()", "gradient.norm() / longest", "max=1", "min=1"): "That is the "
        "factor the wrong way round: it lengthens long gradients.",
    },
)
def clipped(gradient, longest):
    """The gradient, scaled down to the length `longest` if it is longer."""
    return gradient * (longest / gradient.norm()).clamp(max=1)


@FunctionTask.from_solution(
    hint="Two limits hold however many workers there are: the training process, and all the work "
    "spread over the cores. The longer one is the time of a batch.",
    stronger="shortest = max(train, (read + train) / cores). A worker makes a share of the "
    "batches: read / workers must be at most that, so round read / shortest up.",
    cases=((40, 20, 2), (90, 30, 16), (100, 30, 4), (10, 50, 8), (64, 20, 3)),
    unit="workers",
    mistakes={
        ("max(train, (read + train) / cores)", "train"): "Workers without a core gain nothing.",
        ("ceil(", "int("): "That is rounded down, so the last part of the reading is waited for.",
        ("read / shortest", "cores - 1"): "That is one for each free core. Often fewer keep up.",
    },
)
def workers_for(read, train, cores):
    """The fewest workers with which a batch takes as little time as it can.

    read, train: milliseconds of work for a batch. cores: those that the program may use.
    """
    shortest = max(train, (read + train) / cores)  # time of a batch
    return ceil(read / shortest)
