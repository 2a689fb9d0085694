"""python tools/unseen.py [--seed N] [--record]

Twenty runs that the planner has not seen, predicted before they run: their settings are drawn by
the seed out of a grid over five strategies. The machine is measured first, then the predictions are
written to logs/unseen/<time>/predictions.json, then the runs are made. Prints a line for each and
the median error. --record keeps all of it in logs/reference/unseen.json, unless the machine was
busy before or after: its two cores are one device each only while nobody else takes a part of them.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
from bootcamp import quiet  # noqa: E402
from bootcamp.experiments import unseen  # noqa: E402
from bootcamp.paths import LOGS, REFERENCE  # noqa: E402


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2])
    flags.add_argument("--seed", type=int, default=unseen.SEED)
    flags.add_argument("--record", action="store_true")
    args = flags.parse_args()
    folder = LOGS / "unseen" / time.strftime("%Y%m%d-%H%M%S")
    states = [quiet.measure()]
    print(f"{states[0]}\n{'setting':48} {'predicted':>11} {'measured':>11} {'error':>6}")
    record = unseen.trial(folder, args.seed)
    before = ", ".join(f"{load:.1f}" for load in record["load_before"])
    took = record["ended_unix_seconds"] - record["began_unix_seconds"]
    print(f"Median error {record['median_error']:.1%}; load before: {before}; {took:.0f} s.")
    states.append(quiet.measure())
    print(states[1])
    if args.record and all(state.is_quiet for state in states):
        shutil.copy(folder / "unseen.json", REFERENCE / "unseen.json")
    elif args.record:
        print("Not recorded: the machine was busy.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
