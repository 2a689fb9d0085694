"""environment.yml, pyproject.toml and constraints.txt agree; the check sees when they do not."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import check_environment  # noqa: E402

FILES = ("environment.yml", "pyproject.toml", "constraints.txt")

# the three files of a small project, so that what is changed below can be seen at once
ENVIRONMENT = """\
dependencies:
  - python=3.11
  - pip
  - pip:
      - --constraint constraints.txt
      - alpha==2.1
      - Beta_Gamma==1.0
      - --editable .[lab,test]
"""
PYPROJECT = """\
[project]
requires-python = ">=3.11"
dependencies = ["alpha>=2"]
[project.optional-dependencies]
lab = ["beta-gamma>=1"]
test = []
[tool.ruff]
target-version = "py311"
"""
CONSTRAINTS = """\
# pins
alpha==2.1
beta.gamma==1.0
delta==7; sys_platform == "darwin"
"""


def test_the_projects_files_agree():
    found = check_environment.problems(*((ROOT / name).read_text() for name in FILES))
    assert found == []


def test_names_agree_however_they_are_spelt():
    assert check_environment.problems(ENVIRONMENT, PYPROJECT, CONSTRAINTS) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        (0, "alpha==2.1", "alpha==2.2", "alpha==2.2, but constraints.txt pins 2.1. Write"),
        (2, "alpha==2.1", "alpha==2.2", "alpha==2.1, but constraints.txt pins 2.2. Write"),
        (0, "      - alpha==2.1\n", "", "environment.yml: alpha is missing"),
        (2, "alpha==2.1\n", "", "constraints.txt: alpha is missing"),
        (1, '"alpha>=2"', '"alpha>=2", "omega>=1"', "environment.yml: omega is missing"),
        (1, '"alpha>=2"', "", "environment.yml: alpha is not in pyproject.toml"),
        (1, "alpha>=2", "alpha>=3", "alpha==2.1, but pyproject.toml allows alpha>=3"),
        (0, "python=3.11", "python=3.10", "python=3.10, but pyproject.toml's lowest is 3.11"),
        (0, "  - python=3.11\n", "", "no python, but pyproject.toml's lowest is 3.11"),
        (1, ">=3.11", ">=3.12", "python=3.11, but pyproject.toml's lowest is 3.12"),
        (1, ">=3.11", "<4", "requires-python is <4. Give the lowest"),
        (1, "py311", "py313", "ruff's target-version is py313"),
        (2, "alpha==2.1", "alpha>=2.1", "`alpha>=2.1` is no pin"),
        (2, "alpha==2.1", "alpha==2.*", "`alpha==2.*` is no pin"),
        (0, "alpha==2.1", "alpha", "environment.yml: `alpha` is no pin"),
        (0, "--editable .[lab,test]", "--editable .", "the course itself is missing"),
        (0, "--editable .[lab,test]", "--editable .[test]", "beta-gamma is not in pyproject.toml"),
        (0, "--constraint constraints.txt", "--pre", "packages that others bring along"),
    ],
)
def test_a_disagreement_is_named(file, old, new, says):
    texts = [ENVIRONMENT, PYPROJECT, CONSTRAINTS]
    assert old in texts[file]
    texts[file] = texts[file].replace(old, new)
    assert any(says in sentence for sentence in check_environment.problems(*texts))


def test_a_pin_that_needs_a_newer_python_is_named(monkeypatch):
    demands = check_environment.SpecifierSet(">=3.12")
    monkeypatch.setattr(check_environment, "_requires_python", lambda name, version: demands)
    found = check_environment.problems(ENVIRONMENT, PYPROJECT, CONSTRAINTS)
    assert "constraints.txt: alpha==2.1 needs Python >=3.12" in found[0]


def test_the_command_prints_and_fails(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(check_environment, "ROOT", tmp_path)
    assert check_environment.main() == 1
    assert "no such file" in capsys.readouterr().out
    texts = (ENVIRONMENT.replace("alpha==2.1", "alpha==9"), PYPROJECT, CONSTRAINTS)
    for name, text in zip(FILES, texts, strict=True):
        (tmp_path / name).write_text(text)
    assert check_environment.main() == 1
    assert "Write alpha==2.1" in capsys.readouterr().out
    (tmp_path / "environment.yml").write_text(ENVIRONMENT)
    assert check_environment.main() == 0
    assert "agree" in capsys.readouterr().out
