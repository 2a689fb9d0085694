"""Judges of lesson 12: each says why what a script did is right, or raises Wrong."""

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from bootcamp.classroom.tasks import Wrong

NEAR = 1e-4  # how far numbers of float32 may be apart that were added up in another order
SMALL_LOSS = 0.5  # at which own_loss.py stops
SAMPLES = range(32)  # of the scripts' data


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


# What several judges look at


def _apart(a: list[float], b: list[float]) -> float:
    """The largest difference of two lists of numbers, infinite where they are not comparable."""
    if a is None or b is None or len(a) != len(b) or not all(map(math.isfinite, [*a, *b])):
        return math.inf
    return max((abs(x - y) for x, y in zip(a, b, strict=True)), default=math.inf)


def _alike(expected: str, a: list[float], b: list[float], meaning: str) -> None:
    if (apart := _apart(a, b)) > NEAR:
        raise Wrong(expected, f"they are up to {apart:.2g} apart", meaning)


def _ranks_agree(seen: Observed, meaning: str) -> None:
    first, *others = seen.all_have("parameters")
    for other in others:
        _alike("the same parameters on all ranks", first, other, meaning)


def _trains_as_alone(seen: Observed, meaning: str) -> str:
    """The ranks agree, and have the gradients and parameters that one rank has on all the data."""
    _ranks_agree(seen, "Nobody brings the ranks together: each trains a model of its own.")
    for what in ("parameters", "gradients"):
        expected = f"the {what} that one rank has, with the whole batch"
        _alike(expected, seen.ranks[0][what], seen.alone[what], meaning)
    return "the ranks agree, and have trained what one rank trains on the whole batch."


def _share_held(seen: Observed) -> float:
    return max(seen.all_have("held")) / len(seen.all_have("parameters")[0])


def _is_sharded(seen: Observed) -> None:
    if _share_held(seen) > 0.75:
        raise Wrong("a model in shards", "each rank holds all of it", "fully_shard has to stay.")


def _writer(seen: Observed, meaning: str) -> int:
    """The only rank that saves."""
    writers = [rank for rank, mine in enumerate(seen.ranks) if mine["saved"]]
    if len(writers) != 1:
        raise Wrong("one rank that writes", f"{len(writers)} ranks that do", meaning)
    return writers[0]


def _check_shares(
    read: list, samples: Collection[int], verb: str, too_many: str, overlap: str
) -> None:
    """Raise Wrong unless the ranks together read every sample once in each epoch.

    read: [rank][epoch] -> numbers of samples.
    """
    for epoch, parts in enumerate(zip(*read, strict=False)):
        numbers = [number for part in parts for number in part]
        if len(numbers) > len(samples):
            expected = f"{len(samples)} samples in epoch {epoch}, shared out"
            raise Wrong(expected, f"{len(numbers)}: every rank {verb} all of them", too_many)
        if sorted(numbers) != sorted(samples):
            expected = f"every sample once in epoch {epoch}"
            raise Wrong(expected, f"{len(set(numbers))} different ones of {len(samples)}", overlap)


def _orders_change(read: list, meaning: str) -> None:
    if (different := len(set(map(tuple, read[0])))) < len(read[0]):
        orders = f"{different} different orders of {len(read[0])} on rank 0"
        raise Wrong("another order in each epoch", orders, meaning)


# Processes that meet


def meets(seen: Observed) -> str:
    """Two processes started by hand add up what both have."""
    found = seen.all_have("total")
    if found != [3, 3]:
        raise Wrong(
            "the sum 3 on both ranks",
            " and ".join(map(str, found)),
            "A rank that has only its own number has met nobody: world_size says how many meet.",
        )
    return "both processes found each other, and each has the sum of both."


def starts_on_each_machine(seen: Observed) -> str:
    """One program on each of two machines starts that machine's two ranks, and all four meet."""
    totals = seen.all_have("totals")
    started = [[rank for rank, total in enumerate(mine) if total] for mine in totals]
    if started != [[0, 1], [2, 3]]:
        raise Wrong(
            "ranks 0 and 1 on machine 0, ranks 2 and 3 on machine 1",
            " and ".join(map(str, started)),
            "mp.spawn starts its processes on the machine where it is called.",
        )
    sums = {total for mine in totals for total in mine if total}
    if sums != {10}:
        raise Wrong(
            "the sum 10 on all four ranks",
            " and ".join(f"{total:g}" for total in sorted(sums)),
            "Less: the rank has not met the other machine. A multiple: it was started again.",
        )
    return "each machine's program starts its two ranks, and all four add up 10."


def trains_on_gpus_of_its_own(seen: Observed) -> str:
    """Each rank has two GPUs of its host that no other rank uses; the ranks train together."""
    gpus, hosts = seen.all_have("gpus"), seen.all_have("host")
    for rank, mine in enumerate(gpus):
        if len(set(mine)) != 2:
            raise Wrong("two GPUs for each rank", f"{mine} on rank {rank}", "The cut has to stay.")
    for host in sorted(set(hosts)):
        used = [gpu for mine, its in zip(gpus, hosts, strict=True) if its == host for gpu in mine]
        if len(set(used)) < len(used):
            raise Wrong(
                f"GPUs of its own for each rank of host {host}",
                f"of {len(used)} that its ranks need, only {sorted(set(used))} are used",
                "It runs, with half the memory and half the speed for those who share. Which "
                "number counts the ranks of one host?",
            )
    _ranks_agree(seen, "DistributedDataParallel has to stay: each rank trains alone.")
    return "every rank has two GPUs of its own, and all of them train one model."


# Data


def reads_well(seen: Observed) -> str:
    """Every epoch has all samples once, shared out, in an order of its own."""
    read = seen.all_have("seen")
    _check_shares(
        read,
        SAMPLES,
        verb="reads",
        too_many="The DistributedSampler shares them out, shuffle=True of the DataLoader does not.",
        overlap="The ranks must shuffle alike, with one seed, so that their shares don't overlap.",
    )
    told = "The sampler draws its order from its seed and the epoch that it was told: tell it."
    _orders_change(read, told)
    if len(set(map(frozenset, read[0]))) == 1:
        raise Wrong(
            "a rank that meets other samples in another epoch",
            "the same 16 samples in another order",
            "Shuffle before the samples are shared out, not after.",
        )
    return "three epochs, three orders; the shares are disjoint and change from epoch to epoch."


def splits_alike(seen: Observed) -> str:
    """The ranks hold out the same samples, train on all others, and share those out."""
    held_out, read = seen.all_have("held_out"), seen.all_have("seen")
    held, trained = set().union(*held_out), {n for mine in read for epoch in mine for n in epoch}
    if leaked := held & trained:
        raise Wrong(
            "no sample that is both trained and used for validation",
            f"{len(leaked)} that are both",
            "What one rank holds out, another one trains: the ranks have drawn different "
            "splits. Who must agree, and on what?",
        )
    _check_shares(
        read,
        set(SAMPLES) - held,
        verb="reads",
        too_many="The split is the same now. The sampler has to stay.",
        overlap="The same samples in another order on each rank: positions are disjoint, what is "
        "at them is not.",
    )
    if len(held) != 8 or any(set(mine) != held for mine in held_out):
        raise Wrong("the same 8 samples held out on all ranks", f"{held_out}")
    _orders_change(read, "set_epoch has to stay.")
    return "all ranks hold out the same 8 samples and share out the other 24."


def measures_and_goes_on(seen: Observed) -> str:
    """Three measurements, ranks together, and BatchNorm has not learnt from validation data."""
    measured, right = seen.all_have("measured")[0], seen.fixed["measured"]
    if len(measured) != 3:
        raise Wrong("3 validation losses on rank 0", str(len(measured)))
    tracked = max(mine["num_batches_tracked"] for mine in seen.all_have("buffers"))
    if tracked > 3:
        raise Wrong(
            "3 batches that BatchNorm has learnt from, one for each step of training",
            str(tracked),
            "The model was in training mode while it was evaluated: model.eval() comes before.",
        )
    _ranks_agree(seen, "The training itself still needs DDP.")
    if max(abs(a - b) / b for a, b in zip(measured, right, strict=True)) > 0.01:
        mine, its = (", ".join(f"{loss:.3f}" for loss in each) for each in (measured, right))
        raise Wrong(
            f"the model's loss on all 16 validation samples after each epoch, {its}",
            mine,
            "If the ranks share the samples out, their losses have to be averaged.",
        )
    return "every rank gets through all epochs, and the validation changes nothing."


# Checkpoints


def one_writes(seen: Observed) -> str:
    """One rank writes checkpoint.pt, and all can read it when they do."""
    files = {path for rank in seen.ranks for path in rank["saved"]}
    if len(files) > 1:
        raise Wrong(
            "one file, checkpoint.pt",
            ", ".join(sorted(files)),
            "The ranks hold the same model. N copies cost N times the time and the place, and a "
            "job with other ranks does not know which to read.",
        )
    writer = _writer(seen, "It went well this time, by chance. Let one rank save.")
    restored = seen.all_have("restored")
    if set(restored) != {1}:
        raise Wrong(
            "the checkpoint of step 1 on all ranks",
            f"steps {restored}",
            "Did a rank read before the file was whole?",
        )
    return f"rank {writer} writes, and every rank reads a whole file."


def saves_all(seen: Observed) -> str:
    """One file that has all weights of a model that is still sharded."""
    whole, restored = seen.all_have("parameters")[0], seen.all_have("restored")
    _is_sharded(seen)
    gather = "All ranks gather, one writes: only torch.save belongs under the condition."
    writer = _writer(seen, gather)
    for rank, mine in enumerate(restored):
        if _apart(mine, whole) > NEAR:
            raise Wrong(
                f"the {len(whole)} numbers of the trained model in the file",
                f"others on rank {rank}",
                "What was loaded is not what the ranks hold together.",
            )
    return f"rank {writer} has written all {len(whole)} numbers, of all ranks."


def trains_with_deepspeed(seen: Observed) -> str:
    """Every sample once in an epoch, shared out; a checkpoint with the shards of all ranks."""
    read = seen.all_have("seen")
    for rank, mine in enumerate(seen.ranks):
        if not any("optim_states" in path for path in mine["saved"]):
            raise Wrong(
                "a checkpoint with each rank's shard of the optimizer's state",
                f"no such file of rank {rank}",
                "With stage 1 no rank has all of it. All ranks call save_checkpoint.",
            )
    _ranks_agree(seen, "Each rank trains alone: model.backward and model.step must stay.")
    _check_shares(
        read,
        SAMPLES,
        verb="trains",
        too_many="It runs to its end, and this fault says nothing. DeepSpeed shares out no data "
        "that others load: this loader needs a DistributedSampler.",
        overlap="The shares must be disjoint: one seed for all ranks, another place for each.",
    )
    return "every sample is trained once an epoch, and the checkpoint has all shards."


# Models and gradients


def all_moved(seen: Observed) -> str:
    """Every rank has the whole model with numbers in it."""
    parameters = seen.all_have("parameters")
    if any(len(mine) != 161 for mine in parameters):
        raise Wrong(
            "161 numbers on each rank",
            " and ".join(str(len(mine)) for mine in parameters),
            "A tensor on the meta device has a shape and no numbers.",
        )
    _ranks_agree(seen, "DistributedDataParallel must be there on every rank.")
    if _apart(parameters[0], [0.0] * 161) < 0.05:
        raise Wrong(
            "parameters that were initialised",
            "all of them are nearly 0",
            "to_empty gives memory, not numbers: call reset_parameters() of each layer too.",
        )
    return "every rank has the model on its device, and they end with the same parameters."


def shards_inside(seen: Observed) -> str:
    """Each of four ranks holds half of the model, and trains as one rank does."""
    share, meaning = _share_held(seen), ""
    if share > 0.75:
        meaning = "Nothing is sharded any more: it is fully_shard that has to stay."
    elif share < 0.35:
        meaning = "That is a quarter: FSDP over all ranks. The mesh has rows of two."
    if meaning:
        raise Wrong("half of the parameters on each rank", f"{share:.0%} of them", meaning)
    return f"each rank holds half of the model, and {_trains_as_alone(seen, '')}"


def clips_as_one(seen: Observed) -> str:
    """The clipped gradients are those of one rank, which has no shards."""
    _is_sharded(seen)
    return _trains_as_alone(
        seen,
        "One factor for all shards on all ranks, from the norm of all of them. Clipping itself has "
        "to stay.",
    )


def averages(seen: Observed) -> str:
    """Gradients and parameters are those of one rank on all of the batch."""
    _ranks_agree(seen, "The all-reduce must stay: without it each rank is on its own.")
    mine, alone = seen.ranks[0], seen.alone
    same_model = _apart(mine["parameters"], alone["parameters"]) <= NEAR
    if same_model and _apart(mine["gradients"], alone["gradients"]) > NEAR:
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


def starts_alike(seen: Observed) -> str:
    """One start, noise of its own on each rank, one end."""
    noise = seen.all_have("noise")
    if noise[0] == noise[1]:
        raise Wrong(
            "noise that differs between the ranks",
            "both ranks draw the same numbers",
            "One seed for all makes the models alike, and the noise too. Which of the two has to "
            "be alike?",
        )
    _alike(
        "the same parameters on all ranks at the first forward",
        *seen.all_have("at_first"),
        "Averaged gradients move all models alike: what differs at the start differs forever.",
    )
    _ranks_agree(seen, "They begin alike, but their gradients are not averaged.")
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
    reseeded = seen.reseeded["backward_losses"]
    alone = [loss < SMALL_LOSS for loss in reseeded]
    if not any(small[-1]) or not alone[-1] or any(alone[:-1]):
        raise Wrong(
            f"a training that stops when the loss is below {SMALL_LOSS}",
            f"with other data one rank stops in step {len(alone) - 1}, at a loss of "
            f"{reseeded[-1]:.2f}",
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
