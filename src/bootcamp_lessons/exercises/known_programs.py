"""Exercises of lesson 13b: Megatron's flags as a mesh, and the gradient sum of stripes."""

from bootcamp.classroom.tasks import FunctionTask, ScriptTask


@FunctionTask.from_solution(
    hint="Megatron has no flag for the data axis: it is what the other axes leave of the ranks.",
    stronger="data = ranks // (tensor * pipeline); batch // data samples, micro_batch at a time.",
    cases=((512, 8, 2, 1536, 4), (512, 8, 8, 2048, 2), (16, 2, 1, 64, 4)),
    mistakes={
        ("(tensor * pipeline)", "tensor"): "A pipeline's stages train the same samples.",
        ("(data *", "(ranks *"): "Ranks that share a model share its samples: data ranks alone.",
        ("(data * micro_batch)", "data"): "Those are a data rank's samples, not its micro-batches.",
    },
)
def megatron_axes(ranks, tensor, pipeline, batch, micro_batch):
    """(data, micro_batches): fully_shard's mesh and a step's micro-batches, from Megatron's flags.

    --tensor-model-parallel-size, --pipeline-..., --global-batch-size and --micro-batch-size.
    """
    data = ranks // (tensor * pipeline)
    return data, batch // (data * micro_batch)


STRIPES = ScriptTask(
    "stripes",
    task="The missing exchange: write the two lines of enter.\n\nEach rank runs its stripes on the "
    "same input. Its backward pass knows the\ngradient of that input from its own stripes alone.\n",
    hint="What is a rank's gradient of the common input: complete, a slice, one part of a sum?",
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
