"""Count the collectives of a step and their sizes, where torch dispatches them."""

from collections import Counter
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bootcamp.files import write_json
from bootcamp.train import environment
from bootcamp.train.memory_usage import find_leaves

NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", "c10d")
WAITS = ("wait_tensor", "_wrap_tensor_autograd", "monitored_barrier_")
KINDS = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter")


class Tally(TorchDispatchMode):
    """Count collectives by phase, kind and size between `start` and `stop`.

    The size is that of the largest tensor in bytes: the same for an all-reduce and for the
    reduce-scatter and the all-gather that can replace it. Of an all-to-all it is this rank's input.
    """

    def __init__(self, optimizer: torch.optim.Optimizer | None = None):
        super().__init__()
        self.counts: Counter = Counter()
        self._in_optimizer = False
        if optimizer:
            optimizer.register_step_pre_hook(lambda *_: setattr(self, "_in_optimizer", True))
            optimizer.register_step_post_hook(lambda *_: setattr(self, "_in_optimizer", False))

    start = TorchDispatchMode.__enter__

    def stop(self, run_dir: Path) -> None:
        """End counting, and write ranks/<rank>.collectives.json, which records.Run reads."""
        self.__exit__(None, None, None)
        names, counted = ("phase", "kind", "nbytes", "count"), sorted(self.counts.items())
        rows = [dict(zip(names, (*key, count), strict=True)) for key, count in counted]
        write_json(run_dir / "ranks" / f"{environment.rank()}.collectives.json", {"rows": rows})

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(hasattr(kind, "full_tensor") for kind in types):
            return NotImplemented  # a sharded tensor dispatches the operations on its parts
        result = function(*args, **(kwargs or {}))
        namespace, _, name = function._schema.name.partition("::")
        if namespace in NAMESPACES and name not in WAITS:
            plain = name.replace("_", "")  # one kind has several entry points in torch
            kind = next((kind for kind in KINDS if kind.replace("-", "") in plain), name.strip("_"))
            tensors = (args, kwargs, result)
            if kind == "all-to-all":  # c10d's own takes the output first
                tensors = args[namespace == "c10d"]
            sizes = [tensor.nbytes for tensor in find_leaves(tensors)]
            self.counts[self._phase(), kind, max(sizes, default=0)] += 1
        return result

    def _phase(self) -> str:
        if torch._C._current_graph_task_id() != -1:  # autograd is at work
            return "backward"
        return "optimizer" if self._in_optimizer else "forward"
