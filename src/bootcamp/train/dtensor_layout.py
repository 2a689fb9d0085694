"""Map shards to full tensors, for fingerprints and checkpoints.

A DTensor knows its layout; Megatron's plain parameters carry one as `parameter.dtensor`.
"""

import torch

from bootcamp.train import deepspeed_state


def layout(parameter: torch.Tensor):
    """Return the DTensor that lays a parameter out over the ranks; None if it is whole."""
    return parameter if hasattr(parameter, "placements") else getattr(parameter, "dtensor", None)


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """Gather a full parameter. All ranks must call this."""
    if hasattr(parameter, "ds_id"):
        return deepspeed_state.whole(parameter)
    cut = layout(parameter)
    if cut is None:
        return parameter.detach()
    if torch.distributed.get_backend() == "gloo":
        cut = cut.cpu()  # ranks that share a GPU: gloo gathers a DTensor from main memory only
    return cut.full_tensor().detach()


def like(value: torch.Tensor, parameter: torch.Tensor):
    """Wrap this rank's part of a momentum, say, as a DTensor if the parameter is cut.

    Shares its memory. A value of another shape, such as a count of steps, is returned as it is.
    """
    cut = layout(parameter)
    if cut is None or hasattr(value, "placements") or value.shape != local(parameter).shape:
        return value
    return type(cut).from_local(
        value, cut.device_mesh, cut.placements, shape=cut.shape, stride=cut.stride()
    )


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if hasattr(tensor, "placements") else tensor


def cut_as(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Cut a whole or sharded value as a parameter is, if it has the whole parameter's shape."""
    cut = layout(parameter)
    if cut is None or value.shape != cut.shape:
        return value
    if not hasattr(value, "placements"):
        from torch.distributed.tensor import distribute_tensor

        value = value.to(cut.device)
        value = distribute_tensor(value, cut.device_mesh, cut.placements, src_data_rank=None)
    return value if cut is parameter else local(value)


@torch.no_grad()
def fill(own: dict[str, torch.Tensor], values: dict[str, torch.Tensor]) -> None:
    """Copy values, whole or sharded, into tensors of the same names."""
    for name, tensor in own.items():
        local(tensor).copy_(local(cut_as(values[name], tensor)))
