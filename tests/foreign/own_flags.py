"""Flags of its own, none of them the course's: a verb, --out, and --port, a launcher's flag too."""

import argparse
import os
import pathlib

parser = argparse.ArgumentParser()
parser.add_argument("verb", choices=("train", "test"))
parser.add_argument("--port", help="of a dashboard")
parser.add_argument("--out", type=pathlib.Path, required=True)
options = parser.parse_args()
if os.environ["RANK"] == "0":
    options.out.write_text(f"{options.verb} at port {options.port}")
