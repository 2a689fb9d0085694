"""python src/_generate.py WEIGHTS.safetensors --prompt "def " --length 48 --cache

Greedy generation from the course's GPT, byte by byte; with --cache each byte's keys and values are
kept and not computed again. Prints the text, and what the bytes took.
"""

import argparse
import statistics

import torch

from bootcamp import units
from bootcamp.costs.model_shapes import GPT
from bootcamp_lessons import generation

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("weights", help="parameters of the GPT by their names, safetensors")
parser.add_argument("--size", default="tiny", choices=GPT, help="of the GPT that was trained")
parser.add_argument("--prompt", default="def ")
parser.add_argument("--length", type=int, default=48, help="bytes to generate")
parser.add_argument("--cache", action="store_true", help="keep keys and values")
args = parser.parse_args()

torch.set_num_threads(1)
try:
    model = generation.load(args.weights, args.size)
    made = generation.greedy(model, args.prompt.encode(), args.length, cached=args.cache)
except (OSError, ValueError) as error:
    parser.error(str(error))

first, *others = made.seconds
print((made.prompt + made.text).decode(errors="replace"))
print(f"first byte: {units.time(first)}")
if others:
    print(f"each byte behind it: {units.time(statistics.median(others))} (median)")
print(f"cache: {units.size(made.cache_bytes)}")
