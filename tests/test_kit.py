"""The instructor's kit agrees with the map, the notebooks and the Makefile."""

import re
import sys

import nbformat
import pytest

from bootcamp.paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import course  # noqa: E402
import kit  # noqa: E402

AGENDA = (kit.KIT / "agenda.md").read_text()
BLOCK = re.compile(r"^\| (\d+) \| (.+?) \|", re.MULTILINE)


def test_the_agendas_minutes_are_the_maps():
    known = {f"{n} {lesson['title']}": lesson["minutes"] for n, lesson in kit.lessons().items()}
    blocks = BLOCK.findall(AGENDA)
    named = [(what, int(minutes)) for minutes, what in blocks if re.match(r"\d\d[a-z]? ", what)]
    assert len(named) >= 15
    assert [(what, known.get(what)) for what, _ in named] == named


def test_one_day_is_the_plan_of_the_days_deck():
    day = re.split(r"^## ", AGENDA, flags=re.MULTILINE)[2]
    assert day.startswith("One day")
    asked = re.search(r"\{\{timetable \S+ (.+)\}\}", (ROOT / "slides" / "day.md").read_text())[1]
    words = {"pause": "Break", "lunch": "Lunch", "closing": "Closing", "welcome": "Opening"}
    blocks = iter(BLOCK.findall(day))
    for block in asked.split():
        name, _, minutes = block.partition("=")
        mine, what = next(blocks)
        assert what.startswith(words.get(name, f"{name} "))
        assert not minutes or mine == minutes
    assert next(blocks, None) is None


def test_each_day_fits_its_hours():
    days = [part for part in re.split(r"^##+ ", AGENDA, flags=re.MULTILINE) if BLOCK.search(part)]
    assert len(days) == 4
    for day in days:
        most = 240 if day.startswith("Half") else 500
        assert 0.75 * most <= sum(int(minutes) for minutes, _ in BLOCK.findall(day)) <= most, day


def test_every_lesson_says_where_people_get_stuck_and_what_to_say():
    parts = re.split(r"^## ", kit.guide(), flags=re.MULTILINE)[1:]
    assert len(parts) == len(kit.lessons())
    for part in parts:
        assert "**People get stuck** " in part, part[:40]
        assert "**Say:** " in part, part[:40]
        assert re.search(r"\*\*\d+ minutes\.\*\* After this lesson", part), part[:40]


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
    notebook.cells = [nbformat.v4.new_markdown_cell("# 99 Title"), cell, many]
    lesson = course.Lesson.__new__(course.Lesson)
    lesson.notebook = notebook
    text = lesson.expected()
    assert "# 99 Title\n\n## Cell 1: `first = 1`" in text
    assert "wrote ./logs/x\nred\n[figure: Speed: 3 < 4]" in text
    assert "... and 76 lines" in text


def test_recorded_outputs_name_no_folder_of_the_machine():
    for path in kit.KIT.glob("expected/*/*.md"):
        text = path.read_text()
        assert str(ROOT) not in text
        assert not re.findall(r"(?<![\w.])/(?:home|root|work|Users)/\S+", text), path.name
