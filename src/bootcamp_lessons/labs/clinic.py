"""Lesson 12: broken scripts that people copy. See one fail, say why, fix it.

The scripts are in src/snippets/clinic/, with cases.toml (what is asked of each) and _observe.py
(runs and observes them). clinic_judges.py judges what was observed.
"""

import ast
import json
import textwrap
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from bootcamp.classroom.tasks import RUNS_TO_ITS_END, Plain, ScriptTask, Wrong, failed, told
from bootcamp.launcher import launch
from bootcamp.paths import SRC, shown
from bootcamp.records.runs import Run
from bootcamp.table import Table
from bootcamp_lessons.labs import clinic_judges

WARD = SRC / "snippets" / "clinic"
OBSERVE = WARD / "_observe.py"
OTHER_SEED = 1  # added to a script's own
OBSERVED = '{"observed"'  # how the line of _observe.py begins


@dataclass(frozen=True)
class Option:
    """One answer to a diagnosis, and the reply to it."""

    text: str
    reply: str
    right: bool = False


@dataclass(frozen=True)
class Case(ScriptTask):
    """A broken script; cases.toml explains the fields."""

    file: str = ""
    ranks: int = 2
    judge: Callable[[clinic_judges.Observed], str] = None
    question: str = ""
    options: tuple[Option, ...] = ()
    fix: dict[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    shown_on: tuple[int, ...] = ()
    owner_starts: int = 0
    framework: str | None = None
    hang_seconds: float = 6
    flags: dict = field(default_factory=dict)

    @property
    def broken(self) -> Path:
        """The script as the reader meets it."""
        return WARD / f"{self.file}.py"

    @property
    def started_first(self) -> int:
        """In how many processes the broken script is run."""
        return self.owner_starts or self.ranks

    def starting_point(self) -> str:
        """The broken script as it is: that it is broken is what the reader starts from."""
        return self.broken.read_text()

    def solved(self) -> Path:
        return self.derived_solution(changed(self.starting_point(), self.fix))

    def tried(self, path: Path) -> str:
        return self.judge(Trial(self, path))

    def run(self, path: Path, ranks: int, **flags) -> Run:
        """Run a script under observation. Raises LaunchError without its framework."""
        flags = {"file": path, "keep": ",".join(self.keep), **self.flags, **flags}
        how = {"device": "cpu", "quiet": True, "raises": False}
        options = launch.Options(hang_seconds=self.hang_seconds, framework=self.framework)
        return launch.launch(OBSERVE, ranks, options=options, **how, **flags)

    def observe(self, path: Path, ranks: int, **flags) -> list[dict]:
        """What was observed of each rank. Raises Wrong if the script did not end well."""
        run = self.run(path, ranks, **flags)
        if run.status != "ok":
            error, where = run.summary["error"], f" on {ranks} ranks" if ranks > 1 else ""
            raise failed(error, path, self.meaning(told(error, path)), f"{RUNS_TO_ITS_END}{where}")
        return [_observed(run, rank) for rank in range(ranks)]

    def meaning(self, error: str) -> str:
        """What an error means in this case; empty where only the index of errors may know."""
        return next((means for words, means in self.errors.items() if words in error), "")


def changed(text: str, changes: dict[str, str]) -> str:
    """A text with pieces of it replaced. Raises ValueError for one that is not there just once."""
    for old, new in changes.items():
        if text.count(old) != 1:
            raise ValueError(f"{old!r} is there {text.count(old)} times, not once")
        text = text.replace(old, new)
    return text


class Trial(clinic_judges.Observed):
    """A script that is being judged: it is run for what the judge asks."""

    def __init__(self, case: Case, path: Path):
        self.case, self.path = case, path

    @cached_property
    def ranks(self) -> list[dict]:
        return self.case.observe(self.path, self.case.ranks)

    @cached_property
    def reseeded(self) -> dict:
        return self.case.observe(self.path, 1, seed_offset=OTHER_SEED)[0]

    @property
    def fixed(self) -> dict:
        return _fixed(self.case.file, self.case.ranks)

    @property
    def alone(self) -> dict:
        return _fixed(self.case.file, 1)


@cache
def _fixed(file: str, ranks: int) -> dict:
    """What rank 0 of a fixed script does; run once in a kernel."""
    return CASES[file].observe(CASES[file].solved(), ranks)[0]


def _observed(run: Run, rank: int) -> dict:
    lines = [line for line in run.output(rank).splitlines() if line.startswith(OBSERVED)]
    if not lines:
        raise Wrong(RUNS_TO_ITS_END, f"rank {rank} left before its end: nothing was seen of it")
    return json.loads(lines[-1])["observed"]


def _read_case(file: str, content: dict) -> Case:
    """A case of cases.toml; its task is what the script says of itself."""
    said = ast.get_docstring(ast.parse((WARD / f"{file}.py").read_text()))
    content |= {
        "judge": getattr(clinic_judges, content["judge"]),
        "options": tuple(Option(**option) for option in content["options"]),
        "fix": {piece["old"]: piece["new"] for piece in content["fix"]},
    }
    return Case(f"clinic_{file}", task=said.partition("\n\n")[2], file=file, **content)


CASES = {
    file: _read_case(file, content)
    for file, content in tomllib.loads((WARD / "cases.toml").read_text()).items()
}
TASKS = list(CASES.values())


def _find(name: str) -> Case:
    return CASES[name.removeprefix("clinic_")]


class Examined(Plain):
    """What a script printed, and how it failed; a notebook shows the script above it."""

    script: str = ""

    def _repr_markdown_(self) -> str:
        return f"```python\n{self.script}\n```\n```text\n{self}\n```"


@cache
def _run_broken(case_name: str, ranks: int) -> Run:
    """Run a broken script; once in a kernel."""
    case = _find(case_name)
    return case.run(case.broken, ranks)


def examine(name: str) -> Examined:
    """Run the reader's script, broken as it is if there is none yet, and show what happens."""
    case, lines = _find(name), []
    if not case.path.exists():
        case.path.parent.mkdir(parents=True, exist_ok=True)
        case.path.write_text(case.starting_point())
    untouched = case.path.read_text() == case.starting_point()
    for ranks in case.shown_on or (case.started_first if untouched else case.ranks,):
        what = "process" if case.owner_starts else "rank"
        lines += [f"{shown(case.path)} on {ranks} {what}{'s' * (ranks > 1)}:"]
        try:
            run = _run_broken(name, ranks) if untouched else case.run(case.path, ranks)
        except launch.RunRefused as refused:
            said = [str(refused)]
        else:
            said = [line for line in _printed(run, ranks) if not line.startswith(OBSERVED)]
            script = case.broken if untouched else case.path
            said += told(run.summary["error"], script).splitlines() if run.status != "ok" else []
        lines += [textwrap.indent(textwrap.fill(line, 94), "    ") for line in said if line]
    seen = Examined("\n".join(lines))
    seen.script = case.path.read_text()
    return seen


def _printed(run: Run, ranks: int) -> list[str]:
    outs = [run.folder / "ranks" / f"{rank}.out" for rank in range(ranks)]
    return [line for out in outs if out.exists() for line in out.read_text().splitlines()]


def observe(name: str) -> list[dict]:
    """What can be seen of each rank of a broken script that ends by itself."""
    case = _find(name)
    return case.observe(case.broken, case.ranks)


def waiting_room() -> Table:
    """All broken scripts, each with what its owner says about it."""

    def quote(case: Case) -> str:
        return " ".join(case.task.split('"')[1].split())

    return Table.of(TASKS, {"program": "file", "its owner says": quote})


def ward_round() -> Table:
    """Run all broken scripts, some at once, and note how each ends."""
    with ThreadPoolExecutor(3) as pool:
        return Table(list(pool.map(_bedside, TASKS)), "As they came in")


def _bedside(case: Case) -> dict:
    row = {"script": case.file, "ranks": case.started_first}
    try:
        error = _run_broken(case.name, case.started_first).summary.get("error")
    except launch.RunRefused as refused:
        return row | {"ended": "not run here", "it said": str(refused)[:90]}
    if not error:
        return row | {"ended": "by itself", "it said": ""}
    ended = "not at all" if error["kind"] == "hang" else "with an error"
    return row | {"ended": ended, "it said": told(error, case.broken).splitlines()[0][:90]}


def diagnose(name: str, answer: str | None = None) -> Plain:
    """Ask what is wrong with a script; with a letter, say whether that is it, and why not."""
    case = _find(name)
    letters = dict(zip("abcdefgh", case.options, strict=False))
    if answer is None:
        asked = [f"{letter}) {option.text}" for letter, option in letters.items()]
        none_yet = 'Your diagnosis: none yet. Give a letter, such as answer="a".'
        return Plain("\n".join([case.question, *asked, none_yet]))
    chosen = letters.get(str(answer).strip().lower())
    if chosen is None:
        quoted = ", ".join(f'"{letter}"' for letter in letters)
        return Plain(f"{answer!r} is none of the answers: give one of {quoted}, with its quotes.")
    return Plain(f"{chosen.text}\n{'Yes' if chosen.right else 'No'}. {chosen.reply}")
