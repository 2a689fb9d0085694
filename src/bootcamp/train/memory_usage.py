"""Count the bytes of parameters, gradients and optimizer state that this rank holds."""

import torch

from bootcamp import machine
from bootcamp.train import deepspeed_state
from bootcamp.train.activations import storage_of


def watch(model, optimizer):
    """Watch what this rank holds of a model, in torch's way or in DeepSpeed's."""
    return HeldByDeepSpeed(model) if deepspeed_state.is_engine(model) else Held(model, optimizer)


class Held:
    """`parameter_bytes`, `gradient_bytes` and `optimizer_bytes` of this moment."""

    def __init__(self, model, optimizer):
        self.model, self._optimizer = model, optimizer

    @property
    def parameter_bytes(self) -> int:
        return storage_bytes(self.model.parameters())

    @property
    def gradient_bytes(self) -> int:
        return storage_bytes(parameter.grad for parameter in self.model.parameters())

    @property
    def optimizer_bytes(self) -> int:
        """Of the state; torch's ZeroRedundancyOptimizer has it in an optimizer inside, `optim`.

        0 without an optimizer: the model answers requests.
        """
        optimizer = getattr(self._optimizer, "optim", self._optimizer)
        return storage_bytes(tensors(getattr(optimizer, "state", None)))


class HeldByDeepSpeed:
    """As Held. Gradients are those at the moment when the optimizer begins to work with them.

    Afterwards DeepSpeed frees them, and to keep them until then would keep their memory.
    """

    def __init__(self, engine):
        self.engine, self.gradient_bytes = engine, 0
        deepspeed_state.base(engine).register_step_pre_hook(self._count_gradients)

    def _count_gradients(self, *_) -> None:
        self.gradient_bytes = storage_bytes(deepspeed_state.gradients(self.engine))

    @property
    def parameter_bytes(self) -> int:
        return storage_bytes(deepspeed_state.parameters(self.engine))

    @property
    def optimizer_bytes(self) -> int:
        state = [deepspeed_state.base(self.engine).state, deepspeed_state.master(self.engine)]
        return storage_bytes(tensors(state))


def storage_bytes(found) -> int:
    """Count the bytes of the storages behind these tensors, each storage once; None is 0."""
    sizes = {}
    for tensor in found:
        if tensor is None:
            continue
        storage = storage_of(tensor)
        sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())


def tensors(state) -> list[torch.Tensor]:
    """List every tensor in the nested state of an optimizer."""
    if isinstance(state, torch.Tensor):
        return [state]
    if isinstance(state, dict):
        state = state.values()
    if isinstance(state, list | tuple) or hasattr(state, "__iter__") and not isinstance(state, str):
        return [tensor for value in state for tensor in tensors(value)]
    return []


def peak_bytes(device: torch.device) -> int:
    """Read this rank's peak memory: torch's on the GPU, or the process's resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return machine.process_peak_bytes()
