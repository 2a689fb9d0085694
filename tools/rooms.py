"""python tools/rooms.py

The rooms of src/bootcamp, and src/bootcamp_lessons as the last: how long each is, which rooms it
may import, and which it imports. Below the table is what breaks a rule: an import against the
order, a circle, a library that a room must do without, something too long. Exit code 1 if there is
any. Standard library only.
"""

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

SRC = Path(__file__).resolve().parents[1] / "src"
PACKAGE = SRC / "bootcamp"
LESSONS = "bootcamp_lessons"  # the package beside it: content, which imports the other
TOP = "top"  # the modules beside the rooms: they know no room, and every room may import them
FRONT_DOOR = "front door"  # __init__.py loads rooms by name when a reader asks


@dataclass(frozen=True)
class Room:
    """What a room may import: other rooms, and libraries beside the standard one.

    libraries: None is any.
    """

    imports: tuple[str, ...] = ()
    libraries: tuple[str, ...] | None = ()


# In order, the lowest first: a room imports earlier rooms only.
ROOMS = {
    TOP: Room(libraries=("filelock",)),
    "scripts": Room(),
    "costs": Room(libraries=("numpy",)),
    "plan": Room(("costs",)),
    "records": Room(("costs",)),
    "train": Room(("costs", "records"), ("torch", "numpy", "filelock", "psutil")),
    "launcher": Room(("scripts", "records"), ("filelock", "psutil")),
    "hosts": Room(("records", "launcher")),
    "experiments": Room(("scripts", "costs", "records", "launcher", "hosts"), ("numpy",)),
    "serving": Room(("costs", "records", "train", "launcher"), ("aiohttp", "numpy", "psutil")),
    "drawing": Room(("scripts", "costs", "records"), None),
    "widgets": Room(("scripts", "costs", "records", "launcher", "drawing"), None),
}
for _room in ("classroom", LESSONS):  # these two may import every lower room
    ROOMS[_room] = Room(tuple(name for name in ROOMS if name != TOP), None)
# module -> libraries that its functions may load beyond its room's, only when they are called
LAZILY = {
    "launcher.forkserver": ("torch",),  # in a process that has become a rank or torchrun
    "launcher.progress": ("IPython", "ipywidgets"),
    "train.live_rank": ("IPython", "traitlets"),
    "train.sharded_tensors": ("deepspeed",),
    "serving.artifacts": ("torch", "onnxruntime", "safetensors"),  # the one whose file it is
    "serving.consolidate": ("torch", "safetensors"),
}
IMPORTERS = ("import_module", "__import__", "run_module")  # functions that import what they name
LINES_OF_A_FUNCTION = 60
PAGE = SRC / "README.md"  # its table has the most lines of each room
ALL = "all of bootcamp"


class Module:
    """One file. name: dotted, from the package on, such as "records.runs"; a lesson's in full."""

    def __init__(self, path: Path, package: Path):
        beside = not path.is_relative_to(package)
        parts = path.relative_to(package.parent if beside else package).with_suffix("").parts
        self.path = path
        self.is_init = parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.is_init else parts)
        self.room = parts[0] if len(parts) > 1 else FRONT_DOOR if self.is_init else TOP
        self.text = path.read_text()
        self.tree = ast.parse(self.text, str(path))

    def imported(self, tree: ast.AST | None = None) -> set[str]:
        """Every dotted name that an import names, in functions too, and import_module("...")."""
        names = set()
        for node in ast.walk(tree or self.tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                source = self._absolute(node)
                names |= {f"{source}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(IMPORTERS):
                names |= {a.value for a in node.args[:1] if isinstance(a, ast.Constant)}
        return names

    @property
    def imported_at_once(self) -> set[str]:
        """As `imported`, without what functions import when they are called."""
        tree = ast.parse(self.text)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                node.body = []
        return self.imported(tree)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module
        above = [] if self.room == LESSONS else ["bootcamp"]
        own = [*above, *self.name.split("."), *(["__init__"] if self.is_init else [])]
        return ".".join([*own[: -node.level], *([node.module] if node.module else [])])


class House:
    """The modules of a package folder and the arrows between them."""

    def __init__(self, package: Path = PACKAGE):
        self.package = package
        self.files = [*_files(package), *_files(package.parent / LESSONS)]
        modules = [Module(path, package) for path in self.files]
        self.modules = {module.name: module for module in modules}
        self.front_door = _front_door(self.modules[""].tree) if "" in self.modules else {}

    def _own(self, name: str) -> str | None:
        """The module of this package that a dotted name loads; None for another's."""
        parts = name.split(".")
        if parts[0] not in ("bootcamp", LESSONS):
            return None
        if parts[0] == "bootcamp":
            del parts[0]
        if parts and parts[0] in self.front_door:
            return self.front_door[parts[0]]
        while parts and ".".join(parts) not in self.modules:
            parts.pop()
        return ".".join(parts)

    def imports(self, module: Module) -> set[str]:
        """The package's modules that a module imports, the front door and itself left out."""
        found = {self._own(name) for name in module.imported()}
        return found - {None, "", module.name}

    def libraries(self, module: Module) -> set[str]:
        """Libraries that a module imports although its room does without them."""
        lazily = set(LAZILY.get(module.name, ()))
        return _libraries(module.imported()) - lazily | _libraries(module.imported_at_once)

    def arrows(self) -> dict[str, dict[str, str]]:
        """room -> the other rooms that it imports, each with one import that does so."""
        found = {room: {} for room in {module.room for module in self.modules.values()}}
        for module in self.modules.values():
            for target in sorted(self.imports(module)):
                room = self.modules[target].room
                if room != module.room:
                    found[module.room].setdefault(room, f"{module.name} imports {target}")
        return found

    def lines(self, room: str | None = None) -> int:
        """Count the lines of Python of a room, or of the package bootcamp, comments among them."""
        rooms = {path: self._room_of(path) for path in self.files}
        chosen = {room} if room else {*rooms.values()} - {LESSONS}
        return sum(len(path.read_text().splitlines()) for path in rooms if rooms[path] in chosen)

    def _room_of(self, path: Path) -> str:
        if not path.is_relative_to(self.package):
            return LESSONS
        parts = path.relative_to(self.package).parts
        return parts[0] if len(parts) > 1 else FRONT_DOOR if parts[0] == "__init__.py" else TOP


def _files(package: Path) -> list[Path]:
    """List the Python files of a package."""
    return sorted(package.rglob("*.py"))


def _libraries(imported: set[str]) -> set[str]:
    """What is neither the package's own nor in the standard library."""
    top = {name.partition(".")[0] for name in imported}
    return top - sys.stdlib_module_names - {"bootcamp", LESSONS}


def _front_door(tree: ast.Module) -> dict[str, str]:
    """Names that __init__.py offers, each with its module."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FRONT_DOOR":
            offered = ast.literal_eval(node.value)
            return {name: place.partition(":")[0] for name, place in offered.items()}
    return {}


def problems(house: House, rooms: dict[str, Room] = ROOMS) -> list[str]:
    """What breaks a rule, one sentence each."""
    return [
        *_wrong_arrows(house, rooms),
        *_circles(house),
        *_wrong_libraries(house, rooms),
        *_too_long(house),
    ]


def _wrong_arrows(house: House, rooms: dict[str, Room]) -> list[str]:
    found = []
    for room, targets in sorted(house.arrows().items()):
        if room not in (*rooms, FRONT_DOOR):
            found.append(f"{room} is no room: give it a place in ROOMS of tools/rooms.py")
            continue
        may = {TOP, *rooms[room].imports} if room in rooms else set()
        may -= {room}
        if room == TOP:
            may = set()
        wrong = sorted(set(targets) - may)
        found += [f"{room} may not import {other}: {targets[other]}" for other in wrong]
    return found


def _circles(house: House) -> list[str]:
    rooms = {room: set(targets) for room, targets in house.arrows().items()}
    modules = {name: house.imports(module) for name, module in house.modules.items()}
    return [
        f"a circle of {what}: {', '.join(circle)}"
        for what, graph in (("rooms", rooms), ("modules", modules))
        for circle in circles(graph)
    ]


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that can all be reached from one another, each sorted."""
    reached = {node: set(targets) for node, targets in graph.items()}
    for middle in graph:
        for node in graph:
            if middle in reached[node]:
                reached[node] |= reached[middle]
    groups = {
        tuple(sorted(other for other in reached[node] if node in reached[other]))
        for node in graph
        if node in reached[node]
    }
    return [list(group) for group in sorted(groups)]


def _wrong_libraries(house: House, rooms: dict[str, Room]) -> list[str]:
    found = []
    for module in house.modules.values():
        allowed = rooms.get(module.room, Room()).libraries
        if allowed is not None:
            wrong = sorted(house.libraries(module) - set(allowed))
            found += [f"{module.name} may not import {library}" for library in wrong]
    return found


def _too_long(house: House) -> list[str]:
    found = []
    for module in house.modules.values():
        name = module.name.replace(".", "/") + ("/__init__.py" if module.is_init else ".py")
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if (lines := node.end_lineno - node.lineno + 1) > LINES_OF_A_FUNCTION:
                most = LINES_OF_A_FUNCTION
                found.append(f"{name}: {node.name} has {lines} lines: at most {most}")
    return found


def limits(page: str) -> dict[str, int]:
    """Read the table of the most lines: {room, LESSONS or ALL: lines}."""
    table = page.partition("| Part | Lines of Python, at most |")[2].partition("\n\n")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()[2:]]
    return {name.strip("`/"): int(lines.replace(",", "")) for name, lines in rows}


def over_limits(house: House, most: dict[str, int]) -> list[str]:
    """List the rooms that are longer than they may be, and limits that add up to too much."""
    rooms = [room for room in (*ROOMS, FRONT_DOOR) if room != LESSONS]
    found = [
        f"{room} has {house.lines(room):,} lines: at most {most.get(room, 0):,}"
        for room in (*rooms, LESSONS)
        if house.lines(room) > most.get(room, 0)
    ]
    if (total := sum(most.get(room, 0) for room in rooms)) > most[ALL]:
        found.append(
            f"the rooms' limits add up to {total:,}, and all may have {most[ALL]:,}: where one "
            "rises, another has to fall"
        )
    return found


def table(house: House, rooms: dict[str, Room] = ROOMS) -> str:
    """A line for each room, the lowest first: lines, what it may import, what it imports."""
    arrows, order = house.arrows(), list(rooms)
    most = limits(PAGE.read_text())
    rows = [("room", "lines", "at most", "may import", "imports")]
    for room in [*order, FRONT_DOOR]:
        may = ", ".join(rooms[room].imports) if room in rooms else "nothing until asked"
        imports = sorted(set(arrows.get(room, ())) - {TOP}, key=order.index)
        lines = (f"{house.lines(room):,}", f"{most.get(room, 0):,}")
        rows.append((room, *lines, may or "-", ", ".join(imports) or "-"))
    rows.append((ALL, f"{house.lines():,}", f"{most[ALL]:,}", "all but the lessons", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d:<{widths[3]}}  {e}".rstrip()
        for a, b, c, d, e in rows
    )


def main() -> int:
    house = House()
    print(table(house))
    found = problems(house) + over_limits(house, limits(PAGE.read_text()))
    print("\n" + "\n".join(found) if found else "\nNo circle, no import against the order.")
    return 1 if found else 0


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(__doc__)
    sys.exit(main())
