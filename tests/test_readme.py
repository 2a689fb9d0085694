"""What README.md and the pages behind it name is there: files, links, make targets, flags,
functions, lessons.
"""

import ast
import re
import sys
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
MAP, CODE = "notebooks/README.md", "src/README.md"
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
SUFFIXES = (".py", ".md", ".yml", ".toml", ".txt", ".ipynb", ".html", ".css", ".js")
# there only after a command
MADE = (
    *("notebooks/work/", "slides/build/", ".venv/", "logs/<run>", "logs/course/", "logs/site/"),
    *("logs/variants/", "logs/gpu_record/", "logs/tests.jsonl"),
)
IN_A_RUN = (
    *("machine.json", "bench.json", "ranks/<", "steps.jsonl", "summary.json", "config.json"),
    *("hosts.json", "flight_recorder/"),
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
    return {
        word
        for word in words
        if (word.endswith(SUFFIXES) or re.match(r"[\w.]+/[\w<*.]*", word))
        and not word.startswith((*MADE, *IN_A_RUN))
        and "://" not in word
    }


def subpackages() -> dict[str, list[str]]:
    """{subpackage: the files that the table of them names}."""
    table = text(CODE).partition("| Subpackage |")[2].partition("\n\n")[0]
    rows = [re.findall(r"`([^`]+)`", row) for row in table.splitlines()[2:]]
    return {row[0].strip("/"): [x for x in row[1:] if x.endswith((".py", "/"))] for row in rows}


def anchors(path: Path) -> set[str]:
    """The names by which the headings of a Markdown file are reached."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", words.lower()).replace(" ", "-") for words in headings}


def leads_somewhere(page: str, link: str, heading: str) -> bool:
    target = (ROOT / page).parent / link if link else ROOT / page
    return "://" in link or (target.exists() and (not heading or heading in anchors(target)))


def test_paths_exist():
    """Seen from the project's folder, from src, or from the page's own."""
    rows = {name for row, files in subpackages().items() for name in (f"{row}/", *files)}
    named = {(page, path) for page in PAGES for path in paths(page)}
    named -= {(CODE, name) for name in rows}
    assert len(named) > 100, "the pattern that finds paths has gone blind"
    missing = [
        (page, path)
        for page, path in named
        if not any(any(at.glob(path)) for at in (ROOT, ROOT / "src", (ROOT / page).parent))
    ]
    assert missing == []


def test_subpackages_are_in_the_table_with_files_that_they_have():
    package = ROOT / "src" / "bootcamp"
    assert set(subpackages()) == {p.parent.name for p in package.glob("*/__init__.py")} | {"."}
    for name, files in subpackages().items():
        assert files, name
        assert [file for file in files if not (package / name / file).exists()] == [], name


def test_links_lead_somewhere_and_every_page_is_reached():
    links = [(page, *link) for page in PAGES for link in LINK.findall(text(page))]
    assert [link for link in links if not leads_somewhere(*link)] == []
    assert set(BEHIND) <= {link for page, link, _ in links if page == "README.md"}


def test_readme_counts_lessons_and_hours_and_names_its_gpus():
    taught, said = lessons.lessons().values(), " ".join(text("README.md").split())
    hours = sum(lesson.minutes for lesson in taught) / 60
    assert f"{len(taught)} hands-on lessons" in said
    assert f"\n{len(taught)} lessons and an appendix." in text("notebooks/README.md")
    assert f"{hours:.0f} hours in all" in said
    parts = replay.list_gpu_parts()
    assert ("Nothing here has been run on a GPU so far." in said) == (not parts)
    for part in parts:
        assert part["about"]["gpu"]["name"] in said, part["path"]
        assert f"logs/reference/{part['path'].parent.name}/" in said


def test_make_targets_agree_both_ways():
    targets = set(re.findall(r"^([a-z-]+):.*##", text("Makefile"), re.MULTILINE))
    commands = {line for page in PAGES for line in quoted(page) if line.startswith("make ")}
    assert {re.match(r"make ([a-z-]+)", command)[1] for command in commands} <= targets
    assert set(re.findall(r"^\| `make ([a-z-]+)", text("tools/README.md"), re.M)) == targets


def test_flags_exist():
    parser = text("src/bootcamp/train/config.py")
    lines = [line for page in PAGES for line in quoted(page) if "src/_train_" in line]
    by_hand = [line for line in lines if line.startswith(("python", "torchrun"))]
    assert by_hand
    flags = {flag for line in by_hand for flag in re.findall(r"--\S+", line.partition("src/")[2])}
    assert [flag for flag in flags if f'"{flag}"' not in parser] == []


def test_functions_exist():
    of_decks = "slides/README.md"  # which are not the package's
    lines = [line for page in PAGES if page != of_decks for line in quoted(page)]
    for call in {match for line in lines for match in re.findall(r"([\w.]+)\(", line)}:
        owner = bootcamp
        for name in call.split("."):
            owner = getattr(owner, name, None)
        assert callable(owner), call


def test_record_keys_are_those_that_are_written():
    folders = [ROOT / "src" / "bootcamp" / name for name in ("records", "train", "launcher")]
    source = "".join(path.read_text() for folder in folders for path in folder.glob("*.py"))
    table = [line.split("|")[1] for line in text("logs/README.md").splitlines() if "|" in line]
    keys = [key for cell in table for key in re.findall(r"`(\w+)`", cell)]
    assert len(keys) > 15
    assert [key for key in keys if f'"{key}"' not in source and f"{key}=" not in source] == []


@pytest.mark.parametrize(
    "damage", [("75 |", "70 |"), ("[04 DDP]", "[04 PPD]"), ("[10 P", "[12 P"), (" 2.7 |", " 3.8 |")]
)
def test_map_that_is_out_of_date_is_found_and_written_anew(damage, tmp_path, monkeypatch, capsys):
    page, right = tmp_path / "README.md", text(MAP)
    assert lessons.with_tables(right) == right
    page.write_text(right.replace(*damage))
    monkeypatch.setattr(lessons, "PAGE", page)
    monkeypatch.setattr(sys, "argv", ["lessons.py", "--check"])
    assert lessons.main() == 1
    assert "Run `make readme`" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["lessons.py"])
    assert lessons.main() == 0
    assert page.read_text() == right
    page.write_text(right.replace(lessons.END.format("ways"), ""))
    assert lessons.main() == 1
    assert "a mark is missing: <!-- ways" in capsys.readouterr().out


def test_lessons_need_others_directly_or_through_others():
    assert lessons.path_to("00") == []
    assert lessons.path_to("08") == ["00", "04", "06", "06c", "07"]
    assert [each.number for each in lessons.way(["06", "04c"])] == ["00", "04", "04c", "06"]
    with pytest.raises(lessons.LessonError, match="There is no lesson 99: give LESSON= one of 00,"):
        lessons.way(["99"])


def test_data_is_true_of_the_lessons():
    """Notebooks, minutes, exercises, scripts and tests are those that are there."""
    known = lessons.notebooks()
    here = sorted((ROOT / "notebooks" / "sources").glob("*.py"))
    assert [lesson.source for lesson in known.values()] == here
    assert list(known) == sorted(known)
    for number, lesson in known.items():
        source = lesson.source.read_text()
        assert source.startswith(f"# %% [markdown]\n# # {number} "), number
        assert f"**{lesson.minutes} minutes**" in source, number
        assert set(lesson.exercises) == exercises_in(source), number
        assert all((ROOT / "tests" / name).exists() for name in lesson.tests), number
        assert lesson.tests, number
        assert lesson.needs, number
        for other in lessons_before(source):
            assert other in lessons.path_to(number), f"{number} says that it is after {other}"
    scripts = [name for lesson in known.values() for name in lesson.scripts]
    assert sorted(scripts) == sorted(strategies.SCRIPTS), "each script belongs to one lesson"


def exercises_in(source: str) -> set[str]:
    """The names that a notebook's cells give to exercise.start and exercise.check."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    wanted = ("exercise.start", "exercise.check")
    return {call.args[0].value for call in calls if ast.unparse(call.func) in wanted}


def lessons_before(source: str) -> list[str]:
    """The lessons that a lesson's head says it comes after: "after lessons 04 and 06"."""
    head = " ".join(line.strip("# ") for line in source.split("# %%")[1].splitlines())
    said = re.search(r"\bafter lessons? (\d\d[a-z]?(?:(?:, | and )\d\d[a-z]?)*)", head)
    return re.findall(r"\d\d[a-z]?", said[1]) if said else []
