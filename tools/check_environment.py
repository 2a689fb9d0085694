"""python tools/check_environment.py

Compare environment.yml, pyproject.toml and constraints.txt: the same packages, the same pins, the
same Python. pyproject.toml says which packages and which ranges, constraints.txt which versions,
environment.yml repeats both for conda. One sentence for each disagreement, exit code 1 if any.
"""

import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
EDITABLE = re.compile(r"(?:-e|--editable)[ =]\.\[([\w,-]+)\]")
CONSTRAINT = re.compile(r"(?:-c|--constraint)[ =](\S+)")


def problems(environment: str, pyproject: str, constraints: str) -> list[str]:
    """What disagrees between the texts of the three files: one sentence each, empty if nothing."""
    project = tomllib.loads(pyproject)
    conda, pip = _dependencies(environment)
    lines, found = _without_options(pip)
    pins, found_in_pins = _pins(constraints.splitlines(), "constraints.txt")
    given, found_in_pip = _pins(lines, "environment.yml")
    wanted = _wanted(project["project"], _groups(pip))
    return [
        *found,
        *found_in_pins,
        *found_in_pip,
        *_python(conda, project, pins),
        *_names(given, wanted),
        *_versions(given, wanted, pins),
    ]


def _dependencies(environment: str) -> tuple[list[str], list[str]]:
    """What environment.yml asks of conda, and what of pip."""
    entries = yaml.safe_load(environment)["dependencies"]
    conda = [entry for entry in entries if isinstance(entry, str)]
    pip = [line for entry in entries if isinstance(entry, dict) for line in entry["pip"]]
    return conda, pip


def _without_options(pip: list[str]) -> tuple[list[str], list[str]]:
    """The packages among pip's lines, and what is wrong with the lines that are options."""
    found = []
    if not any(EDITABLE.fullmatch(line) for line in pip):
        found.append(
            "environment.yml: the course itself is missing. End its pip section with "
            "`--editable .[lab,test]`."
        )
    if "constraints.txt" not in [m[1] for line in pip if (m := CONSTRAINT.fullmatch(line))]:
        found.append(
            "environment.yml: packages that others bring along have no pin. Begin its pip section "
            "with `--constraint constraints.txt`."
        )
    return [line for line in pip if not line.startswith("-")], found


def _groups(pip: list[str]) -> list[str]:
    """The optional groups that environment.yml installs the course with."""
    for line in pip:
        if match := EDITABLE.fullmatch(line):
            return match[1].split(",")
    return []


def _pins(lines: list[str], file: str) -> tuple[dict[str, str], list[str]]:
    """{package: version} of `name==version` lines, and a sentence for each other line."""
    pins, found = {}, []
    for line in lines:
        text = line.split("#")[0].strip()
        if not text:
            continue
        try:
            requirement = Requirement(text)
            (pin,) = requirement.specifier
            exact = pin.operator == "==" and "*" not in pin.version
        except (InvalidRequirement, ValueError):
            exact = False
        if exact:
            pins[canonicalize_name(requirement.name)] = pin.version
        else:
            found.append(f"{file}: `{text}` is no pin. Write it as name==version.")
    return pins, found


def _wanted(project: dict, groups: list[str]) -> dict[str, SpecifierSet]:
    """{package: allowed versions} of the core and of these groups of pyproject.toml."""
    optional = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for g in groups for line in optional.get(g, []))]
    requirements = [Requirement(line) for line in lines]
    return {canonicalize_name(each.name): each.specifier for each in requirements}


def _names(given: dict, wanted: dict) -> list[str]:
    missing = [
        f"environment.yml: {name} is missing, pyproject.toml asks for {name}{wanted[name]}. "
        "Add it to the pip section."
        for name in wanted
        if name not in given
    ]
    unknown = [
        f"environment.yml: {name} is not in pyproject.toml's core or the groups installed here. "
        "Take it out, or add it there."
        for name in given
        if name not in wanted
    ]
    return missing + unknown


def _versions(given: dict, wanted: dict, pins: dict) -> list[str]:
    found = []
    for name, allowed in wanted.items():
        pin = pins.get(name)
        if pin is None:
            found.append(
                f"constraints.txt: {name} is missing, pyproject.toml asks for {name}{allowed}. "
                "Pin the version that the tests passed with."
            )
            continue
        if pin not in allowed:
            found.append(
                f"constraints.txt: {name}=={pin}, but pyproject.toml allows {name}{allowed}. "
                "Change the pin or the range."
            )
        if given.get(name, pin) != pin:
            found.append(
                f"environment.yml: {name}=={given[name]}, but constraints.txt pins {pin}. "
                f"Write {name}=={pin} in environment.yml."
            )
    return found


def _python(conda: list[str], project: dict, pins: dict) -> list[str]:
    """Conda's Python, ruff's target and the pins' own demands against `requires-python`."""
    allowed = SpecifierSet(project["project"]["requires-python"])
    lowest = next((each.version for each in allowed if each.operator == ">="), None)
    if lowest is None:
        return [f"pyproject.toml: requires-python is {allowed}. Give the lowest, such as >=3.11."]
    found = []
    given = next((entry for entry in conda if re.match(r"python\b(?!-)", entry)), "no python")
    if given != f"python={lowest}":
        found.append(
            f"environment.yml: {given}, but pyproject.toml's lowest is {lowest}, and the pins are "
            f"made for it. Write python={lowest}."
        )
    target = project.get("tool", {}).get("ruff", {}).get("target-version")
    if target != "py" + lowest.replace(".", ""):
        found.append(
            f"pyproject.toml: ruff's target-version is {target}, requires-python begins at "
            f"{lowest}. Give both the same."
        )
    for name, pin in pins.items():
        demands = _requires_python(name, pin)
        if not demands.contains(lowest):
            found.append(
                f"constraints.txt: {name}=={pin} needs Python {demands}, pyproject.toml promises "
                f"{lowest}. Pin an older {name}, or raise requires-python."
            )
    return found


def _requires_python(name: str, version: str) -> SpecifierSet:
    """The Pythons that a package of this version runs on, where it is installed; else any."""
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return SpecifierSet()
    if metadata["Version"].split("+")[0] != version:
        return SpecifierSet()
    return SpecifierSet(metadata.get("Requires-Python", ""))


def main() -> int:
    files = ("environment.yml", "pyproject.toml", "constraints.txt")
    missing = [name for name in files if not (ROOT / name).exists()]
    if missing:
        print(f"{', '.join(missing)}: no such file in the project's folder. Restore it from git.")
        return 1
    found = problems(*((ROOT / name).read_text() for name in files))
    print("\n".join(found) or f"{', '.join(files)} agree.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
