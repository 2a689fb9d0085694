"""Explain a difference from the baseline: the hint of each row of a failed proof."""

import math

from bootcamp import units
from bootcamp.experiments.run_and_baseline import Pair, distance, loss_distance
from bootcamp.records.runs import Run

ROUNDING = 1e-3  # the largest share of their way that rounding alone keeps parameters apart
# gloo, for a number passed on once: it and its header, and a header of who is ready for it
MESSAGE_BYTES = 8 + 2 * 48  # (`Op` in gloo's transport/tcp/pair.h)
MODULE_NAMES = (
    "The state dict is that of the DDP wrapper, and a script without DDP can't load it: save "
    "wrapped.module.state_dict(), or that of the model inside."
)
SAVED_SHARDS = (
    "The file lacks what the other ranks hold: get_model_state_dict with "
    "StateDictOptions(full_state_dict=True) gathers. Call it on every rank, save on rank 0."
)


def explain_settings(name: str, run: Run, baseline: Run) -> str:
    """Explain why runs with different settings can't be compared, and what to do."""
    mine, expected, world = run.config.get(name), baseline.config.get(name), run.world
    if name == "corpus_crc32":
        return (
            "the runs can't be compared: they were trained on different texts. The text is the "
            "same on every machine; an older record may have another. Run both again"
        )
    text = f"the runs can't be compared: {name} is {mine} here and {expected} in the baseline"
    if name == "global_batch" and world > 1 and mine == expected * world:
        text += (
            ": each rank takes as many samples as the baseline in all. Divide the batch "
            "size by the number of ranks"
        )
    elif name == "global_batch" and expected % world:
        text += (
            f": {expected} samples can't be divided among {world} ranks. Choose a batch size "
            f"that is a multiple of {world}, for both runs"
        )
    return text


def explain_processes(pair: Pair) -> str:
    run, ranks = pair.run, pair.run.ranks
    if run.world > 1 and all(rank["world_size"] == 1 for rank in ranks):
        return (
            f"{run.world} processes were started and none has joined a process group: nothing is "
            "synchronised, each trains alone. Call dist.init_process_group() first, take rank and "
            "world size from it, and wrap the model, for example in DistributedDataParallel."
        )
    return (
        f"{run.world} processes were started, {len(ranks)} left a record. Each must join one "
        "process group and take rank and world size from it."
    )


def explain_repeated_samples(pair: Pair) -> str:
    where = (
        "DistributedSampler(dataset, world, rank) deals out the shares"
        if pair.foreign
        else "give data.Batches the rank and the world size"
    )
    return f"Ranks repeat each other's work, each must take a share of its own: {where}."


def explain_other_samples(pair: Pair) -> str:
    differ = [set(drawn) != set(expected) for _, drawn, expected in pair.batches]
    step, drawn, _ = pair.batches[differ.index(True)]
    if set(drawn) in [set(earlier) for _, earlier, _ in pair.batches[: differ.index(True)]]:
        return (
            f"From step {step} on the ranks draw batches again that they have had, and the "
            "baseline draws new ones: call sampler.set_epoch(epoch) at the beginning of each epoch."
        )
    if pair.foreign:
        return (
            "The ranks' shares must add up to the baseline's batch: the same dataset, order and "
            "seed of the sampler on every rank, and the batch size divided by the number of ranks."
        )
    return "The global batch depends on (seed, step) alone; the ranks' shares must add up to it."


def explain_other_contents(pair: Pair) -> str:
    return (
        f"{units.ranks(pair.other_contents).capitalize()} drew other data under the same ids: "
        "made, split or augmented with random numbers of its own (a seed that depends on the "
        "rank?). A sample must be a function of its id: draw the data with one seed on all ranks, "
        "or seed a generator by the id of each sample."
    )


def explain_losses(pair: Pair) -> str:
    """Explain losses by the first step in which they differ, and by what else is equal."""
    if pair.first_step:
        return "Gradients or the optimizer differ, or what was resumed from."
    first = pair.wrong_steps[0]
    if first == 0:
        return _explain_first_loss(pair)
    if pair.other_learning_rate and pair.other_learning_rate[0] < first:
        return _explain_learning_rate(*pair.other_learning_rate)
    if not pair.same_samples:
        return "The samples are not the baseline's, so the losses can't be: look at those first."
    if first > 1 and pair.uses_sgd:
        return (
            f"They agree before step {first}, so the first update was right. A later one uses "
            "what the step before has left: are the gradients set to zero in every step?"
        )
    text = f"They agree before step {first}: from there on gradients or the optimizer differ."
    return f"{text} {_explain_batch_norm(pair)}".strip()


def _explain_first_loss(pair: Pair) -> str:
    """Explain a loss that differs before any parameter has changed."""
    if pair.same_samples and pair.parameter_distance("final") <= pair.tolerance:
        return (
            "All parameters agree, so the training is right and the recorded loss is not. It must "
            "be the mean over the global batch: over all ranks, neither a sum nor one rank's share."
        )
    mine, expected = pair.losses[0]
    factor = mine / expected if math.isfinite(mine) and expected else 0.0
    if round(factor) > 1 and abs(factor - round(factor)) < 0.01:
        return (
            f"The first one is {round(factor)} times the baseline's, before any parameter has "
            "changed: something is added up where the mean over the batch is meant."
        )
    start = "They differ from step 0 on, before any parameter has changed: "
    if not pair.same_samples:
        return f"{start}the samples are not the baseline's."
    if pair.parameter_distance("initial") > pair.tolerance:
        return f"{start}the initial parameters are not the baseline's."
    unknown = pair.other_contents is None
    what = "the contents of the samples" if unknown else "what a step does to its samples"
    if pair.foreign:
        what += " (made or augmented with a seed that depends on the rank?), dropout,"
    what += " or a loss that is not the mean over the global batch (padding? divide by all tokens)."
    if batch_norm := _explain_batch_norm(pair):
        return f"{batch_norm} With them frozen, it may be {what}"
    return f"{start}ids of the samples and initial parameters agree, so it is {what}"


def _explain_learning_rate(step: int, mine: float, expected: float) -> str:
    return (
        f"The learning rate of step {step} is {mine:.3g}, the baseline's {expected:.3g}. Is a "
        "schedule stepped once in each step, whatever the number of ranks, and as long as the "
        "training?"
    )


def explain_initial_parameters(pair: Pair) -> str:
    begin = pair.fingerprints("initial")
    if all(mine == begin[0] for mine in begin):
        return (
            "Every rank begins alike, but not as the baseline: something has changed the "
            "parameters before the first step."
        )
    return "Ranks begin with different parameters: broadcast rank 0's, or initialise each part."


def explain_final_parameters(pair: Pair) -> str:
    begin, end = pair.fingerprints("initial"), pair.fingerprints("final")
    if begin == end:
        return (
            "They are the initial ones still. Either no step was made: optimizer.step(), with its "
            "brackets, comes after backward() and before the gradients are set to zero. Or the "
            "optimizer holds none of the model's parameters: build it last, over the final model."
        )
    moved = distance(begin[0], end[0])
    if max(distance(mine, end[0]) for mine in end) > ROUNDING * moved:
        return (
            "Nothing is synchronised: the ranks send each other next to nothing, and end with "
            "different parameters. Is the model wrapped, and is it the wrapped one that is called?"
            if _sends_no_gradients(pair)
            else "A layer is not synchronised: the ranks end with different parameters."
        )
    return _explain_batch_norm(pair) or _explain_distance(pair, moved)


def _sends_no_gradients(pair: Pair) -> bool:
    """Whether the ranks send too little to exchange gradients; False where it isn't known.

    For the loss and what is noted a rank sends MESSAGE_BYTES to and from each of the others.
    """
    run, rank = pair.run, pair.run.ranks[0]
    sent = [rank.get("sent_bytes_per_step") for rank in run.ranks]
    if run.world == 1 or run.device == "cuda" or None in sent:
        return False
    numbers = 1 + sum(map(len, rank.get("noted", {}).values())) / max(1, len(run.steps))
    return max(sent) < numbers * 2 * (run.world - 1) * MESSAGE_BYTES + 0.01 * rank["gradient_bytes"]


def _explain_distance(pair: Pair, moved: float) -> str:
    """Explain by how far the parameters moved: with SGD that grows with the gradients."""
    if pair.other_learning_rate:
        return _explain_learning_rate(*pair.other_learning_rate)
    if not pair.same_samples:
        return "The samples are not the baseline's, so the parameters can't be."
    if pair.parameter_distance("initial") > ROUNDING:
        return "They did not begin as the baseline's, so they can't end so."
    share = moved / (pair.baseline_moved or math.inf) if pair.uses_sgd and not pair.resumed else 1.0
    if share > 1.25:
        return (
            f"They went {share:.1f} times as far as the baseline's: the gradients or the learning "
            "rate are too large. Is a sum used where a mean is meant?"
        )
    if share < 0.8:
        return (
            f"They went {share:.2f} times as far as the baseline's: the gradients or the learning "
            "rate are too small. Is a part left out, a mean used where a sum is meant, or are "
            "gradients clipped before they are averaged?"
        )
    if pair.wrong_steps[:1] == [0]:
        return "Losses differ before the first update, so the updates do too: look there first."
    adam = not pair.uses_sgd and not pair.resumed and not pair.wrong_steps
    if adam and pair.parameter_distance("final") <= 5 * ROUNDING:  # a key's bias has nothing else
        return (
            "All losses agree and the parameters nearly do: this may be rounding that Adam "
            "enlarges. Repeat with SGD or in float64. What differs there too is a fault: are "
            "gradients summed instead of averaged, or clipped before they are averaged?"
        )
    if len(pair.run.ranks) == 1:
        return "The gradients are not those of the global batch, or the optimizer's step differs."
    return (
        "The ranks end alike, so they are synchronised, but by another step than the baseline's: "
        "are gradients summed, or clipped before they are averaged? Or parameters, under Adam?"
    )


def _explain_batch_norm(pair: Pair) -> str:
    """Explain layers that normalise over one rank's samples alone; nothing without any."""
    layers = max((rank.get("batch_norm_layers", 0) for rank in pair.run.ranks), default=0)
    if not layers or pair.run.world == 1:
        return ""
    return (
        f"The model has {layers} BatchNorm layers, and each rank normalises by its own "
        "samples: this is another training. SyncBatchNorm makes it the same; torch's needs GPUs, "
        "src/_train_ddp_sync_batchnorm.py has one for CPU ranks. Or freeze the layers for the "
        "proof: .eval() on each of them after every model.train(), in both scripts."
    )


def explain_noted(pair: Pair, name: str) -> str:
    """Explain a number that the script itself measured, such as a validation loss."""
    mine = pair.noted(name)
    if any(len(rank) != len(mine[0]) for rank in mine):
        return f"Not every rank has noted {name} as often: note it on all ranks."
    both = (values for rank in mine for values in zip(mine[0], rank, strict=True))
    if any(loss_distance(*values) > pair.tolerance for values in both):
        return (
            f"The ranks disagree on {name}: each has measured its own share. All-reduce the sum "
            "and the number of samples, then divide."
        )
    if pair.parameter_distance("final") > pair.tolerance:
        return "The parameters differ already, so this must."
    return (
        f"The parameters agree, so it is how {name} is put together. Add up the sum and the number "
        "of samples over all batches and ranks, and divide once: a mean of means weighs a short "
        "batch like a long one, and a DistributedSampler deals some samples twice."
    )


def explain_files(pair: Pair) -> str:
    path, ranks = next((path, ranks) for path, ranks in pair.saved_by.items() if len(ranks) > 1)
    return (
        f"{units.ranks(ranks).capitalize()} all wrote {path}, and a reader may find half a file: "
        "save on rank 0 only."
    )
