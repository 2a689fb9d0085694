"""Count the collectives of a step and their sizes, where torch dispatches them.

tally = collective_counter.Tally(optimizer)
tally.start()
...  # a step
tally.stop(context.run_dir)  # writes ranks/<k>.collectives.json, which records.Run reads
"""

from collections import Counter
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bootcamp.records import summary
from bootcamp.train import environment

NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", "c10d")
WAITS = ("wait_tensor", "_wrap_tensor_autograd", "monitored_barrier_")


class Tally(TorchDispatchMode):
    """Count collectives by phase, kind and size while entered.

    The size is that of the largest tensor in bytes: the same for an all-reduce and for the
    reduce-scatter and the all-gather that can replace it. Of an all-to-all it is what this rank
    hands in, its own part included.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        super().__init__()
        self.counts: Counter = Counter()
        self._in_optimizer = False
        optimizer.register_step_pre_hook(lambda *_: setattr(self, "_in_optimizer", True))
        optimizer.register_step_post_hook(lambda *_: setattr(self, "_in_optimizer", False))

    def start(self) -> None:
        self.__enter__()

    def stop(self, run_dir: Path) -> None:
        """End counting, and leave this rank's rows in the run's folder."""
        self.__exit__(None, None, None)
        path = run_dir / "ranks" / f"{environment.rank()}.collectives.json"
        rows = [
            {"phase": phase, "kind": kind, "nbytes": nbytes, "count": count}
            for (phase, kind, nbytes), count in sorted(self.counts.items())
        ]
        summary.write_json(path, {"rows": rows})

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(hasattr(kind, "full_tensor") for kind in types):
            return NotImplemented  # a sharded tensor: let it say what it does to its parts
        result = function(*args, **(kwargs or {}))
        namespace, _, name = function._schema.name.partition("::")
        if namespace in NAMESPACES and name not in WAITS:
            leaves = tree_leaves([args, kwargs, result])
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            kind = _kind(name)
            if kind == "all-to-all":  # c10d's own takes the output first
                tensors = [args[namespace == "c10d"]]
            nbytes = max((tensor.nbytes for tensor in tensors), default=0)
            self.counts[self._phase(), kind, nbytes] += 1
        return result

    def _phase(self) -> str:
        if torch._C._current_graph_task_id() != -1:  # autograd is at work
            return "backward"
        return "optimizer" if self._in_optimizer else "forward"


def _kind(name: str) -> str:
    """all-reduce, all-gather, reduce-scatter, ...: one name for torch's several entry points."""
    name = name.strip("_").removesuffix("_coalesced").removesuffix("_tensor")
    name = name.removesuffix("_base").removesuffix("_into").removesuffix("_single")
    name = name.replace("_", "-")
    joined = name.startswith("all") and not name.startswith("all-")  # as the older ones write it
    return f"all-{name[3:]}".replace("-toall", "-to-all") if joined else name
