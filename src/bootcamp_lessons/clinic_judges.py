"""Judges of lesson 12: each says why what a script did is right, or raises Wrong."""

import math
from dataclasses import dataclass, field

from bootcamp.classroom.tasks import Wrong

NEAR = 1e-4  # how far numbers of float32 may be apart that were added up in another order
SMALL_LOSS = 0.5  # at which own_loss.py stops


@dataclass
class Observed:
    """What _observe.py saw of a script, a dictionary for each of `ranks`.

    reseeded: with one rank and other random numbers. fixed: rank 0 of the fixed script. alone: the
    fixed script with one rank, which has all of the batch.
    """

    ranks: list[dict]
    reseeded: dict = field(default_factory=dict)
    fixed: dict = field(default_factory=dict)
    alone: dict = field(default_factory=dict)

    def all_have(self, name: str) -> list:
        """A name's value on each rank. Raises Wrong where it is gone."""
        if any(name not in rank for rank in self.ranks):
            raise Wrong(f"a script with the name `{name}`", f"`{name}` is gone: leave it there")
        return [rank[name] for rank in self.ranks]


def _apart(a: list[float], b: list[float]) -> float:
    """The largest difference of two lists of numbers, infinite where they are not comparable."""
    if a is None or b is None or len(a) != len(b) or not all(map(math.isfinite, [*a, *b])):
        return math.inf
    return max((abs(x - y) for x, y in zip(a, b, strict=True)), default=math.inf)


def ranks_agree(seen: Observed, what: str = "parameters", meaning: str = "") -> None:
    """Raise Wrong unless the ranks end with the same model."""
    first, *others = seen.all_have(what)
    apart = max(_apart(first, other) for other in others)
    if apart > NEAR:
        raise Wrong(f"the same {what} on all ranks", f"they are up to {apart:.2g} apart", meaning)


def _trains_as_alone(seen: Observed, meaning: str = "") -> str:
    """The ranks agree, and have the gradients and parameters that one rank has on all the data."""
    ranks_agree(seen, meaning="Nobody brings the ranks together: each trains a model of its own.")
    for what in ("parameters", "gradients"):
        apart = _apart(seen.ranks[0][what], seen.alone[what])
        if apart > NEAR:
            expected = f"the {what} that one rank has, with the whole batch"
            raise Wrong(expected, f"they are up to {apart:.2g} apart", meaning)
    return "the ranks agree, and have trained what one rank trains on the whole batch."


def meets(seen: Observed) -> str:
    """Two processes started by hand add up what both have."""
    for _ in range(3):
        try:
            found = seen.all_have("total")
            break
        except Wrong as wrong:  # a port that was chosen may be in use just now
            if "the ranks hang" in wrong.seen:
                where = "Do they agree on address and port, and on how many they are?"
                raise Wrong("two processes that meet", wrong.seen, where) from None
            if "EADDRINUSE" not in wrong.seen:
                raise
    else:
        raise Wrong("a free port", "the port is taken by another program", "Choose another one.")
    if found != [3, 3]:
        raise Wrong(
            "the sum 3 on both ranks",
            " and ".join(map(str, found)),
            "A rank that has only its own number has met nobody: world_size says how many meet.",
        )
    return "both processes found each other, and each has the sum of both."


def shards_inside(seen: Observed) -> str:
    """Each of four ranks holds half of the model, and trains as one rank does."""
    whole = len(seen.all_have("parameters")[0])
    share = max(seen.all_have("held")) / whole
    if share > 0.75:
        raise Wrong(
            "half of the parameters on each rank",
            f"{share:.0%} of them",
            "Nothing is sharded any more: it is fully_shard that has to stay.",
        )
    if share < 0.35:
        raise Wrong(
            "half of the parameters on each rank",
            f"{share:.0%} of them",
            "That is a quarter: FSDP over all ranks. The mesh has rows of two.",
        )
    return f"each rank holds half of the model, and {_trains_as_alone(seen)}"


def shared_out(read: list, all_do: str, too_many: str, not_disjoint: str) -> None:
    """Raise Wrong unless the ranks' shares of each epoch, read[rank][epoch], are the 32 samples."""
    for epoch, parts in enumerate(zip(*read, strict=False)):
        numbers = [number for part in parts for number in part]
        if len(numbers) > 32:
            expected = f"32 samples in epoch {epoch}, shared out"
            raise Wrong(expected, f"{len(numbers)}: every rank {all_do} all of them", too_many)
        if sorted(numbers) != list(range(32)):
            expected = f"every sample once in epoch {epoch}"
            raise Wrong(expected, f"{len(set(numbers))} different ones of 32", not_disjoint)


def reads_well(seen: Observed) -> str:
    """Every epoch has all samples once, shared out, in an order of its own."""
    read = seen.all_have("seen")
    shared_out(
        read,
        all_do="reads",
        too_many="The DistributedSampler shares them out, shuffle=True of the DataLoader does not.",
        not_disjoint="The ranks must shuffle alike, with one seed, so that their shares don't "
        "overlap.",
    )
    orders = [tuple(epoch) for epoch in read[0]]
    if len(set(orders)) < len(orders):
        raise Wrong(
            "another order in each of three epochs",
            f"{len(set(orders))} different orders on rank 0",
            "The sampler draws its order from its seed and the epoch that it was told: tell it.",
        )
    if len({frozenset(order) for order in orders}) == 1:
        raise Wrong(
            "a rank that meets other samples in another epoch",
            "the same 16 samples in another order",
            "Shuffle before the samples are shared out, not after.",
        )
    return "three epochs, three orders; the shares are disjoint and change from epoch to epoch."


def all_moved(seen: Observed) -> str:
    """Every rank has the whole model with numbers in it."""
    parameters = seen.all_have("parameters")
    if any(len(mine) != 161 for mine in parameters):
        raise Wrong(
            "161 numbers on each rank",
            " and ".join(str(len(mine)) for mine in parameters),
            "A tensor on the meta device has a shape and no numbers.",
        )
    ranks_agree(seen, meaning="DistributedDataParallel must be there on every rank.")
    if _apart(parameters[0], [0.0] * 161) < 0.05:
        raise Wrong(
            "parameters that were initialised",
            "all of them are nearly 0",
            "to_empty gives memory, not numbers: call reset_parameters() of each layer too.",
        )
    return "every rank has the model on its device, and they end with the same parameters."


def one_writes(seen: Observed) -> str:
    """One rank writes checkpoint.pt, and all can read it when they do."""
    try:
        saved = [rank["saved"] for rank in seen.ranks]
    except Wrong as wrong:
        early = "If a rank could not read: did it begin before the file was whole?"
        raise Wrong(wrong.expected, wrong.seen, f"{wrong.meaning} {early}".strip()) from None
    files = {path for paths in saved for path in paths}
    writers = [rank for rank, paths in enumerate(saved) if paths]
    if len(files) > 1:
        raise Wrong(
            "one file, checkpoint.pt",
            f"{', '.join(sorted(files))}",
            "The ranks hold the same model. N copies cost N times the time and the place, and a "
            "job with other ranks does not know which to read.",
        )
    if len(writers) != 1:
        raise Wrong(
            "one rank that writes",
            f"{len(writers)} ranks wrote to {', '.join(files) or 'nothing'}",
            "It went well this time, by chance. Let one rank save.",
        )
    if seen.all_have("restored") != [1] * len(saved):
        raise Wrong(
            "the checkpoint of step 1 on all ranks",
            f"steps {seen.all_have('restored')}",
            "Did a rank read before the file was whole?",
        )
    return f"rank {writers[0]} writes, and every rank reads a whole file."


def saves_all(seen: Observed) -> str:
    """One file that has all weights of a model that is still sharded."""
    whole, restored = seen.all_have("parameters")[0], seen.all_have("restored")
    if max(seen.all_have("held")) > 0.75 * len(whole):
        raise Wrong("a model in shards", "each rank holds all of it", "fully_shard has to stay.")
    writers = [rank for rank, mine in enumerate(seen.ranks) if mine["saved"]]
    if len(writers) != 1:
        raise Wrong(
            "one rank that writes",
            f"{len(writers)} ranks that do",
            "All ranks gather, one writes: only torch.save belongs under the condition.",
        )
    for rank, mine in enumerate(restored):
        if _apart(mine, whole) > NEAR:
            raise Wrong(
                f"the {len(whole)} numbers of the trained model in the file",
                f"others on rank {rank}",
                "What was loaded is not what the ranks hold together.",
            )
    return f"rank {writers[0]} has written all {len(whole)} numbers, of all ranks."


def clips_as_one(seen: Observed) -> str:
    """The clipped gradients are those of one rank, which has no shards."""
    whole = len(seen.all_have("parameters")[0])
    if max(seen.all_have("held")) > 0.75 * whole:
        raise Wrong("a model in shards", "each rank holds all of it", "fully_shard has to stay.")
    return _trains_as_alone(
        seen,
        "One factor for all shards on all ranks, from the norm of all of them. Clipping itself has "
        "to stay.",
    )


def averages(seen: Observed) -> str:
    """Gradients and parameters are those of one rank on all of the batch."""
    ranks_agree(seen, meaning="The all-reduce must stay: without it each rank is on its own.")
    alone, found = seen.alone["gradients"], seen.ranks[0]["gradients"]
    same = _apart(seen.ranks[0]["parameters"], seen.alone["parameters"]) <= NEAR
    if same and _apart(found, alone) > NEAR:
        raise Wrong(
            "the gradients that one rank has, with the whole batch",
            "the training is right, but the gradients are larger by the number of ranks",
            "A smaller learning rate makes up for it with SGD. With clipping, weight decay or "
            "another optimizer it does not. Correct the gradient.",
        )
    return _trains_as_alone(
        seen,
        "A sum over the ranks is too large by their number, a mean divided once more too small. "
        "Divide once, before the optimizer's step.",
    )


def uses_both_heads(seen: Observed) -> str:
    """As one rank; and the second head was trained."""
    if _apart(seen.all_have("at_first")[0][-17:], seen.ranks[0]["parameters"][-17:]) < 1e-3:
        raise Wrong(
            "a second head that learns",
            "its parameters are as they were at the start",
            "It is unused in some steps, not in all: it must stay a part of the training.",
        )
    return _trains_as_alone(seen, "Both heads must be trained as one device trains them.")


def measures_and_goes_on(seen: Observed) -> str:
    """Three measurements, ranks together, and BatchNorm has not learnt from validation data."""
    measured, right = seen.all_have("measured")[0], seen.fixed["measured"]
    if len(measured) != 3:
        raise Wrong("3 validation losses on rank 0", str(len(measured)))
    tracked = [mine["num_batches_tracked"] for mine in seen.all_have("buffers")]
    if max(tracked) > 3:
        raise Wrong(
            "3 batches that BatchNorm has learnt from, one for each step of training",
            str(max(tracked)),
            "The model was in training mode while it was evaluated: model.eval() comes before.",
        )
    ranks_agree(seen, meaning="The training itself still needs DDP.")
    if max(abs(a - b) / b for a, b in zip(measured, right, strict=True)) > 0.01:
        raise Wrong(
            "the model's loss on all 16 validation samples after each epoch, "
            + ", ".join(f"{loss:.3f}" for loss in right),
            ", ".join(f"{loss:.3f}" for loss in measured),
            "If the ranks share the samples out, their losses have to be averaged.",
        )
    return "every rank gets through all epochs, and the validation changes nothing."


def starts_alike(seen: Observed) -> str:
    """One start, noise of its own on each rank, one end."""
    first, second = seen.all_have("at_first")
    noise = seen.all_have("noise")
    if noise[0] == noise[1]:
        raise Wrong(
            "noise that differs between the ranks",
            "both ranks draw the same numbers",
            "One seed for all makes the models alike, and the noise too. Which of the two has to "
            "be alike?",
        )
    if _apart(first, second) > NEAR:
        raise Wrong(
            "the same parameters on all ranks at the first forward",
            f"they are up to {_apart(first, second):.2g} apart",
            "Averaged gradients move all models alike: what differs at the start differs forever.",
        )
    ranks_agree(seen, meaning="They begin alike, but their gradients are not averaged.")
    return "the ranks begin and end with one model, and each has noise of its own."


def stops_together(seen: Observed) -> str:
    """All ranks stop in one step, by any loss that is small enough."""
    stops, losses = seen.all_have("step"), [rank["backward_losses"] for rank in seen.ranks]
    if len(set(stops)) > 1:
        raise Wrong(
            "all ranks to stop in the same step",
            f"they stop in steps {', '.join(map(str, stops))}",
            "Each rank decides by a loss of its own.",
        )
    small = [[loss < SMALL_LOSS for loss in step] for step in zip(*losses, strict=True)]
    alone = [loss < SMALL_LOSS for loss in seen.reseeded["backward_losses"]]
    if not any(small[-1]) or not alone[-1] or alone.index(True) < len(alone) - 1:
        raise Wrong(
            f"a training that stops when the loss is below {SMALL_LOSS}",
            f"with other data one rank stops in step {len(alone) - 1}, at a loss of "
            f"{seen.reseeded['backward_losses'][-1]:.2f}",
            "The ranks agree, but the loss does not decide any more.",
        )
    if any(map(all, small[:-1])):
        raise Wrong(
            f"a stop in step {list(map(all, small)).index(True)} at the latest, in which every "
            f"rank's loss is below {SMALL_LOSS}",
            f"a stop in step {stops[0]}",
            "The ranks agree, but on a number that is too large: is it a sum of their losses?",
        )
    return f"all ranks stop in step {stops[0]}, by a loss that is small enough."
