"""The axes along which a training can be divided, as rows of lesson 06's map: `Table(axes.MAP)`."""

COLUMNS = ("axis", "divides", "a device sends in a step", "link", "lesson")
NVLINK = "the fastest: NVLink"
ROWS = [
    (
        "data: DDP",
        "the batch",
        "its gradients, about twice",
        "slow, if the backward pass is long enough to hide it",
        "04",
    ),
    (
        "sharded data: ZeRO, FSDP, HSDP",
        "the batch and the state",
        "all parameters twice, all gradients once",
        "fast, or many tokens on each device",
        "07, 08",
    ),
    (
        "pipeline",
        "the layers",
        "activations and their gradients, to its neighbours",
        "may be slow: between hosts",
        "06b",
    ),
    ("tensor", "each matrix", "activations, several times in each block", NVLINK, "06c"),
    (
        "sequence, with tensor",
        "the activations between the matrices too",
        "as many bytes as tensor alone",
        NVLINK,
        "06c",
    ),
    ("context", "the tokens of each sample", "keys and values, in each attention", "fast", "06c"),
    (
        "expert",
        "the experts of a mixture-of-experts layer",
        "tokens to their experts and back, in each such layer",
        "fast",
        "08b",
    ),
]
MAP = [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]
