"""The axes along which a training can be divided, as rows of lesson 06's map: `Table(axes.MAP)`."""

MAP = [
    {
        "axis": "data: DDP",
        "divides": "the batch",
        "a device sends in a step": "its gradients, about twice",
        "link": "slow, if the backward pass is long enough to hide it",
        "lesson": "04",
    },
    {
        "axis": "sharded data: ZeRO, FSDP, HSDP",
        "divides": "the batch and the state",
        "a device sends in a step": "all parameters twice, all gradients once",
        "link": "fast, or many tokens on each device",
        "lesson": "07, 08",
    },
    {
        "axis": "pipeline",
        "divides": "the layers",
        "a device sends in a step": "activations and their gradients, to its neighbours",
        "link": "may be slow: between hosts",
        "lesson": "06b",
    },
    {
        "axis": "tensor",
        "divides": "each matrix",
        "a device sends in a step": "activations, several times in each block",
        "link": "the fastest: NVLink",
        "lesson": "06c",
    },
    {
        "axis": "sequence, with tensor",
        "divides": "the activations between the matrices too",
        "a device sends in a step": "as many bytes as tensor alone",
        "link": "the fastest: NVLink",
        "lesson": "06c",
    },
    {
        "axis": "context",
        "divides": "the tokens of each sample",
        "a device sends in a step": "keys and values, in each attention",
        "link": "fast",
        "lesson": "06c",
    },
    {
        "axis": "expert",
        "divides": "the experts of a mixture-of-experts layer",
        "a device sends in a step": "tokens to their experts and back, in each such layer",
        "link": "fast",
        "lesson": "08b",
    },
]
