"""python tools/reference.py MACHINE [--steps 40]

Record runs of this machine for logs/reference/, small enough to be committed: the baseline and DDP
on 1 and 2 ranks, Horovod on 2, and DDP on every GPU where there are some. MACHINE names it in words
that a reader understands, such as epyc-2core or 8xh100.
"""

import argparse
import gzip
import json
import shutil
import sys
from pathlib import Path

from bootcamp import launch
from bootcamp.paths import REFERENCE


def slim(folder: Path) -> None:
    """Drop what belongs to the moment (beats, stacks, output); compress the traces."""
    for path in (folder / "ranks").iterdir():
        if path.name.endswith(".trace.json"):
            trace = json.loads(path.read_text())
            with gzip.open(f"{path}.gz", "wt") as compressed:  # without this machine's folders
                json.dump({"traceEvents": trace["traceEvents"]}, compressed)
            path.unlink()
        elif path.suffix != ".json":
            path.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("machine")
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    wanted = [("cpu", 1), ("gpu", 1), ("ddp", 1), ("ddp", 2)]
    if launch.available("horovod"):
        wanted.append(("horovod", 2))
    if launch.gpu_count() > 2:
        wanted.append(("ddp", launch.gpu_count()))
    for script, ranks in wanted:
        folder = REFERENCE / f"{args.machine}-{script}-{ranks}"
        if folder.exists():
            shutil.rmtree(folder)
        traced = {"trace_step": 10} if script == "ddp" else {}
        run = launch.launch(script, ranks, run_dir=folder, steps=args.steps, **traced)
        slim(folder)
        print(run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
