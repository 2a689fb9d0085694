"""python src/snippets/start_with_spawn.py --ranks 2

torch.multiprocessing.spawn: one program starts the ranks as its children and tells each who it is.
"""

import argparse
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank: int, world_size: int, meeting_place: str) -> None:
    """What each rank runs. spawn passes the rank, the other arguments are passed on by hand."""
    dist.init_process_group("gloo", init_method=meeting_place, rank=rank, world_size=world_size)
    total = torch.tensor(rank)
    dist.all_reduce(total)  # every rank gets the sum of all ranks' numbers
    print(f"rank {rank} of {world_size}: the ranks' numbers add up to {total.item()}\n", end="")
    dist.destroy_process_group()


if __name__ == "__main__":  # each rank imports this file again: it must not start ranks of its own
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    ranks = parser.parse_args().ranks
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, args=(ranks, f"file://{folder}/ranks_meet_here"), nprocs=ranks)
