"""Lesson 12: broken scripts that people copy, to be run, diagnosed and fixed.

The scripts are in src/snippets/clinic/, with cases.toml (questions and fixes) and _observe.py
(runs and observes them). clinic_judges.py judges what was observed.
"""

import ast
import json
import textwrap
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path

from bootcamp.classroom import tasks
from bootcamp.classroom.tasks import RUNS_TO_ITS_END, Plain, ScriptTask, Wrong
from bootcamp.experiments import replay
from bootcamp.launcher import launch
from bootcamp.paths import SRC, shown
from bootcamp.records.runs import Run
from bootcamp.table import Table
from bootcamp_lessons.labs import clinic_judges

FOLDER = SRC / "snippets" / "clinic"
OBSERVER = FOLDER / "_observe.py"
SEED_OFFSET = 1  # added to a script's own seeds
OBSERVED_PREFIX = '{"observed"'  # how the line of _observe.py begins


@dataclass(frozen=True)
class Case(ScriptTask):
    """A broken script; cases.toml explains the fields."""

    file: str = ""
    ranks: int = 2
    judge: Callable[[clinic_judges.Observed], str] = None
    question: str = ""
    options: list[dict] = field(default_factory=list)
    fix: dict[str, str] = field(default_factory=dict)
    afterwards: str = ""
    optional: bool = False
    keep: tuple[str, ...] = ()
    examine_ranks: tuple[int, ...] = ()
    start_processes: int = 0
    framework: str | None = None
    hang_seconds: float = 3
    flags: dict = field(default_factory=dict)

    @property
    def broken(self) -> Path:
        return FOLDER / f"{self.file}.py"

    @property
    def broken_processes(self) -> int:
        """The number of processes that run the broken script."""
        return self.start_processes or self.ranks

    def starting_point(self) -> str:
        return self.broken.read_text()

    def solution_path(self) -> Path:
        """Write the fixed script and return its path."""
        return self.write_solution(replace_once(self.starting_point(), self.fix))

    def check_script(self, path: Path) -> str:
        return f"{self.judge(Trial(self, path))}\n{self.afterwards}"

    def run(self, path: Path, ranks: int, **flags) -> Run:
        """Run a script under observation. Raises LaunchError without its framework."""
        flags = {"file": path, "keep": ",".join(self.keep), **self.flags, **flags}
        how = {"device": "cpu", "quiet": True, "raises": False}
        options = launch.Options(hang_seconds=self.hang_seconds, framework=self.framework)
        return launch.launch(OBSERVER, ranks, options=options, **how, **flags)

    def observe(self, path: Path, ranks: int, run: Run | None = None, **flags) -> list[dict]:
        """Run a script, or read its run: what was seen of each rank. Raises Wrong if it failed."""
        run = run or self.run(path, ranks, **flags)
        if run.status != "ok":
            error, where = run.summary["error"], f" on {ranks} ranks" if ranks > 1 else ""
            meaning = self.meaning(tasks.describe_failure(error, path))
            raise tasks.make_wrong(error, path, meaning, f"{RUNS_TO_ITS_END}{where}")
        return [_read_observation(run, rank) for rank in range(ranks)]

    def meaning(self, error: str) -> str:
        """Return what an error means in this case; empty where the case does not know it."""
        return next((means for words, means in self.errors.items() if words in error), "")


def replace_once(text: str, changes: dict[str, str]) -> str:
    """Replace pieces of a text. Raises ValueError for one that does not occur just once."""
    for old, new in changes.items():
        if text.count(old) != 1:
            raise ValueError(f"{old!r} is there {text.count(old)} times, not once")
        text = text.replace(old, new)
    return text


class Trial(clinic_judges.Observed):
    """A script that is being judged; it runs when the judge asks for observations."""

    def __init__(self, case: Case, path: Path):
        self.case, self.path = case, path

    @cached_property
    def ranks(self) -> list[dict]:
        return self.case.observe(self.path, self.case.ranks)

    @cached_property
    def reseeded(self) -> dict:
        return self.case.observe(self.path, 1, seed_offset=SEED_OFFSET)[0]

    @property
    def fixed(self) -> list[dict]:
        return _observe_solution(self.case.file, self.case.ranks)

    @property
    def alone(self) -> dict:
        return _observe_solution(self.case.file, 1)[0]


@cache
def _observe_solution(file: str, ranks: int, **flags) -> list[dict]:
    """Return each rank's observation of a fixed script, which runs once per notebook kernel."""
    return CASES[file].observe(CASES[file].solution_path(), ranks, **flags)


def _read_observation(run: Run, rank: int) -> dict:
    lines = [line for line in run.output(rank).splitlines() if line.startswith(OBSERVED_PREFIX)]
    if not lines:
        raise Wrong(RUNS_TO_ITS_END, f"rank {rank} left before its end: nothing was seen of it")
    return json.loads(lines[-1])["observed"]


def _read_case(file: str, content: dict) -> Case:
    """Make a Case from cases.toml; its task is the script's docstring after its first paragraph."""
    said = ast.get_docstring(ast.parse((FOLDER / f"{file}.py").read_text()))
    judge, otherwise = getattr(clinic_judges, content["judge"]), content.pop("otherwise", None)
    content |= {
        "judge": partial(judge, meaning=otherwise) if otherwise else judge,
        "fix": {piece["old"]: piece["new"] for piece in content["fix"]},
    }
    return Case(f"clinic_{file}", task=said.partition("\n\n")[2], file=file, **content)


CASES = {
    file: _read_case(file, content)
    for file, content in tomllib.loads((FOLDER / "cases.toml").read_text()).items()
}
TASKS = list(CASES.values())
CORE = [case for case in TASKS if not case.optional]


def _find(name: str) -> Case:
    return CASES[name.removeprefix("clinic_")]


class Examination(Plain):
    """A script's output and error; a notebook shows the script above them."""

    script: str = ""

    def _repr_markdown_(self) -> str:
        return f"```python\n{self.script}\n```\n```text\n{self}\n```"


@cache
def _run_broken(case_name: str, ranks: int) -> Run:
    """Run a broken script, once per notebook kernel."""
    case = _find(case_name)
    return case.run(case.broken, ranks)


def examine(name: str) -> Examination:
    """Run the reader's copy of a script, made here if missing, and return its output."""
    case, lines = _find(name), []
    if not case.path.exists():
        case.path.parent.mkdir(parents=True, exist_ok=True)
        case.path.write_text(case.starting_point())
    untouched = case.path.read_text() == case.starting_point()
    for ranks in case.examine_ranks or (case.broken_processes if untouched else case.ranks,):
        what = "process" if case.start_processes else "rank"
        lines += [f"{shown(case.path)} on {ranks} {what}{'s' * (ranks > 1)}:"]
        try:
            run = _run_broken(name, ranks) if untouched else case.run(case.path, ranks)
        except launch.RunRefused as refused:
            output = [str(refused)]
        else:
            printed = replay.read_printed_lines(run)
            output = [line for line in printed if not line.startswith(OBSERVED_PREFIX)]
            script = case.broken if untouched else case.path
            if run.status != "ok":
                output += tasks.describe_failure(run.summary["error"], script).splitlines()
        lines += [textwrap.indent(textwrap.fill(line, 94), "    ") for line in output if line]
    seen = Examination("\n".join(lines))
    seen.script = case.path.read_text()
    return seen


def observe(name: str) -> list[dict]:
    """Return what was observed of each rank of a broken script that ends by itself."""
    case = _find(name)
    return case.observe(case.broken, case.ranks, _run_broken(name, case.ranks))


def observe_three(name: str) -> list[list[dict]]:
    """Observe a broken script, the fixed one, and the fixed one with another seed."""
    fixed = partial(_observe_solution, name.removeprefix("clinic_"), _find(name).ranks)
    return [observe(name), fixed(), fixed(seed_offset=SEED_OFFSET)]


def list_cases(optional: bool = False) -> Table:
    """Return a table of broken scripts, each with what its owner says."""
    columns = {"program": "file"}
    columns["its owner says"] = lambda case: " ".join(case.task.split('"')[1].split())
    return Table.of([case for case in TASKS if case.optional == optional], columns)


def run_all_cases() -> Table:
    """Run the broken scripts of the core, three at a time, and return a table of how each ended."""
    with ThreadPoolExecutor(3) as pool:
        return Table(list(pool.map(_run_case, CORE)), "As they came in")


def _run_case(case: Case) -> dict:
    row = {"script": case.file, "ranks": case.broken_processes}
    try:
        error = _run_broken(case.name, case.broken_processes).summary.get("error")
    except launch.RunRefused as refused:
        return row | {"ended": "not run here", "it said": str(refused)}
    if not error:
        return row | {"ended": "by itself", "it said": ""}
    said = tasks.describe_failure(error, case.broken).splitlines()[0]
    ended = "not at all" if error["kind"] == "hang" else "with an error"
    return row | {"ended": ended, "it said": textwrap.shorten(said, 160, placeholder=" ...")}


def diagnose(name: str, answer: str | None = None) -> Plain:
    """Ask what is wrong with a script, or reply to an answer, given as a letter."""
    case = _find(name)
    letters = dict(zip("abcdefgh", case.options, strict=False))
    if answer is None:
        asked = [f"{letter}) {option['text']}" for letter, option in letters.items()]
        none_yet = 'Your diagnosis: none yet. Give a letter, such as answer="a".'
        return Plain("\n".join([case.question, *asked, none_yet]))
    chosen = letters.get(str(answer).strip().lower())
    if chosen is None:
        quoted = ", ".join(f'"{letter}"' for letter in letters)
        return Plain(f"{answer!r} is none of the answers: give one of {quoted}, with its quotes.")
    verdict = "Yes" if chosen.get("right") else "No"
    return Plain(f"{chosen['text']}\n{verdict}. {chosen['reply']}")
