"""The optimizers of the course, by the name in --optimizer."""

import torch


def choose(args) -> tuple[type[torch.optim.Optimizer], dict]:
    """Return the optimizer's class and its settings, for a script that builds it itself.

    Equality is proved with SGD and AdamW: the latter divides by the gradient's own size and so
    hides a wrong scale. eps is 1e-6, above rounding noise: with torch's 1e-8 an element whose true
    gradient cancels out steps by its noise's sign, and correct runs end up to 2e-5 apart, not 1e-6.
    """
    if args.optimizer == "sgd":
        return torch.optim.SGD, {"lr": args.lr, "momentum": 0.9}
    kind = torch.optim.Adam if args.optimizer == "adam" else torch.optim.AdamW
    return kind, {"lr": args.lr, "eps": 1e-6, "weight_decay": 0.01 * (kind is torch.optim.AdamW)}


def build(args, parameters) -> torch.optim.Optimizer:
    optimizer_class, settings = choose(args)
    return optimizer_class(parameters, **settings)
