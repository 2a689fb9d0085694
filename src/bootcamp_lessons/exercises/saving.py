"""An exercise whose answer is one function, tested by killing the process that calls it."""

import ast
import json
from dataclasses import dataclass
from pathlib import Path

from bootcamp.classroom.tasks import ScriptTask, Wrong
from bootcamp.launcher import launch
from bootcamp.paths import SRC


@dataclass(frozen=True)
class SaveTask(ScriptTask):
    """A task whose answer is `save(state, path)`, which `program` tests."""

    program: Path = SRC / "snippets" / "save_for_ever.py"
    begins_with: str = "save_in_place"
    kills: int = 20

    def starting_point(self) -> str:
        """The text that the reader starts from."""
        return self._script(self._function(self.begins_with).replace(self.begins_with, "save"))

    def solved(self) -> Path:
        """A script that solves it, made from the course's own function."""
        return self.derived_solution(self._script(self._function(self.solution)))

    def _function(self, name: str) -> str:
        source = self.program.read_text()
        found = [node for node in ast.parse(source).body if getattr(node, "name", "") == name]
        return ast.get_source_segment(source, found[0])

    def _script(self, function: str) -> str:
        head = f'"""{self.task}"""\n\nimport os\n\nimport torch\n\n\n'
        return f"{head}{function}\n"

    def tried(self, path: Path) -> str:
        """Let a process save with the reader's function, and kill it, again and again."""
        flags = {"quiet": True, "kills": self.kills, "file": path}
        run = launch.launch(self.program, 1, **flags)
        printed = [line for line in run.output(0).splitlines() if line.startswith('{"found"')]
        if not printed:
            raise Wrong("a function that returns", "the script ended by itself")
        report = json.loads(printed[-1])
        if wrong := _wrong_with_save(report["found"], report["events"], report["path"]):
            raise Wrong("a good file whenever save is killed", wrong)
        return (
            f"{self.kills} kills at random moments left {self.kills} whole files. "
            "What save wrote was synced before it took its place."
        )


def _wrong_with_save(found: list[str], events: list[list[str]], path: str) -> str:
    """Say what is wrong with a save, from what kills left and its events; empty if nothing."""
    wrote = [event for event in events if event[0] in ("write", "rename")]
    placed = [event for event in wrote if event[0] == "rename" and event[2] == path]
    if "save ended" in found:
        return "save raised an error when it was called again: see the script's own output."
    if ["remove", path] in events:
        return (
            "it removes the old file before the new one has its place: a kill in between leaves "
            "nothing. os.replace needs no free place."
        )
    if not placed or "torn" in found or "missing" in found:
        left = ", ".join(f"{found.count(what)} {what}" for what in ("whole", "torn", "missing"))
        straight = "" if placed else " It writes straight to the checkpoint's place."
        return f"{len(found)} kills left files that were: {left}.{straight}"
    if Path(placed[-1][1]).parent != Path(path).parent:
        return (
            "the new file is written in another folder. That may be another file system, and from "
            "one to another a file can't be renamed: write it beside its place."
        )
    if ["sync"] not in events[: events.index(placed[-1])]:
        return (
            "all files are whole, but nothing was synced before the rename: a power cut may leave "
            "the new name with half of its content. flush() the file, then os.fsync its fileno()."
        )
    return ""
