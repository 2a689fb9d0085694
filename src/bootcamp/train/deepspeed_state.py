"""Find and gather what DeepSpeed 0.19 keeps, for the record and for checkpoints.

ZeRO's optimizer works on flat, padded tensors, and keeps a master copy of its part of the
parameters, in float32 too; it counts as optimizer state, as in the paper (arXiv:1910.02054).
"""

import torch


def is_engine(model) -> bool:
    """Whether this is what deepspeed.initialize has made of a model."""
    return hasattr(model, "zero_optimization_stage")


def parameters(engine) -> list[torch.Tensor]:
    """What a rank has of the parameters."""
    return [getattr(p, "ds_tensor", p) for p in engine.module.parameters()]


def base(engine) -> torch.optim.Optimizer:
    """The optimizer that the script has made."""
    return getattr(engine.optimizer, "optimizer", engine.optimizer)


def master(engine) -> list[torch.Tensor]:
    """The optimizer's own copy of its part of the parameters."""
    names = {0: "", 3: "fp32_partitioned_groups_flat"}
    name = names.get(engine.zero_optimization_stage(), "single_partition_of_fp32_groups")
    return getattr(engine.optimizer, name, [])


def gradients(engine) -> list[torch.Tensor | None]:
    """What a rank has of the gradients while its optimizer works with them."""
    if engine.zero_optimization_stage() == 3:
        return [engine.optimizer.grad_partitions_flat_buffer]
    return [part.grad for part in master(engine) or engine.module.parameters()]


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """A copy of a parameter that stage 3 has partitioned. All ranks have to call this."""
    import deepspeed

    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().clone()


def gather(engine, keep: bool) -> dict[str, dict]:
    """Gather `model` and `optimizer` by parameter name on the CPU of ranks that keep them.

    All ranks must call this.
    """
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    state = {"model": {}, "optimizer": {}}
    parts = next(iter(base(engine).state.values()))
    for name, parameter in engine.module.named_parameters():
        value = safe_get_full_fp32_param(parameter)
        own = {
            key: value if value.dim() == 0 else safe_get_full_optimizer_state(parameter, key)
            for key, value in parts.items()
        }
        if keep:
            state["model"][name] = _copy(value).cpu()
            state["optimizer"][name] = {key: _copy(value).cpu() for key, value in own.items()}
    return state


def _copy(value: torch.Tensor) -> torch.Tensor:
    return value.detach().clone()


@torch.no_grad()
def load(engine, saved: dict) -> None:
    """Cut a whole state into DeepSpeed's parts: parameters, its copy of them, their state."""
    import deepspeed
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

    _make_room(engine, next(iter(saved["optimizer"].values())))
    for name, parameter in engine.module.named_parameters():
        value = saved["model"][name].to(parameter.device)
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            parameter.copy_(value)
        safe_set_full_fp32_param(parameter, value)
        for key, own in saved["optimizer"][name].items():
            if own.dim():
                safe_set_full_optimizer_state(parameter, own.to(parameter.device), key)


def _make_room(engine, like: dict[str, torch.Tensor]) -> None:
    """Give the optimizer the state that its first step would make, with counts as saved."""
    for part in master(engine):
        base(engine).state[part] = {
            key: torch.zeros_like(part) if value.dim() else _copy(value)
            for key, value in like.items()
        }
    if engine.zero_optimization_stage() < 3:
        engine.optimizer._lazy_init_hp_params_optimizer_state()  # lets parameters find their state
