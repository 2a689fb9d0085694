"""The instructor's kit agrees with the lessons' data, the notebooks and the Makefile."""

import re
import sys
import tomllib

import nbformat
import pytest

from bootcamp.paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import course  # noqa: E402
import kit  # noqa: E402
import lessons  # noqa: E402

ROW = re.compile(r"^\| (\d+):(\d\d) \| (\d*) \| (\d+) \| (.+?) \| (.*) \|$", re.MULTILINE)


def test_agendas_add_up_with_the_decks_and_fit_their_hours():
    parts = re.split(r"^## ", kit.agendas(), flags=re.MULTILINE)[1:]
    assert [part.splitlines()[0] for part in parts] == list(lessons.agendas())
    for part, agenda in zip(parts, lessons.agendas().values(), strict=True):
        now = 0
        for hours, minutes, slides, work, title, remark in ROW.findall(part):
            assert 60 * int(hours) + int(minutes) == now, (agenda.name, title)
            now += int(slides or 0) + int(work)
            lesson = lessons.lessons().get(title.split()[0])
            if lesson:
                assert title == f"{lesson.number} {lesson.title}"
                assert slides in ("", str(lesson.deck_minutes)), "a deck is shown or left out"
                in_part = int(work) < lesson.minutes
                assert in_part == ("in part" in remark), (agenda.name, title)
        assert now == agenda.minutes, agenda.name
        assert 0.75 * agenda.most_minutes <= now <= agenda.most_minutes, agenda.name


def test_an_agenda_shows_the_deck_unless_it_says_otherwise():
    for agenda in lessons.agendas().values():
        taught = [block for block in agenda.blocks if block.lesson]
        shown = [block for block in taught if block.deck_minutes]
        assert len(shown) >= len(taught) - 1, f"{agenda.name}: decks were left out to save time"


def test_a_lesson_before_what_it_needs_is_refused_unless_the_remark_covers_it():
    with pytest.raises(lessons.LessonError, match=r"A: lesson 08 comes before \{'07'\}"):
        lessons._agenda("A", "all", 240, [{"lesson": "08"}])
    with pytest.raises(lessons.LessonError, match="There is no lesson 09"):
        lessons._agenda("A", "all", 240, [{"lesson": "09"}])
    for agenda in tomllib.loads(lessons.DATA.read_text())["agenda"]:
        for block in agenda["blocks"]:
            assert all(name in block["remark"] for name in block.get("skips", ()))


def test_the_days_deck_shows_the_agenda_of_one_day():
    asked = re.findall(r'timetable\("([\d:]+)", "(.+?)"\)', (ROOT / "slides/day.md").read_text())
    assert asked == [("09:00", "One day")]


def test_every_lesson_says_where_people_get_stuck_and_what_to_say():
    parts = re.split(r"^## ", kit.guide(), flags=re.MULTILINE)[1:]
    assert len(parts) == len(lessons.lessons())
    for part in parts:
        assert "**People get stuck** " in part, part[:40]
        assert "**Say:** " in part, part[:40]
        assert re.search(r"\*\*\d+ minutes, and \d+ of slides\.\*\* After this", part), part[:40]


def test_a_lesson_that_is_missing_stops_the_build(monkeypatch, tmp_path):
    monkeypatch.setattr(kit, "KIT", tmp_path)
    (tmp_path / "lessons.md").write_text("## 00 Start here\n")
    with pytest.raises(kit.KitError, match=r"lessons.md has \['00'\]"):
        kit.guide()


def test_every_command_in_the_kit_exists():
    makefile = (ROOT / "Makefile").read_text()
    for path in kit.KIT.glob("*.md"):
        for target in re.findall(r"(?:`|^|RUN )make ([a-z-]+)", path.read_text(), re.M):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{path.name}: {target}"


def test_the_guide_is_one_page_without_an_address_elsewhere(tmp_path):
    page = kit.build(tmp_path).read_text()
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', page)
    assert "Lesson by lesson" in page
    assert "Half a day" in page


def test_expected_outputs_are_text_without_this_machines_paths():
    notebook = nbformat.v4.new_notebook()
    cell = nbformat.v4.new_code_cell("\nfirst = 1\nplot()")
    figure = '<img src="data:image/png;base64,AAAA" alt="Speed: 3 &lt; 4" style="x">'
    cell.outputs = [
        nbformat.v4.new_output("stream", text=f"wrote {ROOT}/logs/x\n\x1b[31mred\x1b[0m\n"),
        nbformat.v4.new_output("display_data", data={"text/html": figure, "text/plain": "<HTML>"}),
    ]
    many = nbformat.v4.new_code_cell("print(100)")
    many.outputs = [nbformat.v4.new_output("stream", text="line\n" * 100)]
    words = ["# 99 Title", "## Run it\n\nText.", "### First: a *plot*", "## Prove it"]
    head, run, first, prove = map(nbformat.v4.new_markdown_cell, words)
    notebook.cells = [head, many, run, many, first, cell, many, prove, many]
    lesson = course.Lesson.__new__(course.Lesson)
    lesson.notebook = notebook
    text = lesson.expected()
    assert re.findall(r"^#+ .*$", text, re.MULTILINE) == [
        "# 99 Title",
        "## The beginning, cell 1: `print(100)`",
        "## Run it, cell 1: `print(100)`",
        "## Run it > First: a *plot*, cell 1: `first = 1`",
        "## Run it > First: a *plot*, cell 2: `print(100)`",
        "## Prove it, cell 1: `print(100)`",
    ]
    assert "wrote ./logs/x\nred\n[figure: Speed: 3 < 4]" in text
    assert "... and 76 lines" in text


def test_recorded_outputs_name_no_folder_of_the_machine():
    for path in kit.KIT.glob("expected/*/*.md"):
        text = path.read_text()
        assert str(ROOT) not in text
        assert not re.findall(r"(?<![\w.])/(?:home|root|work|Users)/\S+", text), path.name
