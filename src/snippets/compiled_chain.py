"""python src/snippets/compiled_chain.py --backend inductor

The end of a ResNet block, plain and compiled, on tensors larger than a last-level cache. Prints one
JSON line: the seconds of each in so many rounds, in turns.
"""

import argparse
import json
from functools import partial

import torch

from bootcamp.train import benchmark

ROUNDS, CALLS = 12, 3  # a claim's most pairs, each of the fastest of so many calls
SHAPE = 2**15, 2**10  # 128 MiB in float32

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="inductor")
args = parser.parse_args()
torch.set_num_threads(1)
device = "cuda" if torch.cuda.is_available() else "cpu"


def end_of_block(x, residual, factor, summand):
    return residual + torch.relu(x * factor + summand)


compiled = torch.compile(end_of_block, backend=args.backend)  # "inductor" writes a kernel
tensors = [torch.randn(shape, device=device) for shape in (SHAPE, SHAPE, SHAPE[1:], SHAPE[1:])]
torch.testing.assert_close(compiled(*tensors), end_of_block(*tensors))
ways = {"plain": end_of_block, "compiled": compiled}
found = {name: [] for name in ways}
for _ in range(ROUNDS):
    for name, way in ways.items():
        run = partial(way, *tensors)
        found[name].append(benchmark.time_fastest_call(run, device, CALLS))
print(json.dumps(found))
