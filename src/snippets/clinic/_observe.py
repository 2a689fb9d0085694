"""Runs a script as one rank and prints, as one line of JSON, what can be seen of it from outside.

    launch(OBSERVE, 2, device="cpu", file=path, keep="seen,losses")

Of `model`, a name of the script: its parameters and gradients, whole also where they are sharded,
those at the first forward, and how many this rank holds. Of each torch.save to a file: the path.
Of each backward: the loss. Of each linear layer: the type of number that it gave. Of all gathers of
tensors: their bytes. And the values of the names in --keep.
"""

import argparse
import contextlib
import functools
import io
import json
import os
import sys
import time
import types
import zlib

import torch
import torch.distributed as dist

SET_BY_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
SET_BY_LAUNCHERS += ("MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")
PORTS = range(22_000, 32_000)  # below those that systems hand out by themselves
GATHERS = ("all_gather_single", "all_gather_into_tensor")  # what newer and older FSDP2 calls
ENOUGH = 2000  # numbers to tell two models apart


class Watch:
    """Notes what a script does while it runs."""

    def __init__(self):
        self.at_first, self.linear_gave, self.saved, self.losses = None, set(), [], []
        self.gathered = 0
        for name in GATHERS:
            setattr(dist, name, self._gather(getattr(dist, name, None)))
        self._plain_backward, torch.Tensor.backward = torch.Tensor.backward, self._backward()
        torch.nn.modules.module.register_module_forward_pre_hook(self._before)
        torch.nn.modules.module.register_module_forward_hook(self._after)

    def _before(self, module, inputs) -> None:
        if self.at_first is None:
            self.at_first = numbers(module.parameters())

    def _after(self, module, inputs, output) -> None:
        if isinstance(module, torch.nn.Linear):
            self.linear_gave.add(str(output.dtype))

    def _backward(self):
        def backward(loss, *more, **options):
            self.losses.append(loss.item())
            return self._plain_backward(loss, *more, **options)

        return backward

    def _gather(self, plain):
        def gather(output_tensor, *more, **options):
            self.gathered += output_tensor.nbytes
            return plain(output_tensor, *more, **options)

        return gather

    def saves(self, seconds: float) -> None:
        """Note each torch.save to a file, and let it take so long, as a slow disk would.

        Half of the file is written at once, half after half the time; the rest goes by until it is
        on the disk. A rank's save begins somewhat later than that of the rank before it.
        """
        rank = int(os.environ["RANK"])

        def slowly(state, path, *more, **options):
            if not isinstance(path, str | os.PathLike) and not hasattr(path, "name"):
                return plain(state, path, *more, **options)  # to memory: pickling a tensor does it
            self.saved.append(str(getattr(path, "name", path)))
            buffer = io.BytesIO()
            plain(state, buffer, *more, **options)
            content, half = buffer.getvalue(), buffer.tell() // 2
            time.sleep(rank * seconds * 0.7)
            opened = hasattr(path, "write")
            with contextlib.nullcontext(path) if opened else open(path, "wb", buffering=0) as file:
                for part in (content[:half], content[half:]):
                    file.write(part)
                    time.sleep(seconds / 2)
            return None

        plain, torch.save = torch.save, slowly

    def told(self, scope: dict, keep: list[str]) -> dict:
        """All that was seen, when the script has ended."""
        model, found = scope.get("model"), {"saved": self.saved, "at_first": self.at_first}
        found |= {"backward_losses": self.losses}
        if isinstance(model, torch.nn.Module):
            parameters = list(model.parameters())
            gradients = [p.grad for p in parameters if p.grad is not None]
            found |= {"parameters": numbers(parameters), "gradients": numbers(gradients)}
            found |= {"held": sum(_own(p).numel() for p in parameters)}
            found |= {"types": sorted({str(p.dtype) for p in parameters})}
            buffers = {name.rpartition(".")[2]: b.tolist() for name, b in model.named_buffers()}
            found |= {"buffers": buffers}
        found |= {"linear_gave": sorted(self.linear_gave), "gathered": self.gathered}
        return found | {name: scope[name] for name in keep if name in scope}


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def numbers(tensors) -> list[float]:
    """The first numbers of all tensors in one list; those of a sharded one are gathered."""
    whole = [t.full_tensor() if hasattr(t, "full_tensor") else t for t in tensors]
    flat = [t.detach().flatten() for t in whole if not t.is_meta]
    return torch.cat(flat)[:ENOUGH].tolist() if flat else []


def run(path: str) -> dict:
    """Run a script as python does; its names. Ends the process with its traceback if it raises."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = path
    try:
        with open(path) as file:
            exec(compile(file.read(), path, "exec"), main.__dict__)
    except Exception as error:
        error.__traceback__ = error.__traceback__.tb_next  # the script's own lines, not this file's
        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(1) from None
    return main.__dict__


def deal_out(gpus: list[int], rank: int) -> None:
    """Tell a rank the place that Slurm's cyclic distribution gives it, with two GPUs for each rank.

    gpus: how many each host has. The ranks go to the hosts in turn, as long as a host has room.
    """
    turns = range(max(gpus) // 2)
    places = [(host, turn) for turn in turns for host, has in enumerate(gpus) if turn < has // 2]
    host, turn = places[rank]
    os.environ |= {"GROUP_RANK": str(host), "LOCAL_RANK": str(turn)}
    os.environ["SLURM_GPUS_ON_NODE"] = str(gpus[host])


def on_a_port_of_this_run() -> None:
    """Let two runs at once not meet: MASTER_PORT follows from the name of the run's folder."""
    os.environ["MASTER_PORT"] = str(PORTS[zlib.crc32(os.getcwd().encode()) % len(PORTS)])


def fork_what_is_spawned() -> None:
    """Start ranks that a script spawns from this process, in which torch is loaded already."""
    start = torch.multiprocessing.start_processes
    torch.multiprocessing.spawn = functools.partial(start, start_method="fork")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--file", required=True)
    parser.add_argument("--keep", default="")
    parser.add_argument("--by-hand", action="store_true", help="as if no launcher had started it")
    parser.add_argument("--spawns", action="store_true", help="it starts ranks by itself")
    parser.add_argument("--gpus-of-hosts", default="", help="simulated: 6,2 is two hosts")
    parser.add_argument("--save-seconds", type=float, default=0.0)
    parser.add_argument("--seed-offset", type=int, default=0, help="added to each seed")
    args = parser.parse_args()
    # where a script without a path of its own leaves its files
    os.chdir(os.environ.get("BOOTCAMP_RUN", "."))
    seed = torch.manual_seed
    torch.manual_seed = lambda number: seed(number + args.seed_offset)
    watch = Watch()
    watch.saves(args.save_seconds)
    sys.argv = [args.file]
    if args.by_hand:
        sys.argv.append(os.environ["RANK"])
        for name in SET_BY_LAUNCHERS:
            os.environ.pop(name, None)
    if args.gpus_of_hosts:
        deal_out([int(gpus) for gpus in args.gpus_of_hosts.split(",")], int(os.environ["RANK"]))
    if args.spawns:
        on_a_port_of_this_run()
        fork_what_is_spawned()
    torch.distributed.destroy_process_group = lambda *_, **__: None  # telling gathers shards
    scope = run(args.file)
    print(json.dumps({"observed": watch.told(scope, args.keep.split(","))}))


if __name__ == "__main__":
    main()
