"""pyproject.toml's ranges, the pins of constraints.txt and the other files that install agree."""

import importlib.metadata
from pathlib import Path

import install
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]


def test_every_requirement_has_a_pin_in_its_range():
    project = install.project()["project"]
    pins, lines = install.pins(), [*project["dependencies"], *sum(install.groups().values(), [])]
    rows = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").open()]
    assert len([row for row in rows if row]) == len(pins), "a line that is no pin, or one twice"
    for wanted in map(Requirement, lines):
        pin = pins.get(install.plain(wanted.name))
        assert pin, f"{wanted} has no pin"
        assert wanted.specifier.contains(pin), f"{wanted}: the pin is {pin}"


def test_lowest_python_is_one_everywhere_and_every_pin_runs_on_it():
    project = install.project()
    lowest = project["project"]["requires-python"].removeprefix(">=")
    assert project["tool"]["ruff"]["target-version"] == "py" + lowest.replace(".", "")
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert conda == [f"python={lowest}", "pip"]
    pins = install.pins()
    for package in importlib.metadata.distributions():
        if pins.get(install.plain(package.metadata["Name"])) == package.version:
            pythons = package.metadata.get("Requires-Python", "")
            assert SpecifierSet(pythons).contains(lowest), package.metadata["Name"]
