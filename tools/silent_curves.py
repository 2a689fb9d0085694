"""python tools/silent_curves.py

Record the loss curves of lesson 08c anew, into logs/reference/silent_curves.json: 50 steps with
AdamW of each broken script and of its baseline.
"""

import json
import sys

from bootcamp import machine
from bootcamp_lessons.labs import silent_bugs

FLAGS = {"global_batch": 16, "steps": 50}


def main() -> None:
    curves = {}
    for name, case in silent_bugs.CASES.items():
        right, wrong = case.baseline(**FLAGS), case.run(case.broken(), **FLAGS)
        curves[name] = {"steps": FLAGS["steps"], "right": right.losses, "wrong": wrong.losses}
    found = {"machine": machine.cpu_name(), "python": sys.version.split()[0], **FLAGS}
    text = json.dumps({**found, "curves": curves}, indent=1)
    silent_bugs.CURVES.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
