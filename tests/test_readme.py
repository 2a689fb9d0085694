"""What README.md names is there: files, links, make targets, flags, functions, lessons."""

import importlib
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "logs/README.md", "slides/README.md")
SUFFIXES = (".py", ".md", ".yml", ".toml", ".txt", ".ipynb", ".html", ".css", ".js")
# there only after a command, and ignored by git
MADE_IN_LOGS = ("logs/<run>", "logs/course/", "logs/machine/", "logs/variants/")
MADE = ("notebooks/work/", "slides/build/", ".venv/", *MADE_IN_LOGS)
IN_LOGS = ("machine.json", "bench.json", "ranks/<k>", "steps.jsonl", "summary.json", "config.json")


def text(page: str) -> str:
    return (ROOT / page).read_text()


def quoted(page: str) -> list[str]:
    """Everything in a page that stands between backticks or in a block of code, line by line."""
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
    """Whether a path or pattern is there, seen from the project's folder or from the page's own."""
    return any(any(folder.glob(path)) for folder in (ROOT, (ROOT / page).parent))


def targets() -> set[str]:
    """The targets of the Makefile that are meant for people."""
    return set(re.findall(r"^([a-z-]+):.*##", text("Makefile"), re.MULTILINE))


def lessons() -> dict[str, str]:
    """{"00 Start here": "notebooks/00_start_here.ipynb"} of the map; "" where it is not here."""
    rows = re.findall(
        r"^\| (?:\[)?(\d\d[a-z]? [^|\]]+?)(?:\]\(([^)]+)\))? \|", text("README.md"), re.MULTILINE
    )
    return dict(rows)


@pytest.mark.parametrize("page", PAGES)
def test_every_path_exists_or_is_made(page):
    ignored = [line.strip("/") for line in text(".gitignore").splitlines()]
    for made in MADE:
        kept_out = any(fnmatch(made.rstrip("/"), pattern) for pattern in ignored)
        assert kept_out, f"{made} would be committed"
    missing = [path for path in paths(page) if not path.startswith(MADE) and not exists(page, path)]
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_leads_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)\)", text(page))
    missing = [
        link for link in links if "://" not in link and not ((ROOT / page).parent / link).exists()
    ]
    assert missing == []


def test_the_readme_names_what_it_should():
    found = paths("README.md")
    assert len(found) > 15, "the pattern that finds paths has gone blind"
    assert not exists("README.md", "src/_train_gone.py")
    assert {"environment.yml", ".ci/run", "constraints.txt", "src/_train_ddp.py"} <= found


def test_make_targets_agree_both_ways():
    commands = {line for page in PAGES for line in quoted(page) if line.startswith("make ")}
    named = {re.match(r"make ([a-z-]+)", command)[1] for command in commands}
    assert named <= targets(), f"no such target: {named - targets()}"
    assert targets() <= named, f"README.md does not explain: {targets() - named}"


def test_every_flag_exists():
    parser = text("src/bootcamp/train/config.py")
    for line in quoted("README.md"):
        if "src/_train_" not in line or not line.startswith(("python", "torchrun")):
            continue
        script, *flags = line[line.index("src/") :].split()
        assert (ROOT / script).exists()
        for flag in flags:
            assert not flag.startswith("--") or f'"{flag}"' in parser, flag


@pytest.mark.parametrize("page", ["README.md", "logs/README.md"])
def test_every_function_exists(page):
    calls = {match for line in quoted(page) for match in re.findall(r"([\w.]+)\(", line)}
    for call in calls:
        module, _, name = call.rpartition(".")
        owner = importlib.import_module(f"bootcamp.{module or call}")
        assert hasattr(owner, name), call


def test_the_map_is_the_notebooks_that_are_here():
    here = {path for path in lessons().values() if path}
    assert here == {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")}
    numbers = [name.split()[0] for name in lessons()]
    assert len(numbers) == len(set(numbers))


def test_a_lesson_has_minutes_or_says_that_it_is_not_here():
    for line in text("README.md").splitlines():
        if match := re.match(r"\| \[?(\d\d[a-z]?) ", line):
            name, _, minutes, needs = (cell.strip() for cell in line.strip("|").split("|"))
            if name.startswith("["):
                assert int(minutes) > 0, match[1]
                assert needs, match[1]
            else:
                assert (minutes, needs) == ("", "not here yet"), match[1]


def test_record_keys_are_those_that_the_record_writes():
    source = "".join(text(f"src/bootcamp/{name}.py") for name in ("record", "summary", "launch"))
    table = [line.split("|")[1] for line in text("logs/README.md").splitlines() if "|" in line]
    keys = [key for cell in table for key in re.findall(r"`(\w+)`", cell)]
    assert len(keys) > 15
    assert [key for key in keys if f'"{key}"' not in source and f"{key}=" not in source] == []


def test_nothing_of_this_machine_is_written_down():
    for pattern in (*PAGES, "environment.yml", "slides/*.*", "slides/figures/*"):
        for path in ROOT.glob(pattern):
            assert str(ROOT) not in path.read_text(), path.name
