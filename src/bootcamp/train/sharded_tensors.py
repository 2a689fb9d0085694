"""Map a rank's part to full tensors: DTensors, Megatron's parameters, DeepSpeed's flat parts.

A DTensor knows its layout; Megatron's plain parameters carry one as `parameter.dtensor`. DeepSpeed
(0.19) works on flat, padded tensors, and keeps a master copy of its part of the parameters, which
counts as optimizer state, as in the paper (arXiv:1910.02054).
"""

import torch
import torch.distributed as dist

from bootcamp.train import environment


def layout(parameter: torch.Tensor):
    """Return the DTensor that lays a parameter out over the ranks; None if it is whole."""
    return parameter if hasattr(parameter, "placements") else getattr(parameter, "dtensor", None)


def own_part(parameter: torch.Tensor) -> tuple[torch.Tensor, torch.Size, tuple]:
    """Return a rank's part, the whole's shape, the groups with the rest; gather DeepSpeed's."""
    if hasattr(parameter, "ds_id"):
        import deepspeed

        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().clone(), parameter.ds_shape, ()
    groups = [dist.group.WORLD] * (hasattr(parameter, "only_here") and environment.has_group())
    if (whole := layout(parameter)) is None:
        return parameter.detach(), parameter.shape, tuple(groups)
    cut = (axis for axis, how in enumerate(whole.placements) if not how.is_replicate())
    return local(parameter).detach(), whole.shape, (*map(whole.device_mesh.get_group, cut), *groups)


def wrap_like(value: torch.Tensor, parameter: torch.Tensor):
    """Wrap a rank's part as a DTensor like its parameter; another shape's value stays as it is."""
    like = layout(parameter)
    if like is None or hasattr(value, "placements") or value.shape != local(parameter).shape:
        return value
    how = {"shape": like.shape, "stride": like.stride()}
    return type(like).from_local(value, like.device_mesh, like.placements, **how)


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "placements") else tensor


def cut_like(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Cut a whole or sharded value as a parameter is, if it has the whole parameter's shape."""
    like = layout(parameter)
    if like is None or value.shape != like.shape:
        return value
    if not hasattr(value, "placements"):
        from torch.distributed.tensor import distribute_tensor

        value = value.to(like.device)
        value = distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
    return value if like is parameter else local(value)


@torch.no_grad()
def fill(own: dict[str, torch.Tensor], values: dict[str, torch.Tensor]) -> None:
    """Copy values, whole or sharded, into tensors of the same names."""
    for name, tensor in own.items():
        local(tensor).copy_(local(cut_like(values[name], tensor)))


def is_deepspeed(model) -> bool:
    """Return whether deepspeed.initialize has made this engine of a model."""
    return hasattr(model, "zero_optimization_stage")


def deepspeed_optimizer(engine) -> torch.optim.Optimizer:
    """Return the optimizer that the script has made."""
    return getattr(engine.optimizer, "optimizer", engine.optimizer)


def deepspeed_master(engine) -> list[torch.Tensor]:
    """Return the optimizer's own copy of its part of the parameters."""
    names = {0: "", 3: "fp32_partitioned_groups_flat"}
    name = names.get(engine.zero_optimization_stage(), "single_partition_of_fp32_groups")
    return getattr(engine.optimizer, name, [])


def deepspeed_gradients(engine) -> list[torch.Tensor | None]:
    """Return a rank's gradients while its optimizer works with them."""
    if engine.zero_optimization_stage() == 3:
        return [engine.optimizer.grad_partitions_flat_buffer]
    return [part.grad for part in deepspeed_master(engine) or engine.module.parameters()]


def gather_deepspeed(engine, keep: bool) -> dict[str, dict]:
    """Gather `model` and `optimizer` by name on ranks that keep them. All ranks must call this."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    state = {"model": dict(engine.module.named_buffers()), "optimizer": {}}
    parts = next(iter(deepspeed_optimizer(engine).state.values()))
    for name, parameter in engine.module.named_parameters():
        value = safe_get_full_fp32_param(parameter)
        own = {
            key: part if part.dim() == 0 else safe_get_full_optimizer_state(parameter, key)
            for key, part in parts.items()
        }
        if keep:
            state["model"][name] = value.detach().clone().cpu()
            state["optimizer"][name] = {k: v.detach().clone().cpu() for k, v in own.items()}
    return state


@torch.no_grad()
def fill_deepspeed(engine, saved: dict) -> None:
    """Cut a whole state into DeepSpeed's parts: parameters, its copy of them, their state."""
    import deepspeed
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

    # the state that the optimizer's first step would make, with counts as saved
    like = next(iter(saved["optimizer"].values()))
    for part in deepspeed_master(engine):
        deepspeed_optimizer(engine).state[part] = {
            key: torch.zeros_like(part) if value.dim() else value.detach().clone()
            for key, value in like.items()
        }
    if engine.zero_optimization_stage() < 3:
        engine.optimizer._lazy_init_hp_params_optimizer_state()  # lets parameters find their state
    fill(dict(engine.module.named_buffers()), saved["model"])  # these are whole on each rank
    for name, parameter in engine.module.named_parameters():
        value = saved["model"][name].to(parameter.device)
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            parameter.copy_(value)
        safe_set_full_fp32_param(parameter, value)
        for key, own in saved["optimizer"][name].items():
            if own.dim():
                safe_set_full_optimizer_state(parameter, own.to(parameter.device), key)
