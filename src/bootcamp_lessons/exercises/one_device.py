"""Exercises of lessons 00 to 02 that are a function in a cell."""

from statistics import mean, median

from bootcamp.classroom.function_task import FunctionTask


def throughput(seconds, samples, warm_up):
    """Samples per second: the median over the steps after the first `warm_up`.

    seconds: what each step took. samples: how many there are in each step.
    """
    counted = seconds[warm_up:]
    return median(samples / took for took in counted)


THROUGHPUT = FunctionTask(
    "throughput",
    task="Write throughput(seconds, samples, warm_up): from the seconds of each step, a list, and "
    "the number of samples in a step, the median of the samples per second, without the first "
    "warm_up steps.",
    hint="Leave out steps first. Then each of the others has a speed, samples / seconds. The "
    "median is the one in the middle when they are sorted.",
    stronger="seconds[warm_up:] are the steps that count. statistics.median takes the list of "
    "samples / s, for each s of them.",
    solved_by=throughput,
    cases=(  # an odd number of steps is left: the middle of the times is that of the speeds
        ([0.9, 0.2, 0.1, 0.4], 32, 1),
        ([2.0, 0.5, 0.25, 0.2, 0.25, 0.3, 4.0], 64, 2),
        ([0.05, 0.01, 0.02], 8, 0),
    ),
    unit="samples/s",
    mistakes={
        "That is the median of all steps. The "
        "first warm_up ones are slower and are left out.": lambda seconds, samples, warm_up: (
            throughput(seconds, samples, 0)
        ),
        "That takes the mean of the times. One "
        "slow step moves a mean, hardly a median.": lambda seconds, samples, warm_up: (
            samples / mean(seconds[warm_up:])
        ),
        "That is the mean of the speeds. One "
        "odd step moves a mean, hardly a median.": lambda seconds, samples, warm_up: mean(
            samples / took for took in seconds[warm_up:]
        ),
        "Those are the seconds of a step. "
        "The speed is samples divided by seconds.": lambda seconds, samples, warm_up: median(
            seconds[warm_up:]
        ),
        "That is a time, and of the step in the middle of the run. For a median the values are "
        "sorted first (statistics.median does it), and "
        "a speed is samples divided by seconds.": lambda seconds, samples, warm_up: seconds[
            warm_up:
        ][len(seconds[warm_up:]) // 2],
        "That is the step in the middle of the run. For a median the values are sorted first; "
        "statistics.median does it.": lambda seconds, samples, warm_up: (
            samples / seconds[warm_up:][(len(seconds) - warm_up) // 2]
        ),
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


TRAINING_DAYS = FunctionTask(
    "training_days",
    task="Write training_days(weights, tokens, peak_flops_per_second, share): how many days one "
    "device needs to train a model with so many weights in its matrices on so many tokens, if it "
    "achieves this share of its peak. Count the products with the weights only.",
    hint="How many operations does the forward do with each weight, for one token? The backward "
    "does two products for each one of the forward.",
    stronger="A weight takes 2 operations in the forward and 4 in the backward, so it is 6 * "
    "weights * tokens. Divide by share * peak_flops_per_second, then by the seconds of a day.",
    solved_by=training_days,
    cases=(
        (124e6, 10e9, 312e12, 0.4),
        (7e9, 1e12, 989e12, 0.5),
        (1e6, 1e9, 1e11, 0.25),
    ),
    unit="days",
    mistakes={
        "That is the forward alone, 2 operations for each weight and token. The backward does "
        "twice as many on top.": lambda weights, tokens, peak, share: (
            training_days(weights, tokens, peak, share) / 3
        ),
        "That counts the backward as one forward. It computes two products for each one of the "
        "forward: for the gradient of the "
        "weights, and for that of the input.": lambda weights, tokens, peak, share: (
            training_days(weights, tokens, peak, share) * 2 / 3
        ),
        "That is half: in a product each weight takes two operations, a multiplication and an "
        "addition.": lambda weights, tokens, peak, share: (
            training_days(weights, tokens, peak, share) / 2
        ),
        "That is the time at the peak. The device "
        "achieves only a share of it, so it takes longer.": lambda weights, tokens, peak, share: (
            training_days(weights, tokens, peak, 1)
        ),
        "That is shorter than at the peak. With a share of a half the training takes twice as "
        "long: divide by the share.": lambda weights, tokens, peak, share: training_days(
            weights, tokens, peak, 1 / share
        ),
        "Those are seconds. A day has 24 * 60 * 60 of them.": lambda weights, tokens, peak, share: (
            86_400 * training_days(weights, tokens, peak, share)
        ),
        "Those are hours. A day has 24 of them.": lambda weights, tokens, peak, share: (
            24 * training_days(weights, tokens, peak, share)
        ),
    },
)

TASKS = [THROUGHPUT, TRAINING_DAYS]
