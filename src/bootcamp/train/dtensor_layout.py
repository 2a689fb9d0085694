"""Of what whole a rank's tensors are parts: for the fingerprints and checkpoints of sharded models.

A DTensor (FSDP2, tensor parallelism) knows its own layout. Megatron's parameters are plain tensors;
its script hangs their layout on them, as `parameter.dtensor`. deepspeed_state.py has DeepSpeed's.
"""

import torch

from bootcamp.train import deepspeed_state


def layout(parameter: torch.Tensor):
    """The DTensor that says how a parameter is cut over the ranks; None if it is not cut."""
    return parameter if hasattr(parameter, "placements") else getattr(parameter, "dtensor", None)


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter as it was before it was cut. All ranks have to call this."""
    if hasattr(parameter, "ds_id"):
        return deepspeed_state.whole(parameter)
    cut = layout(parameter)
    if cut is None:
        return parameter.detach()
    if torch.distributed.get_backend() == "gloo":
        cut = cut.cpu()  # ranks that share a GPU: gloo gathers a DTensor from main memory only
    return cut.full_tensor().detach()


def like(value: torch.Tensor, parameter: torch.Tensor):
    """What belongs to a parameter, such as its momentum, as a DTensor if the parameter is cut.

    value: this rank's part; its memory is shared. A value of another shape, such as a count of
    steps, is whole on every rank and stays what it is.
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
    """A value that is whole, or cut over the ranks already, in the form that a parameter has.

    A value of another shape than the whole parameter's is not cut.
    """
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
    """Copy values, complete or cut, into tensors of the same names, each as it is cut here."""
    for name, tensor in own.items():
        local(tensor).copy_(local(cut_as(values[name], tensor)))
