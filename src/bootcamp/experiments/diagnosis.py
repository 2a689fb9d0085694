"""Explain a difference from the baseline: the hint of each row of a failed proof."""

import math

from bootcamp.experiments.pair import Pair, distance, loss_distance

MODULE_NAMES = (
    "The state dict is that of the DDP wrapper, and a script without DDP can't load it: save "
    "wrapped.module.state_dict(), or that of the model inside."
)
SAVED_SHARDS = (
    "The file lacks what the other ranks hold: get_model_state_dict with "
    "StateDictOptions(full_state_dict=True) gathers. Call it on every rank, save on rank 0."
)


def settings(name: str, run, baseline) -> str:
    """Why two runs with different settings can't be compared, and what to do."""
    mine, its, world = run.config.get(name), baseline.config.get(name), run.world
    if name == "corpus_crc32":
        return (
            "the runs can't be compared: they were trained on different texts. The text is the "
            "same on every machine; an older record may have another. Run both again"
        )
    text = f"the runs can't be compared: {name} is {mine} here and {its} in the baseline"
    if name != "global_batch" or not its:
        return text
    if world > 1 and mine == its * world:
        text += (
            ": each rank takes as many samples as the baseline in all. Divide the batch "
            "size by the number of ranks"
        )
    elif its % world:
        text += (
            f": {its} samples can't be divided among {world} ranks. Choose a batch size "
            f"that is a multiple of {world}, for both runs"
        )
    return text


def processes(pair: Pair) -> str:
    """The process group is not what was started."""
    run = pair.run
    if run.world > 1 and all(rank["world_size"] == 1 for rank in run.ranks):
        return (
            f"{run.world} processes were started and none has joined a process group: nothing is "
            "synchronised, each trains alone. Call dist.init_process_group() first, take rank and "
            "world size from it, and wrap the model, for example in DistributedDataParallel."
        )
    return (
        f"{run.world} processes were started, {len(run.ranks)} left a record. Each must join one "
        "process group and take rank and world size from it."
    )


def twice(pair: Pair) -> str:
    """Ranks drew the same samples."""
    where = (
        "DistributedSampler(dataset, world, rank) deals out the shares"
        if pair.foreign
        else "give data.Batches the rank and the world size"
    )
    return f"Ranks repeat each other's work, each must take a share of its own: {where}."


def other_samples(pair: Pair) -> str:
    """The batches are not the baseline's."""
    step = pair.repeats_its_batches_from
    if step is not None:
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


def other_contents(pair: Pair) -> str:
    """Samples have the baseline's ids, and something else in them."""
    ranks = [str(rank) for rank in pair.other_contents]
    who = f"Rank {ranks[0]}" if len(ranks) == 1 else f"Ranks {', '.join(ranks)}"
    return (
        f"{who} drew other data under the same ids: made, split or augmented with random numbers "
        "of its own (a seed that depends on the rank?). A sample must be a function of its id: "
        "draw the data with one seed on all ranks, or seed a generator by the id of each sample."
    )


def losses(pair: Pair) -> str:
    """Some step's loss differs: told by the first that does, and by what else is equal."""
    wrong = pair.wrong_steps
    if not wrong or pair.first_step:
        return "Gradients or the optimizer differ, or what was resumed from."
    if wrong[0] == 0:
        return _first_loss(pair)
    rate = pair.first_other_rate
    if rate is not None and rate < wrong[0]:
        return learning_rate(pair, rate)
    if not pair.same_samples:
        return "The samples are not the baseline's, so the losses can't be: look at those first."
    if wrong[0] > 1 and pair.uses_sgd:
        return (
            f"They agree before step {wrong[0]}, so the first update was right. A later one uses "
            "what the step before has left: are the gradients set to zero in every step?"
        )
    return (
        f"They agree before step {wrong[0]}: from there on gradients or the optimizer differ. "
        + batch_norm(pair)
    ).strip()


def _first_loss(pair: Pair) -> str:
    """The loss differs before any parameter has changed."""
    if pair.same_samples and pair.apart("final") <= pair.tolerance:
        return (
            "All parameters agree, so the training is right and the recorded loss is not. It must "
            "be the mean over the global batch: over all ranks, neither a sum nor one rank's share."
        )
    mine, its = pair.losses[0]
    factor = mine / its if math.isfinite(mine) and its else 0.0
    if round(factor) > 1 and abs(factor - round(factor)) < 0.01:
        return (
            f"The first one is {round(factor)} times the baseline's, before any parameter has "
            "changed: something is added up where the mean over the batch is meant."
        )
    start = "They differ from step 0 on, before any parameter has changed: "
    if not pair.same_samples:
        return f"{start}the samples are not the baseline's."
    if pair.apart("initial") > pair.tolerance:
        return f"{start}the initial parameters are not the baseline's."
    contents = "the contents of the samples"
    if pair.other_contents is not None:  # and they agree
        contents = "what a step does to its samples"
    if pair.foreign:
        contents += " (made or augmented with a seed that depends on the rank?), dropout,"
    what = f"{contents} or a loss that is not the mean over the global batch."
    if pair.batch_norms:
        return f"{batch_norm(pair)} With them frozen, it may be {what}"
    return f"{start}ids of the samples and initial parameters agree, so it is {what}"


def learning_rate(pair: Pair, step: int) -> str:
    """The learning rates differ from this step on."""
    mine, its = pair.learning_rates[step - pair.first_step]
    return (
        f"The learning rate of step {step} is {mine:.3g}, the baseline's {its:.3g}. Is a schedule "
        "stepped once in each step, whatever the number of ranks, and as long as the training?"
    )


def initial(pair: Pair) -> str:
    """The initial parameters are not the baseline's."""
    begin = pair.fingerprints("initial")
    if all(mine == begin[0] for mine in begin):
        return (
            "Every rank begins alike, but not as the baseline: something has changed the "
            "parameters before the first step."
        )
    return "Ranks begin with different parameters: broadcast those of rank 0."


def final(pair: Pair) -> str:
    """The final parameters are not the baseline's."""
    if pair.fingerprints("final") == pair.fingerprints("initial"):
        return (
            "They are the initial ones still. Either no step was made: optimizer.step(), with its "
            "brackets, comes after backward() and before the gradients are set to zero. Or "
            "the optimizer holds none of the model's parameters: build it last, over the model "
            "that was moved, wrapped or sharded."
        )
    if pair.ranks_end_apart:
        return (
            "Nothing is synchronised: the ranks send each other next to nothing, and end with "
            "different parameters. Is the model wrapped, and is it the wrapped one that is called?"
            if pair.silent
            else "A layer is not synchronised: the ranks end with different parameters."
        )
    return batch_norm(pair) or _how_far(pair)


def _how_far(pair: Pair) -> str:
    """Diagnose from how far the parameters moved: with SGD that grows with the gradients."""
    rate = pair.first_other_rate
    if rate is not None:
        return learning_rate(pair, rate)
    if not pair.same_samples:
        return "The samples are not the baseline's, so the parameters can't be."
    went = distance(pair.fingerprints("initial")[0], pair.fingerprints("final")[0])
    share = went / (pair.moved or math.inf) if pair.uses_sgd and not pair.resumed else 1.0
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
    if pair.may_be_rounding:
        return (
            "All losses agree and the parameters nearly do: this may be rounding that Adam "
            "enlarges. Repeat with SGD or in float64. What differs there too is a fault: are "
            "gradients summed instead of averaged, or clipped before they are averaged?"
        )
    if len(pair.run.ranks) == 1:
        return "The gradients are not those of the global batch, or the optimizer's step differs."
    return (
        "The ranks end alike, so they are synchronised, but by another step than the baseline's: "
        "are gradients summed instead of averaged, or clipped before they are averaged?"
    )


def batch_norm(pair: Pair) -> str:
    """What to know of a model that normalises over one rank's samples; nothing for others."""
    if not pair.batch_norms:
        return ""
    return (
        f"The model has {pair.batch_norms} BatchNorm layers, and each rank normalises by its own "
        "samples: this is another training. SyncBatchNorm makes it the same; torch's needs GPUs, "
        "src/_train_ddp_sync_batchnorm.py has one for CPU ranks. Or freeze the layers for the "
        "proof: .eval() on each of them after every model.train(), in both scripts."
    )


def noted(pair: Pair, name: str) -> str:
    """A number that the script itself measured, such as a validation loss, differs."""
    mine = pair.noted(name)
    if any(len(rank) != len(mine[0]) for rank in mine):
        return f"Not every rank has noted {name} as often: note it on all ranks."
    both = (values for rank in mine for values in zip(mine[0], rank, strict=True))
    if any(loss_distance(*values) > pair.tolerance for values in both):
        return (
            f"The ranks disagree on {name}: each has measured its own share. All-reduce the sum "
            "and the number of samples, then divide."
        )
    if pair.apart("final") > pair.tolerance:
        return "The parameters differ already, so this must."
    return (
        f"The parameters agree, so it is how {name} is put together. Add up the sum and the number "
        "of samples over all batches and ranks, and divide once: a mean of means weighs a short "
        "batch like a long one, and a DistributedSampler deals some samples twice."
    )


def files(pair: Pair) -> str:
    """Several ranks wrote to one path."""
    path, ranks = next((path, ranks) for path, ranks in pair.saved_by.items() if len(ranks) > 1)
    who = ", ".join(map(str, ranks))
    return f"Ranks {who} all wrote {path}, and a reader may find half a file: save on rank 0 only."
