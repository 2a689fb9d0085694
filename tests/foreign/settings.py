"""Settings that the command line overrides, `--max_iters=6`, as nanoGPT's configurator.py does."""

import sys
from ast import literal_eval

max_iters = 600
compile = True

for argument in sys.argv[1:]:
    name, value = argument.removeprefix("--").split("=")
    assert name in globals(), f"Unknown config key: {name}"
    globals()[name] = literal_eval(value)

print(max_iters, compile)
