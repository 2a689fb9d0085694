"""pyproject.toml's ranges, the pins of constraints.txt and environment.yml fit together.

environment.yml repeats nothing: it names groups of pyproject.toml and the file of the pins.
"""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
FILES = ("environment.yml", "pyproject.toml", "constraints.txt")
# a small project's three files, in which each disagreement below can be seen at once
ENVIRONMENT = """\
dependencies:
  - python=3.11
  - pip
  - pip:
      - --constraint constraints.txt
      - --editable .[lab]
"""
PYPROJECT = """\
[project]
requires-python = ">=3.11"
dependencies = ["alpha>=2"]
[project.optional-dependencies]
lab = ["beta-gamma>=1; python_version > '3'"]
[tool.ruff]
target-version = "py311"
"""
CONSTRAINTS = "# pins\nalpha==2.1\nbeta.gamma==1.0\n"


def disagreements(environment: str, pyproject: str, constraints: str) -> list[str]:
    """What does not fit between the texts of the three files, a sentence each."""
    project = tomllib.loads(pyproject)
    groups = project["project"]["optional-dependencies"]
    lowest = project["project"]["requires-python"].removeprefix(">=")
    lines = [line.split("#")[0].strip() for line in constraints.splitlines()]
    found = [
        f"{line} is no pin" for line in lines if line and not re.fullmatch(r"\S+==[\w.]+", line)
    ]
    pins = dict(line.split("==") for line in lines if "==" in line)
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    for text in [*project["project"]["dependencies"], *sum(groups.values(), [])]:
        wanted = Requirement(text)
        pin = pins.get(canonicalize_name(wanted.name))
        if pin is None or not wanted.specifier.contains(pin):
            found.append(f"{text}: the pin is {pin}")
    found += [
        f"{name}=={pin} does not run on Python {lowest}"
        for name, pin in pins.items()
        if not requires_python(name, pin).contains(lowest)
    ]
    if project["tool"]["ruff"]["target-version"] != "py" + lowest.replace(".", ""):
        found.append(f"ruff's target-version is not Python {lowest}")
    *conda, pip = yaml.safe_load(environment)["dependencies"]
    if conda != [f"python={lowest}", "pip"]:
        found.append(f"environment.yml: {conda}, but the lowest Python is {lowest}")
    editable = re.fullmatch(r"--editable \.\[([\w,]+)\]", pip["pip"][-1])
    if pip["pip"][:-1] != ["--constraint constraints.txt"] or not editable:
        found.append(f"environment.yml: {pip['pip']} repeats something, or lacks the pins")
    elif unknown := set(editable[1].split(",")) - set(groups):
        found.append(f"environment.yml: there is no group {unknown}")
    return found


def requires_python(name: str, version: str) -> SpecifierSet:
    """The Pythons that a package of this version runs on, where it is installed; else any."""
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return SpecifierSet()
    same = metadata["Version"].split("+")[0] == version
    return SpecifierSet(metadata.get("Requires-Python", "") if same else "")


def test_the_projects_files_agree():
    assert disagreements(*((ROOT / name).read_text() for name in FILES)) == []


def test_names_agree_however_they_are_spelt():
    assert disagreements(ENVIRONMENT, PYPROJECT, CONSTRAINTS) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        (2, "alpha==2.1\n", "", "alpha>=2: the pin is None"),
        (1, "alpha>=2", "alpha>=3", "alpha>=3: the pin is 2.1"),
        (1, "beta-gamma>=1", "beta-gamma>=2", "the pin is 1.0"),
        (2, "alpha==2.1", "alpha==2.*", "alpha==2.* is no pin"),
        (2, "alpha==2.1", "alpha>=2.1", "alpha>=2.1 is no pin"),
        (0, "python=3.11", "python=3.10", "but the lowest Python is 3.11"),
        (1, ">=3.11", ">=3.12", "but the lowest Python is 3.12"),
        (1, "py311", "py313", "ruff's target-version is not Python 3.11"),
        (0, "--editable", "alpha==2.1\n      - --editable", "repeats something"),
        (0, "      - --constraint constraints.txt\n", "", "lacks the pins"),
        (0, "[lab]", "[lab,gone]", "there is no group {'gone'}"),
    ],
)
def test_a_disagreement_is_named(file, old, new, says):
    texts = [ENVIRONMENT, PYPROJECT, CONSTRAINTS]
    assert old in texts[file]
    texts[file] = texts[file].replace(old, new)
    assert any(says in sentence for sentence in disagreements(*texts))


def test_a_pin_that_needs_a_newer_python_is_named():
    pin = f"pytest=={pytest.__version__}"
    found = disagreements(
        ENVIRONMENT, PYPROJECT.replace("3.11", "3.2").replace("py311", "py32"), CONSTRAINTS + pin
    )
    assert f"{pin} does not run on Python 3.2" in found
