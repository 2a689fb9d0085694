"""Exercises of lesson 13b: the dimension that DataParallel cuts, the sum that stripes need."""

from bootcamp.classroom.function_task import FunctionTask
from bootcamp.classroom.script_task import ScriptTask


def batch_dimension(sequences, replicas):
    """The shares of (time, batch) data that nn.DataParallel(model, dim=1) deals to replicas.

    sequences: a list of time steps, each a list with a value for each sample. As torch.chunk: equal
    shares, rounded up, so the last may be smaller.
    """
    samples = len(sequences[0])
    size = -(-samples // replicas)
    return [[step[first : first + size] for step in sequences] for first in range(0, samples, size)]


def _along_time(sequences, replicas):
    size = -(-len(sequences) // replicas)
    return [sequences[first : first + size] for first in range(0, len(sequences), size)]


def _dealt_like_cards(sequences, replicas):
    return [[step[place::replicas] for step in sequences] for place in range(replicas)]


def _rounded_down(sequences, replicas):
    size = len(sequences[0]) // replicas
    return [[step[k * size : (k + 1) * size] for step in sequences] for k in range(replicas)]


def _batch_first(sequences, replicas):
    turned = [list(sample) for sample in zip(*sequences, strict=True)]
    return _along_time(turned, replicas)


BATCH_DIMENSION = FunctionTask(
    hint="Which of the two lists must stay complete for a recurrent model? Cut the other one.",
    stronger="size = -(-samples // replicas) rounds up. A share is "
    "[step[first : first + size] for step in sequences].",
    solved_by=batch_dimension,
    cases=(
        ([[1, 2, 3, 4], [5, 6, 7, 8]], 2),
        ([[1, 2, 3], [4, 5, 6], [7, 8, 9]], 2),
        ([[1, 2, 3, 4, 5], [6, 7, 8, 9, 0]], 4),
    ),
    mistakes={
        _along_time: "That cuts time, as dim=0 does: the second replica begins in the middle of "
        "each sequence, with an empty state.",
        _dealt_like_cards: "Those samples are dealt out like cards. Chunks are neighbours, so that "
        "the outputs can be joined in order.",
        _rounded_down: "That rounds down, and the last samples belong to nobody.",
        _batch_first: "Those are the right samples with the batch first. The model expects time "
        "first.",
    },
)

STRIPES = ScriptTask(
    "stripes",
    task="The missing exchange: write the two lines of enter.\n\nEach rank runs its stripes on the "
    "same input. Its backward pass knows the\ngradient of that input from its own stripes alone.\n",
    hint="The input is the same on all ranks (Replicate). What is each rank's gradient of it: the "
    "complete one, a slice of it, or one part of a sum?",
    stronger="Make a DTensor of inputs[0] with [Replicate()], and return its to_local with "
    "grad_placements=[Partial()].",
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
