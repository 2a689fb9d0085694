"""README.md is short, and what it and the pages behind it name is there: files, links, make
targets, flags, functions, lessons.
"""

import ast
import re
import sys
from fnmatch import fnmatch
from pathlib import Path

import lessons
import pytest

import bootcamp
from bootcamp.experiments import replay
from bootcamp.scripts import strategies

ROOT = Path(__file__).resolve().parents[1]

BEHIND = (
    "notebooks/README.md",
    "src/README.md",
    "tools/INSTALL.md",
    "tools/README.md",
    "tests/README.md",
    "logs/README.md",
    "slides/README.md",
    "slides/kit/README.md",
    "CONTRIBUTING.md",
    "AGENTS.md",
)
PAGES = ("README.md", *BEHIND)
CALLS_OF_DECKS = "slides/README.md"  # functions of a deck, not of the package
MAP, CODE = "notebooks/README.md", "src/README.md"
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
SUFFIXES = (".py", ".md", ".yml", ".toml", ".txt", ".ipynb", ".html", ".css", ".js")
# there only after a command, and ignored by git
MADE_IN_LOGS = (
    "logs/<run>",
    "logs/course/",
    "logs/site/",
    "logs/variants/",
    "logs/gpu_record/",
    "logs/tests.jsonl",
)
MADE = ("notebooks/work/", "slides/build/", ".venv/", *MADE_IN_LOGS)
IN_LOGS = (
    "machine.json",
    "bench.json",
    "ranks/<",
    "steps.jsonl",
    "summary.json",
    "config.json",
    "hosts.json",
    "flight_recorder/",
)


def text(page: str) -> str:
    return (ROOT / page).read_text()


def quoted(page: str) -> list[str]:
    """Everything in a page between backticks or in a block of code, line by line."""
    parts = text(page).split("```")
    inline = [match for part in parts[::2] for match in re.findall(r"`([^`\n]+)`", part)]
    return inline + [line for part in parts[1::2] for line in part.splitlines() if line.strip()]


def paths(page: str) -> set[str]:
    """The files and folders that a page names; a pattern such as src/*.py counts as one."""
    words = {word.strip("',()\"") for line in quoted(page) for word in line.split()}
    of_files = {
        word for word in words if word.endswith(SUFFIXES) or re.match(r"[\w.]+/[\w<*.]*", word)
    }
    return {word for word in of_files if not word.startswith(IN_LOGS) and "://" not in word}


def exists(page: str, path: str) -> bool:
    """Whether a path or pattern is there, seen from the project's folder, src or the page's own."""
    folders = (ROOT, ROOT / "src", (ROOT / page).parent)
    return any(any(folder.glob(path)) for folder in folders)


def rooms() -> dict[str, list[str]]:
    """{room: the files that the table of rooms names in it}."""
    table = text(CODE).partition("| Subpackage |")[2].partition("\n\n")[0]
    rows = [re.findall(r"`([^`]+)`", row) for row in table.splitlines()[2:]]
    return {row[0].strip("/"): [x for x in row[1:] if x.endswith((".py", "/"))] for row in rows}


def targets() -> set[str]:
    """The targets of the Makefile that are meant for people."""
    return set(re.findall(r"^([a-z-]+):.*##", text("Makefile"), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES)
def test_every_path_exists_or_is_made(page):
    ignored = [line.strip("/") for line in text(".gitignore").splitlines()]
    for made in MADE:
        kept_out = any(fnmatch(made.rstrip("/"), pattern) for pattern in ignored)
        assert kept_out, f"{made} would be committed"
    in_rooms = {f"{room}/" for room in rooms()} | {
        name for files in rooms().values() for name in files
    }
    wanted = paths(page) - (in_rooms if page == CODE else set())
    missing = [path for path in wanted if not path.startswith(MADE) and not exists(page, path)]
    assert missing == []


def test_every_room_is_in_the_table_with_files_that_it_has():
    package = ROOT / "src" / "bootcamp"
    assert set(rooms()) == {path.parent.name for path in package.glob("*/__init__.py")} | {"."}
    for room, files in rooms().items():
        assert files, room
        assert [name for name in files if not (package / room / name).exists()] == [], room


def anchors(path: Path) -> set[str]:
    """The names by which the headings of a Markdown file are reached."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", words.lower()).replace(" ", "-") for words in headings}


def wrong_links(page: Path) -> list[str]:
    """The relative links of a page that lead to no file, or to no heading of one."""
    wrong = []
    for link, heading in LINK.findall(page.read_text()):
        target = page.parent / link if link else page
        if "://" in link or (target.exists() and not heading):
            continue
        if not target.exists() or heading not in anchors(target):
            wrong.append(f"{link}#{heading}" if heading else link)
    return wrong


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_leads_somewhere(page):
    assert wrong_links(ROOT / page) == []


def test_links_to_no_file_and_to_no_heading_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A heading\n[a](#a-heading) [b](gone.md) [c](#gone) [d](https://gone.net/x)")
    assert wrong_links(page) == ["gone.md", "#gone"]


def test_every_page_is_reached_from_the_readme():
    linked = {link for link, _ in LINK.findall(text("README.md"))}
    assert set(BEHIND) - linked == set()


def test_the_readme_counts_lessons_and_hours():
    taught = lessons.lessons().values()
    hours = sum(lesson.minutes for lesson in taught) / 60
    assert f"{len(taught)} hands-on lessons" in text("README.md")
    assert f"{hours:.0f} hours in all" in text("README.md")


def test_the_readme_names_what_it_should():
    found = set().union(*(paths(page) for page in PAGES))
    assert len(found) > 100, "the pattern that finds paths has gone blind"
    assert not exists("README.md", "src/_train_gone.py")
    assert {"environment.yml", ".ci/run", "constraints.txt", "src/_train_ddp.py"} <= found


def test_the_readme_says_what_has_run_on_a_gpu():
    said = " ".join((ROOT / "README.md").read_text().split())
    parts = replay.list_gpu_parts()
    assert ("Nothing here has been run on a GPU so far." in said) == (not parts)
    for part in parts:
        assert part["about"]["gpu"]["name"] in said, part["path"]
        assert f"logs/reference/{part['path'].parent.name}/" in said


def test_make_targets_agree_both_ways():
    commands = {line for page in PAGES for line in quoted(page) if line.startswith("make ")}
    named = {re.match(r"make ([a-z-]+)", command)[1] for command in commands}
    assert named <= targets(), f"no such target: {named - targets()}"
    explained = set(re.findall(r"^\| `make ([a-z-]+)", text("tools/README.md"), re.MULTILINE))
    assert explained == targets()


def test_every_flag_exists():
    parser = text("src/bootcamp/train/config.py")
    lines = [line for page in PAGES for line in quoted(page)]
    assert sum(line.startswith("torchrun") for line in lines) > 0
    for line in lines:
        if "src/_train_" not in line or not line.startswith(("python", "torchrun")):
            continue
        script, *flags = line[line.index("src/") :].split()
        assert (ROOT / script).exists()
        for flag in flags:
            assert not flag.startswith("--") or f'"{flag}"' in parser, flag


@pytest.mark.parametrize("page", sorted({*PAGES} - {CALLS_OF_DECKS}))
def test_every_function_exists(page):
    calls = {match for line in quoted(page) for match in re.findall(r"([\w.]+)\(", line)}
    for call in calls:
        owner = bootcamp
        for name in call.split("."):
            assert hasattr(owner, name), call
            owner = getattr(owner, name)
        assert callable(owner), call


def test_the_map_is_that_of_the_lessons_data():
    assert lessons.with_tables(text(MAP)) == text(MAP)
    assert lessons.course_map().count(".ipynb)") == len(lessons.notebooks())
    assert "(15_appendix.ipynb)" in lessons.course_map().splitlines()[-1], "the appendix is last"


def test_a_way_has_what_its_lessons_need_in_order():
    assert [each.number for each in lessons.way(["06", "04c"])] == ["00", "04", "04c", "06"]
    with pytest.raises(lessons.LessonError, match="There is no lesson 99"):
        lessons.way(["99"])


@pytest.mark.parametrize(
    "damage", [("75 |", "70 |"), ("[04 DDP]", "[04 PPD]"), ("[10 P", "[12 P"), (" 2.8 |", " 3.8 |")]
)
def test_a_map_that_is_out_of_date_is_found_and_written_anew(damage, tmp_path, monkeypatch, capsys):
    right = text(MAP)
    page = tmp_path / "README.md"
    page.write_text(right.replace(*damage))
    assert page.read_text() != right
    monkeypatch.setattr(lessons, "PAGE", page)
    monkeypatch.setattr(sys, "argv", ["lessons.py", "--check"])
    assert lessons.main() == 1
    assert "Run `make readme`" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["lessons.py"])
    assert lessons.main() == 0
    assert page.read_text() == right


def test_without_its_marks_the_map_is_not_guessed():
    with pytest.raises(lessons.LessonError, match="a mark is missing: <!-- ways"):
        lessons.with_tables(text(MAP).replace(lessons.END.format("ways"), ""))


def test_the_lessons_data_is_true_of_the_lessons():
    """Notebooks, minutes, exercises, scripts and tests are those that are there."""
    known = lessons.notebooks()
    here = sorted((ROOT / "notebooks" / "sources").glob("*.py"))
    assert [lesson.source for lesson in known.values()] == here
    assert list(lessons.everything()) == sorted(lessons.everything())
    for number, lesson in known.items():
        source = lesson.source.read_text()
        assert source.startswith(f"# %% [markdown]\n# # {number} "), number
        assert f"**{lesson.minutes} minutes**" in source, number
        assert set(lesson.exercises) == exercises_in(source), number
        assert all((ROOT / "tests" / name).exists() for name in lesson.tests), number
        assert lesson.tests, number
        assert lesson.needs, number
        for other in re.findall(r"\d\d[a-z]?", sentence_of_needs(source)):
            assert other in lessons.path_to(number), f"{number} says that it is after {other}"
    scripts = [name for lesson in known.values() for name in lesson.scripts]
    assert sorted(scripts) == sorted(strategies.SCRIPTS), "each script belongs to one lesson"


def exercises_in(source: str) -> set[str]:
    """The names that a notebook's cells give to exercise.start and exercise.check."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    wanted = ("exercise.start", "exercise.check")
    return {call.args[0].value for call in calls if ast.unparse(call.func) in wanted}


def sentence_of_needs(source: str) -> str:
    """What a lesson's head says of the lessons before it: "after lessons 04 and 06"."""
    head = " ".join(line.strip("# ") for line in source.split("# %%")[1].splitlines())
    said = re.search(r"\bafter lessons? (\d\d[a-z]?(?:(?:, | and )\d\d[a-z]?)*)", head)
    return said[1] if said else ""


def test_what_a_lesson_needs_is_found_through_others():
    assert lessons.path_to("00") == []
    assert lessons.path_to("04") == ["00"]
    assert lessons.path_to("06") == ["00", "04"]
    assert lessons.path_to("08") == ["00", "04", "06", "06c", "07"]
    with pytest.raises(lessons.LessonError, match="There is no lesson 99: give LESSON= one of 00,"):
        lessons.path_to("99")


def test_record_keys_are_those_that_the_record_writes():
    rooms = ("records", "train", "launcher")
    files = [path for room in rooms for path in (ROOT / "src" / "bootcamp" / room).glob("*.py")]
    source = "".join(path.read_text() for path in files)
    table = [line.split("|")[1] for line in text("logs/README.md").splitlines() if "|" in line]
    keys = [key for cell in table for key in re.findall(r"`(\w+)`", cell)]
    assert len(keys) > 15
    assert [key for key in keys if f'"{key}"' not in source and f"{key}=" not in source] == []


def test_nothing_of_this_machine_is_written_down():
    for pattern in (*PAGES, "environment.yml", "slides/*.*", "slides/figures/*"):
        for path in ROOT.glob(pattern):
            assert str(ROOT) not in path.read_text(), path.name
