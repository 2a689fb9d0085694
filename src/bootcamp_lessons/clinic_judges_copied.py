"""Judges of lesson 12 for copied programs; of several faults in one they name the next one."""

from bootcamp.classroom.tasks import Wrong
from bootcamp_lessons.clinic_judges import Observed, ranks_agree, shared_out

# words of an error that stops deepspeed_copied.py -> what to say of it
OF_DEEPSPEED = {
    "train_batch_size": "This is the fault that DeepSpeed finds itself. Name two of the three "
    "numbers and it computes the third; a batch of 32 suits the page's learning rate.",
    "Type fp16": "DeepSpeed takes no fp16 on CPUs. bf16 works: it is the batch that has another "
    "dtype than the parameters.",
    "same dtype": "The batch adds up now. With bf16, DeepSpeed keeps the parameters in bfloat16, "
    "and the loader gives float32: cast at both ends of the model, or leave bf16 and casts out.",
    "hang": "It trains. save_checkpoint is a collective: each rank writes its shard of the "
    "optimizer's state, and they wait for each other.",
}


def trains_with_deepspeed(seen: Observed) -> str:
    """Every sample once in an epoch, shared out; a checkpoint with the shards of all ranks."""
    try:
        read = seen.all_have("seen")
    except Wrong as wrong:
        said = [meaning for words, meaning in OF_DEEPSPEED.items() if words in wrong.seen]
        raise Wrong(wrong.expected, wrong.seen, (said or [wrong.meaning])[0]) from None
    for rank, mine in enumerate(seen.ranks):
        if not any("optim_states" in path for path in mine["saved"]):
            raise Wrong(
                "a checkpoint with each rank's shard of the optimizer's state",
                f"no such file of rank {rank}",
                "With stage 1 no rank has all of it. All ranks call save_checkpoint.",
            )
    ranks_agree(seen, meaning="Each rank trains alone: model.backward and model.step must stay.")
    shared_out(
        read,
        all_do="trains",
        too_many="It runs to its end, and this fault says nothing. DeepSpeed shares out no data "
        "that others load: this loader needs a DistributedSampler.",
        not_disjoint="The shares must be disjoint: one seed for all ranks, another place for each.",
    )
    return "every sample is trained once an epoch, and the checkpoint has all shards."


def trains_on_gpus_of_its_own(seen: Observed) -> str:
    """Each rank has two GPUs of its host that no other rank uses; the ranks train together."""
    try:
        gpus, hosts = seen.all_have("gpus"), seen.all_have("host")
    except Wrong as wrong:
        ordinal = "A host has no GPU of this number. On GPUs: CUDA error: invalid device ordinal."
        several = "device_ids names the one GPU of a model. This model has put itself on two."
        said = ordinal if "IndexError" in wrong.seen else wrong.meaning
        said = several if "device_ids" in wrong.seen.partition("This was rank")[0] else said
        raise Wrong(wrong.expected, wrong.seen, said) from None
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
    ranks_agree(seen, meaning="DistributedDataParallel has to stay: each rank trains alone.")
    return "every rank has two GPUs of its own, and all of them train one model."


def starts_on_each_machine(seen: Observed) -> str:
    """One program on each of two machines starts that machine's two ranks, and all four meet."""
    try:
        totals = seen.all_have("totals")
    except Wrong as wrong:
        said = wrong.meaning
        if "timeout" in wrong.seen or "hang" in wrong.seen:
            said = "The ranks wait for one that nobody starts. Which ranks does each program start?"
        if "EADDRINUSE" in wrong.seen:
            said = "Two processes are rank 0: each opens a store on one port. The check starts the "
            said += "program on both machines; each may start the ranks of its own machine only."
        expected = "two programs, one on each machine, that run to their end"
        raise Wrong(expected, wrong.seen, said) from None
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


def splits_alike(seen: Observed) -> str:
    """The ranks hold out the same samples, train on all others, and share those out."""
    held_out, read = seen.all_have("held_out"), seen.all_have("seen")
    kept = set(held_out[0])
    for epoch, parts in enumerate(zip(*read, strict=False)):
        numbers = [number for part in parts for number in part]
        if leaked := {sample for mine in held_out for sample in mine} & set(numbers):
            raise Wrong(
                "no sample that is both trained and used for validation",
                f"{len(leaked)} of them in epoch {epoch}",
                "What one rank holds out, another one trains: the ranks have drawn different "
                "splits. Who must agree, and on what?",
            )
        if len(numbers) > 24:
            raise Wrong(
                f"24 samples in epoch {epoch}, shared out",
                f"{len(numbers)}: every rank reads all of them",
                "The split is the same now. The sampler has to stay.",
            )
        if len(set(numbers)) < 24:
            raise Wrong(
                f"24 samples in epoch {epoch}, each once",
                f"{len(set(numbers))} different ones",
                "The same samples in another order on each rank: positions are disjoint, what is "
                "at them is not.",
            )
    if len(kept) != 8 or any(set(mine) != kept for mine in held_out):
        raise Wrong("the same 8 samples held out on all ranks", f"{held_out}")
    if len({tuple(epoch) for epoch in read[0]}) < len(read[0]):
        raise Wrong("another order in each epoch", "the same", "set_epoch has to stay.")
    return "all ranks hold out the same 8 samples and share out the other 24."
