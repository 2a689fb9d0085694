"""Count the bytes of parameters, gradients, optimizer state and activations that a rank holds."""

from collections.abc import Iterator

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from bootcamp import machine
from bootcamp.train import sharded_tensors


class ModelMemory:
    """The bytes of a model and its optimizer. optimizer: None without training."""

    def __init__(self, model, optimizer):
        self._model, self._optimizer, self._deepspeed_gradient_bytes = model, optimizer, 0
        if sharded_tensors.is_deepspeed(model):

            def count_gradients(*_) -> None:  # it frees them once its optimizer has them
                gradients = sharded_tensors.deepspeed_gradients(model)
                self._deepspeed_gradient_bytes = count_storage_bytes(gradients)

            sharded_tensors.deepspeed_optimizer(model).register_step_pre_hook(count_gradients)

    def count(self) -> dict[str, int]:
        """Count `parameter_bytes`, `gradient_bytes` and `optimizer_bytes` of this moment."""
        parameters = list(self._model.parameters())
        if sharded_tensors.is_deepspeed(self._model):
            gradient_bytes = self._deepspeed_gradient_bytes
            state = sharded_tensors.deepspeed_optimizer(self._model).state
            state = [state, sharded_tensors.deepspeed_master(self._model)]
        else:
            gradient_bytes = count_storage_bytes(parameter.grad for parameter in parameters)
            # torch's ZeroRedundancyOptimizer has its state in an optimizer inside
            state = getattr(getattr(self._optimizer, "optim", self._optimizer), "state", None)
        return {
            "parameter_bytes": count_storage_bytes(getattr(p, "ds_tensor", p) for p in parameters),
            "gradient_bytes": gradient_bytes,
            "optimizer_bytes": count_storage_bytes(find_leaves(state)),
        }


def count_storage_bytes(tensors) -> int:
    """Count the bytes of the storages behind these tensors, each storage once; None is 0."""
    storages = [storage_of(tensor) for tensor in tensors if tensor is not None]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def find_leaves(nested, kinds=torch.Tensor) -> Iterator:
    """Find what is of these kinds in nested containers, in a tenth of the time of tree_leaves."""
    if isinstance(nested, kinds):
        yield nested
    elif isinstance(nested, (dict, list, tuple)):
        for item in nested.values() if isinstance(nested, dict) else nested:
            yield from find_leaves(item, kinds)


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Return the memory behind a tensor, of a sharded one the part on this rank."""
    return getattr(tensor, "_local_tensor", tensor).untyped_storage()


def read_peak_bytes(device: torch.device) -> int:
    """Read this rank's peak memory: torch's on the GPU, or the process's resident memory."""
    on_gpu = device.type == "cuda"
    return torch.cuda.max_memory_allocated(device) if on_gpu else machine.process_peak_bytes()


class Activations(TorchDispatchMode):
    """Count the `bytes` that a forward keeps for its backward, the most, and note their `devices`.

    A storage counts if the forward made it and it still lives when the backward begins. Counting
    what autograd saves would miss what activation checkpointing keeps, and count what it gives up.

    model: its parameters and their gradients are not activations. Of several forwards in a step
    (accumulation, pipelines) the largest counts. Only the thread that starts it is seen.
    """

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.bytes, self.devices = 0, set()
        self._parameters = list(model.parameters())
        self._made: dict[int, tuple] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._note_saved, self._note_wanted)
        self._in_forward = False

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
        if args and result is args[0]:
            return result  # a change in place makes nothing
        given = {storage_of(tensor)._cdata for tensor in find_leaves((args, kwargs))}
        for storage in map(storage_of, find_leaves(result)):
            if storage._cdata not in given:  # a view has made nothing
                self._made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return result

    def _note_saved(self, tensor: torch.Tensor) -> torch.Tensor:
        self._in_forward = True
        self.devices.add(tensor.device.type)
        return tensor

    def _note_wanted(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._in_forward:  # the first that a backward asks for
            self._in_forward = False
            self.bytes = max(self.bytes, self._count_living())
        return tensor

    def _count_living(self) -> int:
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        others = {storage_of(tensor)._cdata for tensor in [*self._parameters, *gradients]}
        self._made = {key: made for key, made in self._made.items() if not made[0].expired()}
        return sum(_bytes_now(*made) for key, made in self._made.items() if key not in others)


def _bytes_now(reference: StorageWeakRef, nbytes: int) -> int:
    """Return a storage's bytes now: FSDP empties those of gathered parameters, and keeps them."""
    storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
    return nbytes if storage is None else min(nbytes, storage.nbytes())
