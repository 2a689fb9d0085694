"""Exercises of lesson 13b: DataParallel's batch dimension, and the gradient sum of stripes."""

from bootcamp.classroom.tasks import FunctionTask, ScriptTask


@FunctionTask.from_solution(
    hint="Which of the two lists must stay complete for a recurrent model? Cut the other one.",
    stronger="size = -(-len(sequences[0]) // replicas) rounds up. A share is "
    "[step[i : i + size] for step in sequences].",
    cases=(
        ([[1, 2, 3, 4], [5, 6, 7, 8]], 2),
        ([[1, 2, 3], [4, 5, 6], [7, 8, 9]], 2),
        ([[1, 2, 3, 4, 5], [6, 7, 8, 9, 0]], 4),
    ),
    mistakes={
        (
            "sequences[0]",
            "sequences",
            "[step[i : i + size] for step in sequences]",
            "sequences[i : i + size]",
        ): "That cuts time, as dim=0 does: the second replica begins mid-sequence, stateless.",
        ("i : i + size", "i::replicas", "in starts", "in range(replicas)"): "Those samples are "
        "dealt out like cards. Chunks are neighbours, so that the outputs can be joined in order.",
        ("-(-len(sequences[0])", "(len(sequences[0])", "in starts", "in starts[:replicas]"): "That "
        "rounds down, and the last samples belong to nobody.",
        (
            "step[i : i + size] for step in sequences",
            "list(it) for it in [*zip(*sequences)][i : i + size]",
        ): "Those are the right samples with the batch first. The model expects time first.",
    },
)
def batch_dimension(sequences, replicas):
    """The shares of (time, batch) data that nn.DataParallel(model, dim=1) deals to replicas.

    sequences: [time step][sample]. As torch.chunk: equal shares, rounded up; the last is smaller.
    """
    size = -(-len(sequences[0]) // replicas)
    starts = range(0, len(sequences[0]), size)
    return [[step[i : i + size] for step in sequences] for i in starts]


STRIPES = ScriptTask(
    "stripes",
    task="The missing exchange: write the two lines of enter.\n\nEach rank runs its stripes on the "
    "same input. Its backward pass knows the\ngradient of that input from its own stripes alone.\n",
    hint="The input is the same on all ranks (Replicate). What is each rank's gradient of it: the "
    "complete one, a slice of it, or one part of a sum?",
    stronger="A DTensor of inputs[0], [Replicate()]; return to_local(grad_placements=[Partial()]).",
    solution="striped",
    takes_out=(
        "same = DTensor.from_local(inputs[0], mesh, [Replicate()])",
        "return same.to_local(grad_placements=[Partial()])",
    ),
    ranks=2,
    flags={"model": "striped-lstm"},
    errors={
        "invalid gradient": "Each rank has the complete input: Replicate, not Shard.",
        "mixed torch.Tensor and DTensor": "The LSTM takes plain tensors: end with to_local.",
    },
)
