"""The plugin: what fails is named at once, what is skipped must be expected, all is logged."""

import json
import os
import shutil
import signal
import subprocess

import pytest
import warm

from bootcamp.paths import ROOT

PLANTED = """
import time, pytest

def test_fails():
    assert [] == [1], "planted"

def test_is_skipped():
    pytest.skip("no such thing here")

def test_sleeps():
    time.sleep(60)
"""


@pytest.mark.slow
def test_failures_are_named_while_the_run_goes_on(tmp_path):
    with run_tests(tmp_path, PLANTED) as run:
        named = next(line for line in run.stdout if "FAILED" in line)
        assert "::test_fails (call): AssertionError: planted" in named
        assert run.poll() is None
        run.send_signal(signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize(("may_skip", "code"), [("such thing", 0), ("no hadolint|no Chromium", 1)])
def test_skips_fail_the_run_unless_they_are_expected(may_skip, code, tmp_path):
    skipped = PLANTED.replace("assert [] ==", "assert [1] ==").replace("60", "0")
    with run_tests(tmp_path, skipped, BOOTCAMP_MAY_SKIP=may_skip) as run:
        said = run.communicate()[0]
    assert run.returncode == code, said
    unexpected = "::test_is_skipped: Skipped: no such thing here"
    assert (f"SKIPPED, which nobody expected: {unexpected}" in said) == (code == 1)
    rows = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    called = [row["outcome"] for row in rows if row["when"] == "call"]
    assert called == ["passed", "skipped", "passed"]


def run_tests(folder, text, **environment) -> subprocess.Popen:
    """Start pytest on a file of tests outside the clone, with the conftest.py of the notebooks."""
    shutil.copy(ROOT / "notebooks" / "conftest.py", folder)
    path = folder / "test_planted.py"
    path.write_text(text)
    return subprocess.Popen(
        [warm.python(), f"{pytest.__path__[0]}/__main__.py", "-c", ROOT / "pyproject.toml", path],
        env={**os.environ, "BOOTCAMP_TEST_LOG": str(folder / "log"), **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
