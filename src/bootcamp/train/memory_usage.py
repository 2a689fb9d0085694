"""Count the bytes of parameters, gradients, optimizer state and activations that a rank holds."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from bootcamp import machine
from bootcamp.train import shards


class Held:
    """`parameter_bytes`, `gradient_bytes` and `optimizer_bytes` of this moment.

    optimizer: None without training. DeepSpeed frees gradients when its optimizer has them: those
    with which it began count.
    """

    def __init__(self, model, optimizer):
        self.model, self._optimizer = model, optimizer
        self._engine, self._gradient_bytes = shards.is_deepspeed(model), 0
        if self._engine:
            shards.deepspeed_optimizer(model).register_step_pre_hook(self._count_gradients)

    def _count_gradients(self, *_) -> None:
        self._gradient_bytes = storage_bytes(shards.deepspeed_gradients(self.model))

    @property
    def parameter_bytes(self) -> int:
        parts = shards.deepspeed_parameters if self._engine else torch.nn.Module.parameters
        return storage_bytes(parts(self.model))

    @property
    def gradient_bytes(self) -> int:
        if self._engine:
            return self._gradient_bytes
        return storage_bytes(parameter.grad for parameter in self.model.parameters())

    @property
    def optimizer_bytes(self) -> int:
        if self._engine:
            state = shards.deepspeed_optimizer(self.model).state
            return storage_bytes(tensors([state, shards.deepspeed_master(self.model)]))
        # torch's ZeroRedundancyOptimizer has its state in an optimizer inside
        optimizer = getattr(self._optimizer, "optim", self._optimizer)
        return storage_bytes(tensors(getattr(optimizer, "state", None)))


def storage_bytes(found) -> int:
    """Count the bytes of the storages behind these tensors, each storage once; None is 0."""
    storages = [storage_of(tensor) for tensor in found if tensor is not None]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def tensors(state) -> list[torch.Tensor]:
    """List every tensor in the nested state of an optimizer."""
    if isinstance(state, torch.Tensor):
        return [state]
    if isinstance(state, dict):
        state = state.values()
    if hasattr(state, "__iter__") and not isinstance(state, str):
        return [tensor for value in state for tensor in tensors(value)]
    return []


def peak_bytes(device: torch.device) -> int:
    """Read this rank's peak memory: torch's on the GPU, or the process's resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return machine.process_peak_bytes()


class Activations(TorchDispatchMode):
    """What a forward keeps for its backward: `bytes`, the most at the beginning of any backward.

    A storage counts if the forward made it and it still lives when the backward begins. Counting
    what autograd saves would miss what activation checkpointing keeps, and count what it gives up.
    `devices`: the kinds of device that they are on.

    model: its parameters and their gradients are not activations. Of several forwards in a step
    (accumulation, pipelines) the largest counts. Only the thread that starts it is seen.
    """

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.bytes, self.devices = 0, set()
        self._parameters = list(model.parameters())
        self._made: dict[int, tuple] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._saved, self._wanted)
        self._forward = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Without this, torch.compile meets a mode in the first step and never compiles."""
        return True

    def start(self) -> None:
        """Begin to watch. The process must not be in another dispatch mode."""
        self._hooks.__enter__()
        self.__enter__()

    def stop(self) -> None:
        """End watching, and forget the storages."""
        self.__exit__(None, None, None)
        self._hooks.__exit__(None, None, None)
        self._made.clear()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        taken = {storage._cdata for storage in _storages((args, *(kwargs or {}).values()))}
        for storage in _storages(result):
            if storage._cdata not in taken:  # a view, or a change in place, has made nothing
                self._made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return result

    def _saved(self, tensor: torch.Tensor) -> torch.Tensor:
        self._forward = True
        self.devices.add(tensor.device.type)
        return tensor

    def _wanted(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._forward:  # the first that a backward asks for
            self._forward = False
            self.bytes = max(self.bytes, self._alive())
        return tensor

    def _alive(self) -> int:
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        others = {storage_of(tensor)._cdata for tensor in [*self._parameters, *gradients]}
        self._made = {key: made for key, made in self._made.items() if not made[0].expired()}
        return sum(_bytes_now(*made) for key, made in self._made.items() if key not in others)


def _bytes_now(reference: StorageWeakRef, nbytes: int) -> int:
    """What a storage holds now: FSDP empties those of gathered parameters and keeps the storage."""
    storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
    return nbytes if storage is None else min(nbytes, storage.nbytes())


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """The memory behind a tensor, of a sharded one the part on this rank."""
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).untyped_storage()


def _storages(nested) -> list[torch.UntypedStorage]:
    """List the storages of an operator's tensors, in a tenth of the time of torch's tree_leaves."""
    if isinstance(nested, torch.Tensor):
        return [storage_of(nested)]
    if isinstance(nested, (list, tuple)):
        return [storage for item in nested for storage in _storages(item)]
    return []
