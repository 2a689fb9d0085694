"""Memory and traffic of nn.DataParallel by formula, beside those of DDP."""


def held_bytes(rank: dict, devices: int, outputs: float) -> dict[str, dict[str, float]]:
    """What a step puts on each device, by kind: {device: {kind: bytes}}, not all at one moment.

    rank: the record of one process that trains the same global batch. outputs: bytes of the model's
    outputs for it. They count twice, as log-softmax, which the loss keeps, and as gradient.
    """
    model = {"parameters": rank["parameter_bytes"], "gradients": rank["gradient_bytes"]}
    state = {"optimizer state": rank["optimizer_bytes"]}
    share = {"activations": (rank["activation_bytes"] - outputs) / devices}  # without log-softmax
    return {
        "DataParallel, device 0": model | state | share | {"outputs": 2 * outputs},
        "DataParallel, each other": model | share | {"outputs": outputs / devices},
        "DDP, each rank": model | state | share | {"outputs": 2 * outputs / devices},
    }


def copied_bytes(devices: int, parameter_bytes: float) -> float:
    """What DataParallel copies in a step: parameters to each other device, gradients back."""
    return 2 * (devices - 1) * parameter_bytes
