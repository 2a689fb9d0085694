"""Judges of lesson 12's scripts: each says why what a script did is right, or raises Wrong."""

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from bootcamp.classroom.tasks import Wrong

TOLERANCE = 1e-4  # for sums of float32 in another order
STOP_LOSS = 0.5  # at which own_loss.py stops
SAMPLES = range(32)  # of the scripts' data


@dataclass
class Observed:
    """What _observe.py saw of a script, a dictionary for each of `ranks`.

    reseeded: one rank with other random numbers. fixed: the ranks of the fixed script. alone: that
    on one rank, which has the whole batch.
    """

    ranks: list[dict]
    reseeded: dict = field(default_factory=dict)
    fixed: list[dict] = field(default_factory=list)
    alone: dict = field(default_factory=dict)

    def values(self, name: str) -> list:
        """Return a variable's value on each rank. Raises Wrong where a script has lost it."""
        if any(name not in rank for rank in self.ranks):
            raise Wrong(f"a script with the name `{name}`", f"`{name}` is gone: leave it there")
        return [rank[name] for rank in self.ranks]


def _require(condition: bool, expected: str, seen: object, meaning: str = "") -> None:
    if not condition:
        raise Wrong(expected, str(seen), meaning)


def _largest_difference(a: list[float] | None, b: list[float] | None) -> float:
    """Compare two lists of numbers; infinite where they are not comparable."""
    if a is None or b is None or len(a) != len(b) or not all(map(math.isfinite, [*a, *b])):
        return math.inf
    return max((abs(x - y) for x, y in zip(a, b, strict=True)), default=math.inf)


def _check_equal(expected: str, a: list[float], b: list[float], meaning: str) -> None:
    difference = _largest_difference(a, b)
    seen = f"they are up to {difference:.2g} apart"
    _require(difference <= TOLERANCE, expected, seen, meaning)


def _check_ranks_agree(seen: Observed, meaning: str) -> None:
    first, *others = seen.values("parameters")
    for other in others:
        _check_equal("the same parameters on all ranks", first, other, meaning)


def judge_training(seen: Observed, meaning: str) -> str:
    """Require the training of one rank with the whole batch; meaning: of any other."""
    _check_ranks_agree(seen, "Nobody brings the ranks together: each trains a model of its own.")
    for what in ("parameters", "gradients"):
        expected = f"the {what} that one rank has, with the whole batch"
        _check_equal(expected, seen.ranks[0][what], seen.alone[what], meaning)
    return "the ranks agree, and have trained what one rank trains on the whole batch."


def _fraction_held(seen: Observed) -> float:
    """Return the fullest rank's fraction of all parameters."""
    return max(seen.values("held")) / len(seen.values("parameters")[0])


def _check_is_sharded(seen: Observed) -> None:
    held, meaning = _fraction_held(seen), "fully_shard has to stay."
    _require(held <= 0.75, "a model in shards", "each rank holds all of it", meaning)


def _find_only_writer(seen: Observed, meaning: str) -> int:
    """Return the only rank that saves. Raises Wrong if several do, or none."""
    writers = [rank for rank, mine in enumerate(seen.ranks) if mine["saved"]]
    _require(len(writers) == 1, "one rank that writes", f"{len(writers)} ranks that do", meaning)
    return writers[0]


def _check_shares(
    read: list, samples: Collection[int], verb: str, too_many: str, overlap: str
) -> None:
    """Require each sample once in each epoch; read: [rank][epoch] -> numbers of samples."""
    for epoch, parts in enumerate(zip(*read, strict=False)):
        numbers = [number for part in parts for number in part]
        shared_out = f"{len(samples)} samples in epoch {epoch}, shared out"
        whole = all(set(part) >= set(samples) for part in parts)
        all_on_each = f"{len(numbers)}" + f": every rank {verb} all of them" * whole
        _require(len(numbers) <= len(samples), shared_out, all_on_each, too_many)
        once = f"every sample once in epoch {epoch}"
        different = f"{len(set(numbers))} different ones of {len(samples)}"
        _require(sorted(numbers) == sorted(samples), once, different, overlap)


def _check_orders_change(read: list, meaning: str) -> None:
    different = len(set(map(tuple, read[0])))
    orders = f"{different} different orders of {len(read[0])} on rank 0"
    _require(different == len(read[0]), "another order in each epoch", orders, meaning)


def judge_meeting(seen: Observed) -> str:
    """Require that two processes started by hand add up what both have."""
    totals = seen.values("total")
    meaning = "A rank that has only its own number has met nobody: world_size says how many meet."
    _require(totals == [3, 3], "the sum 3 on both ranks", " and ".join(map(str, totals)), meaning)
    return "both processes found each other, and each has the sum of both."


def judge_two_machines(seen: Observed) -> str:
    """Require that each machine's program starts its own two ranks, and that all four meet."""
    totals = seen.values("totals")
    started = [[rank for rank, total in enumerate(mine) if total] for mine in totals]
    _require(
        started == [[0, 1], [2, 3]],
        "ranks 0 and 1 on machine 0, ranks 2 and 3 on machine 1",
        " and ".join(map(str, started)),
        "mp.spawn starts its processes on the machine where it is called.",
    )
    sums = {total for mine in totals for total in mine if total}
    added = " and ".join(f"{total:g}" for total in sorted(sums))
    meaning = "Less: the rank has not met the other machine. A multiple: it was started again."
    _require(sums == {10}, "the sum 10 on all four ranks", added, meaning)
    return "each machine's program starts its two ranks, and all four add up 10."


def judge_gpus_of_ranks(seen: Observed) -> str:
    """Require two GPUs for each rank that no other rank of its host uses, and one model."""
    gpus, hosts = seen.values("gpus"), seen.values("host")
    for rank, mine in enumerate(gpus):
        two, seen_here = "two GPUs for each rank", f"{mine} on rank {rank}"
        _require(len(set(mine)) == 2, two, seen_here, "The cut has to stay.")
    for host in sorted(set(hosts)):
        used = [gpu for mine, its in zip(gpus, hosts, strict=True) if its == host for gpu in mine]
        own, expected = sorted(set(used)), f"GPUs of its own for each rank of host {host}"
        shared = f"of {len(used)} that its ranks need, only {own} are used"
        meaning = "Who shares has half the memory and speed. Which number counts a host's ranks?"
        _require(len(own) == len(used), expected, shared, meaning)
    _check_ranks_agree(seen, "DistributedDataParallel has to stay: each rank trains alone.")
    return "every rank has two GPUs of its own, and all of them train one model."


def judge_epochs(seen: Observed) -> str:
    """Require every sample once in each epoch, shared out, in an order that changes."""
    read = seen.values("seen")
    _check_shares(
        read,
        SAMPLES,
        verb="reads",
        too_many="The DistributedSampler shares them out, shuffle=True of the DataLoader does not.",
        overlap="The ranks must shuffle alike, with one seed, so that their shares don't overlap.",
    )
    meaning = "The sampler draws its order from its seed and the epoch that it was told: tell it."
    _check_orders_change(read, meaning)
    shares, expected = set(map(frozenset, read[0])), "other samples on a rank in another epoch"
    meaning = "Shuffle before the samples are shared out, not after."
    _require(len(shares) > 1, expected, "the same 16 in another order", meaning)
    return "three epochs, three orders; the shares are disjoint and change from epoch to epoch."


def judge_split(seen: Observed) -> str:
    """Require that the ranks hold out the same samples, and share out and train all others."""
    held_out, read = seen.values("held_out"), seen.values("seen")
    held, trained = set().union(*held_out), {n for mine in read for epoch in mine for n in epoch}
    both, expected = held & trained, "no sample that is both trained and used for validation"
    meaning = "The ranks have drawn different splits. Who must agree, and on what?"
    _require(not both, expected, f"{len(both)} that are both", meaning)
    _check_shares(
        read,
        set(SAMPLES) - held,
        verb="reads",
        too_many="The split is the same now. The sampler has to stay.",
        overlap="Each rank has another order: positions are disjoint, samples are not.",
    )
    is_same = len(held) == 8 and all(set(mine) == held for mine in held_out)
    _require(is_same, "the same 8 samples held out on all ranks", held_out)
    _check_orders_change(read, "set_epoch has to stay.")
    return "all ranks hold out the same 8 samples and share out the other 24."


def judge_validation(seen: Observed) -> str:
    """Require three measurements that change nothing, BatchNorm included, and ranks that agree."""
    measured, right = seen.values("measured")[0], seen.fixed[0]["measured"]
    _require(len(measured) == 3, "3 validation losses on rank 0", len(measured))
    tracked = max(mine["num_batches_tracked"] for mine in seen.values("buffers"))
    batches = "3 batches that BatchNorm has learnt from, one for each step of training"
    meaning = "The model was in training mode while it was evaluated: model.eval() comes before."
    _require(tracked <= 3, batches, tracked, meaning)
    _check_ranks_agree(seen, "The training itself still needs DDP.")
    mine, its = (", ".join(f"{loss:.3f}" for loss in losses) for losses in (measured, right))
    _require(
        max(abs(a - b) / b for a, b in zip(measured, right, strict=True)) <= 0.01,
        f"the model's loss on all 16 validation samples after each epoch, {its}",
        mine,
        "If the ranks share the samples out, their losses have to be averaged.",
    )
    return "every rank gets through all epochs, and the validation changes nothing."


def judge_one_writer(seen: Observed) -> str:
    """Require that one rank writes checkpoint.pt, and that all read it whole."""
    files = {path for rank in seen.ranks for path in rank["saved"]}
    meaning = "The ranks hold the same model. N copies cost N times the time and the place, and a "
    meaning += "job with other ranks does not know which to read."
    _require(len(files) <= 1, "one file, checkpoint.pt", ", ".join(sorted(files)), meaning)
    writer = _find_only_writer(seen, "It went well this time, by chance. Let one rank save.")
    restored = seen.values("restored")
    meaning, steps = "Did a rank read before the file was whole?", f"steps {restored}"
    _require(set(restored) == {1}, "the checkpoint of step 1 on all ranks", steps, meaning)
    return f"rank {writer} writes, and every rank reads a whole file."


def judge_whole_model_saved(seen: Observed) -> str:
    """Require one file that has all weights of a model that is still sharded."""
    whole, restored = seen.values("parameters")[0], seen.values("restored")
    _check_is_sharded(seen)
    gather = "All ranks gather, one writes: only torch.save belongs under the condition."
    writer = _find_only_writer(seen, gather)
    for rank, mine in enumerate(restored):
        is_whole = _largest_difference(mine, whole) <= TOLERANCE
        numbers = f"the {len(whole)} numbers of the trained model in the file"
        meaning = "What was loaded is not what the ranks hold together."
        _require(is_whole, numbers, f"others on rank {rank}", meaning)
    return f"rank {writer} has written all {len(whole)} numbers, of all ranks."


def judge_deepspeed(seen: Observed) -> str:
    """Require every sample once in an epoch, and a checkpoint with the shards of all ranks."""
    read = seen.values("seen")
    for rank, mine in enumerate(seen.ranks):
        has_shard = any("optim_states" in path for path in mine["saved"])
        shards = "a checkpoint with each rank's shard of the optimizer's state"
        meaning = "With stage 1 no rank has all of it. All ranks call save_checkpoint."
        _require(has_shard, shards, f"no such file of rank {rank}", meaning)
    _check_ranks_agree(seen, "Each rank trains alone: model.backward and model.step must stay.")
    _check_shares(
        read,
        SAMPLES,
        verb="trains",
        too_many="It runs to its end, and this fault says nothing. DeepSpeed shares out no data "
        "that others load: this loader needs a DistributedSampler.",
        overlap="The shares must be disjoint: one seed for all ranks, another place for each.",
    )
    return "every sample is trained once an epoch, and the checkpoint has all shards."


def judge_initialisation(seen: Observed) -> str:
    """Require that every rank has the whole model with numbers in it."""
    parameters = seen.values("parameters")
    counts = [len(mine) for mine in parameters]
    meaning = "A tensor on the meta device has a shape and no numbers."
    seen_counts = " and ".join(map(str, counts))
    _require(set(counts) == {161}, "161 numbers on each rank", seen_counts, meaning)
    _check_ranks_agree(seen, "DistributedDataParallel must be there on every rank.")
    is_drawn = _largest_difference(parameters[0], [0.0] * 161) >= 0.05
    meaning = "to_empty gives memory, not numbers: call reset_parameters() of each layer too."
    _require(is_drawn, "parameters that were initialised", "all of them are nearly 0", meaning)
    return "every rank has the model on its device, and they end with the same parameters."


def judge_hybrid_shards(seen: Observed) -> str:
    """Require that each of four ranks holds half of the model, and trains as one rank does."""
    fraction, meaning = _fraction_held(seen), ""
    if fraction > 0.75:
        meaning = "Nothing is sharded any more: it is fully_shard that has to stay."
    elif fraction < 0.35:
        meaning = "That is a quarter: FSDP over all ranks. The mesh has rows of two."
    _require(not meaning, "half of the parameters on each rank", f"{fraction:.0%} of them", meaning)
    return f"each rank holds half of the model, and {judge_training(seen, '')}"


def judge_each_rank(seen: Observed, meaning: str) -> str:
    """Require of each rank what it holds of one rank's training; meaning: of any other."""
    if len(seen.fixed[0]["parameters"]) > seen.fixed[0]["held"]:
        _check_is_sharded(seen)
    for what in ("parameters", "gradients"):
        for mine, right in zip(seen.values(what), seen.fixed, strict=True):
            _check_equal(f"this rank's part of one rank's {what}", mine, right[what], meaning)
    return "each rank has trained what one rank trains on the whole batch, or its part of it."


def judge_gathered_bytes(seen: Observed) -> str:
    """Require that float32 shards are gathered and used in 16 bits."""
    _check_is_sharded(seen)
    _check_ranks_agree(seen, "Nobody brings the ranks together: each trains a model of its own.")
    types = seen.values("types")[0]
    meaning = "Small updates vanish in 16 bits: what the optimizer changes stays in 32."
    _require(types == ["torch.float32"], "shards in float32", ", ".join(types), meaning)
    mine, right = (ranks[0]["gathered"] for ranks in (seen.ranks, seen.fixed))
    meaning = "Whatever computes in 16 bits: what travels is not in 16."
    _require(mine <= 1.01 * right, f"{right:,} gathered bytes at most", f"{mine:,}", meaning)
    used = seen.values("linear_gave")[0]
    meaning = "Fewer bytes may have another reason: fewer gathers, and more memory."
    _require(used == ["torch.bfloat16"], "layers that compute in bfloat16", used, meaning)
    return f"{mine:,} bytes are gathered, in 16 bits, and the optimizer has 32."


def judge_batches(seen: Observed) -> str:
    """Require that ranks train 32 of 33 samples or more in each epoch, together."""
    for parts in zip(*seen.values("seen"), strict=True):
        numbers = sum(parts, [])
        trained = f"{len(numbers)} trained, {len(set(numbers))} of them different"
        meaning = "Each rank has a share, and only the sample that does not divide may be left out."
        is_right = len(numbers) <= 34 and len(set(numbers)) >= 32
        _require(is_right, "33 samples, shared out", trained, meaning)
    _check_ranks_agree(seen, "DistributedDataParallel has to stay: each rank trains alone.")
    return "all ranks get through both epochs, and one sample at most is left out or read twice."


def judge_each_once(seen: Observed) -> str:
    """Require that each sample is read once, by any worker, rank or job."""
    too_many = "Each worker, rank and job has to leave out what any other one reads."
    _check_shares(seen.values("seen"), SAMPLES, "reads", too_many, "Some are read again.")
    return "every sample is read once."


def judge_worker(seen: Observed) -> str:
    """Require as judge_each_once, by another process than the rank."""
    is_worker = all(mine["process"] not in mine["readers"] for mine in seen.ranks)
    meaning = "That ends the waiting, and the reading beside the training with it."
    _require(is_worker, "a worker that reads", "a rank that reads by itself", meaning)
    return judge_each_once(seen)


def judge_both_heads(seen: Observed) -> str:
    """Require the training of one rank, in which the second head learns too."""
    at_first, at_last = seen.values("at_first")[0], seen.ranks[0]["parameters"]
    learns = _largest_difference(at_first[-17:], at_last[-17:]) >= 1e-3
    meaning = "It is unused in some steps, not in all: it must stay a part of the training."
    _require(learns, "a second head that learns", "it is as it was at the start", meaning)
    return judge_training(seen, "Both heads must be trained as one device trains them.")


def judge_same_start(seen: Observed) -> str:
    """Require equal models at the start and the end, and noise of its own on each rank."""
    noise = seen.values("noise")
    differs, alike = noise[0] != noise[1], "both ranks draw the same numbers"
    meaning = "One seed for all makes the models alike, and the noise too. Which has to be alike?"
    _require(differs, "noise that differs between the ranks", alike, meaning)
    _check_equal(
        "the same parameters on all ranks at the first forward",
        *seen.values("at_first"),
        "Averaged gradients move all models alike: what differs at the start differs forever.",
    )
    _check_ranks_agree(seen, "They begin alike, but their gradients are not averaged.")
    return "the ranks begin and end with one model, and each has noise of its own."


def judge_common_stop(seen: Observed) -> str:
    """Require that all ranks stop in one step, because of a loss that is small enough."""
    stops, losses = seen.values("step"), [rank["backward_losses"] for rank in seen.ranks]
    seen_stops = ", ".join(map(str, stops))
    meaning = "Each rank decides by a loss of its own."
    together = "all ranks to stop in the same step"
    _require(len(set(stops)) == 1, together, f"they stop in steps {seen_stops}", meaning)
    small = [[loss < STOP_LOSS for loss in step] for step in zip(*losses, strict=True)]
    reseeded = seen.reseeded["backward_losses"]
    alone = [loss < STOP_LOSS for loss in reseeded]
    _require(
        any(small[-1]) and alone[-1] and not any(alone[:-1]),
        f"a training that stops when the loss is below {STOP_LOSS}",
        f"with other data one rank stops in step {len(alone) - 1}, at a loss of {reseeded[-1]:.2f}",
        "The ranks agree, but the loss does not decide any more.",
    )
    if any(map(all, small[:-1])):
        raise Wrong(
            f"a stop in step {list(map(all, small)).index(True)} at the latest, in which every "
            f"rank's loss is below {STOP_LOSS}",
            f"a stop in step {stops[0]}",
            "The ranks agree, but on a number that is too large: is it a sum of their losses?",
        )
    return f"all ranks stop in step {stops[0]}, by a loss that is small enough."
