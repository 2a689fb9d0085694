"""The optimizers of the course, by the name in --optimizer."""

import torch


def choose(args) -> tuple[type[torch.optim.Optimizer], dict]:
    """Return the optimizer's class and its settings, for a script that builds it itself.

    Both are used to prove equality: AdamW divides by the gradient's own size and so hides a wrong
    scale, SGD with momentum shows it at once. eps is 1e-6, above the rounding noise of a gradient:
    with torch's 1e-8 an element whose true gradient cancels to nothing takes a step of its noise's
    sign, and two correct runs end up to 2e-5 of their way apart instead of 1e-6.
    """
    if args.optimizer == "adamw":
        return torch.optim.AdamW, {"lr": args.lr, "eps": 1e-6, "weight_decay": 0.01}
    return torch.optim.SGD, {"lr": args.lr, "momentum": 0.9}


def build(args, parameters) -> torch.optim.Optimizer:
    optimizer_class, settings = choose(args)
    return optimizer_class(parameters, **settings)
