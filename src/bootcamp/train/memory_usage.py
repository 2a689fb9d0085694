"""Count the bytes of parameters, gradients and optimizer state that this rank holds."""

import torch

from bootcamp import machine
from bootcamp.train import shards
from bootcamp.train.activations import storage_of


def watch(model, optimizer):
    """Watch what this rank holds of a model, in torch's way or in DeepSpeed's."""
    return HeldByDeepSpeed(model) if shards.is_deepspeed(model) else Held(model, optimizer)


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
        """Of the state, which torch's ZeroRedundancyOptimizer has in an optimizer inside, `optim`.

        0 without an optimizer.
        """
        optimizer = getattr(self._optimizer, "optim", self._optimizer)
        return storage_bytes(tensors(getattr(optimizer, "state", None)))


class HeldByDeepSpeed:
    """As Held. Gradients are those with which the optimizer begins: DeepSpeed frees them then."""

    def __init__(self, engine):
        self.engine, self.gradient_bytes = engine, 0
        shards.deepspeed_optimizer(engine).register_step_pre_hook(self._count_gradients)

    def _count_gradients(self, *_) -> None:
        self.gradient_bytes = storage_bytes(shards.deepspeed_gradients(self.engine))

    @property
    def parameter_bytes(self) -> int:
        return storage_bytes(shards.deepspeed_parameters(self.engine))

    @property
    def optimizer_bytes(self) -> int:
        engine = self.engine
        state = shards.deepspeed_optimizer(engine).state
        return storage_bytes(tensors([state, shards.deepspeed_master(engine)]))


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
