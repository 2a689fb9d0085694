"""The files for other schedulers: the same job in each of them."""

import hashlib
import re

import pytest

from bootcamp.files import read_json
from bootcamp.paths import SRC
from bootcamp_lessons.labs import hosts_lab

PLACE = SRC / "jobs" / "elsewhere"
FILES = sorted(path for path in PLACE.iterdir() if path.suffix in (".py", ".yaml"))
CHANGED = "the file has changed since it was checked, see logs/README.md"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_of_schedulers_start_the_same_job_and_are_those_that_were_checked(path):
    """Nodes and processes are those that the scheduler's own library has read in the file."""
    text, checked = path.read_text(), read_json(hosts_lab.MANIFESTS)[path.name]
    assert set(re.findall(r"_train_\w+\.py", text)) == {"_train_ddp.py"}
    assert re.search(r"--steps\W+20\W+--global-batch\W+32\b", text)
    assert (checked["nodes"], checked["processes"]) == (2, 2)
    assert checked["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest(), CHANGED
    rows = {row["file"]: row for row in hosts_lab.scheduler_table()}
    assert checked["tool"].split("==")[1] in rows[path.name]["checked with"]
