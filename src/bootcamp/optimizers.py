"""The optimizers of the course, by the name in --optimizer."""

import torch


def choose(args) -> tuple[type[torch.optim.Optimizer], dict]:
    """The optimizer's class and its settings, for a script that builds it itself.

    Both are used to prove equality: AdamW divides by the gradient's own size and so hides a wrong
    scale, SGD with momentum shows it at once.
    """
    if args.optimizer == "adamw":
        return torch.optim.AdamW, {"lr": args.lr, "weight_decay": 0.01}
    return torch.optim.SGD, {"lr": args.lr, "momentum": 0.9}


def build(args, parameters) -> torch.optim.Optimizer:
    """The optimizer over these parameters."""
    optimizer_class, settings = choose(args)
    return optimizer_class(parameters, **settings)
