"""The instructor's kit agrees with the lessons' data, the notebooks and the Makefile."""

import re
import tomllib
from pathlib import Path

import course
import kit
import lessons
import nbformat
import pytest

from bootcamp.drawing import style
from bootcamp.paths import ROOT

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
    with pytest.raises(
        lessons.LessonError, match=r"A: lesson 08 comes before \{'0[67]c?', '0[67]c?'\}"
    ):
        lessons._agenda("A", "all", 240, [{"lesson": "08"}])
    with pytest.raises(lessons.LessonError, match="There is no lesson 99"):
        lessons._agenda("A", "all", 240, [{"lesson": "99"}])
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


SOURCE = """# %% [markdown]
# # 99 A lesson
#
# ## The question
#
# Text.

# %%
# ## no heading: a comment in code

# %% [markdown]
# ## Run it
#
# ### A part of it

# %% [markdown]
# ## More of it (optional)

# %% [markdown]
# ## Exercise

# %% [markdown]
# ## When to use it
#
# ## Sources
"""
PARTS = (
    ("The question", 5),
    ("Run it", 20),
    ("More of it (optional)", 15),
    ("Exercise", 12),
    ("When to use it", 3),
)


def made_up(parts=PARTS, minutes=40):
    return lessons.Lesson("99", "A lesson", "nothing", "99_a_lesson", minutes, parts=parts)


def test_a_lessons_parts_are_its_headings_and_add_up():
    assert lessons.wrong_parts(made_up(), SOURCE) == []
    assert lessons.wrong_parts(made_up((*PARTS, ("Sources", 0))), SOURCE) == []
    assert lessons.wrong_parts(made_up(()), SOURCE) == [], "a lesson may have none yet"


@pytest.mark.parametrize(
    ("parts", "minutes", "wrong"),
    [
        (PARTS, 55, "has core parts of 40 minutes, but minutes = 55"),
        (PARTS[:-1], 37, "lacks its heading 'When to use it'"),
        ((*PARTS, ("Gone", 0)), 40, "has no heading 'Gone'"),
        (PARTS[::-1], 40, "has its headings in another order than the notebook"),
        ((*PARTS, ("no heading: a comment in code", 0)), 40, "has no heading 'no heading: a co"),
    ],
)
def test_parts_that_are_wrong_are_named(parts, minutes, wrong):
    (said,) = lessons.wrong_parts(made_up(parts, minutes), SOURCE)
    assert said.startswith(f"lesson 99 {wrong}")


def test_the_parts_of_every_lesson_are_right():
    for lesson in lessons.lessons().values():
        assert lessons.wrong_parts(lesson, lesson.source.read_text()) == []


def test_the_minute_plan_counts_the_core_and_says_where_to_go():
    rows = re.findall(r"^\| (.*) \| (\d+) \| (.+) \|$", kit.plan(made_up()), re.MULTILINE)
    assert rows == [
        ("0:00", "5", "The question"),
        ("0:05", "20", "Run it"),
        ("", "15", "More of it (optional)"),
        ("0:25", "12", "Exercise"),
        ("0:37", "3", "When to use it"),
    ]
    assert kit.plan(made_up()).endswith("If ten minutes remain, go to *When to use it*.")
    assert kit.plan(made_up(())) == ""
    assert lessons.go_to(made_up(), minutes=15) == "Exercise"
    assert lessons.go_to(made_up(), minutes=1) == "When to use it", "the last one in any case"
    assert lessons.go_to(made_up((*PARTS, ("Sources", 0)))) == "When to use it"


def test_the_guide_has_the_answer_of_every_exercise():
    guide = kit.guide()
    for lesson in lessons.lessons().values():
        for name in lesson.exercises:
            assert guide.count(f"**{name}**\n") == 1, name
    answers = kit.answers(lessons.find("04"))
    assert "+model = DistributedDataParallel(model)\n" in answers
    assert "def samples_of_rank(order, rank, world):" in answers
    assert "-rank, world = 0, 1\n+dist.init_process_group" in answers


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


def test_figures_are_saved_by_number_and_title(tmp_path):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    figure.suptitle("Training speed, all ranks together")
    cell = nbformat.v4.new_code_cell()
    data = {"text/html": style.image(figure)}
    cell.outputs = [nbformat.v4.new_output("display_data", data=data)] * 2
    lesson = course.Lesson.__new__(course.Lesson)
    lesson.path, lesson.folder = Path("04_ddp.ipynb"), tmp_path
    lesson.notebook = nbformat.v4.new_notebook(cells=[cell])
    lesson.save_figures()
    saved = sorted((tmp_path / "figures" / "04_ddp").iterdir())
    title = "training-speed-all-ranks-together"
    assert [path.name for path in saved] == [f"001-{title}.png", f"002-{title}.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in saved)


def shows(*outputs, source="run"):
    """What the instructor's file has of a cell with these outputs."""
    cell = nbformat.v4.new_code_cell(source)
    cell.outputs = [nbformat.v4.new_output("display_data", data=data) for data in outputs]
    lesson = course.Lesson.__new__(course.Lesson)
    lesson.notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell("# 99 T\n\n## Run it"), cell]
    )
    return lesson.expected().split("~~~\n")[1]


def test_a_display_is_its_text_and_not_the_name_of_its_class():
    plain = {"text/plain": "<IPython.core.display.Markdown object>"}
    assert shows(plain | {"text/markdown": "```python\ndef f(): ...\n```"}) == (
        "```python\ndef f(): ...\n```\n"
    )
    page = "<p>A <b>claim</b> &lt; 3</p><ul><li>one</li></ul><table><tr><td>two</td><td>3</td>"
    html = {"text/plain": "<IPython.core.display.HTML object>", "text/html": page}
    assert shows(html).split() == ["A", "claim", "<", "3", "one", "two", "3"]
    assert shows({"text/plain": "Run x: ok", "text/html": "<i>x</i>"}) == "Run x: ok\n"
    style = "<style>p { color: red }</style><script>run()</script><p>seen</p>"
    assert shows({"text/plain": "<IPython.core.display.HTML object>", "text/html": style}) == (
        "seen\n"
    )
    assert shows({"image/svg+xml": "<svg/>", "text/plain": "<Digraph object>"}) == (
        "[figure without words]\n"
    )


def test_a_diff_is_not_cut_and_other_long_outputs_are():
    diff = "\n".join(["--- a.py", "+++ b.py", *(f"+line {n}" for n in range(60))])
    assert shows({"text/plain": diff}).strip() == diff
    table = "\n".join(f"row {n}" for n in range(60))
    assert shows({"text/plain": table}).strip().endswith("... and 36 lines")


def test_an_object_without_words_is_not_named_by_its_address():
    assert shows({"text/plain": "<bootcamp.x.Y object at 0x7f>"}) == "[nothing to read]\n"


def test_recorded_outputs_name_no_folder_of_the_machine():
    for path in kit.KIT.glob("expected/*/*.md"):
        text = path.read_text()
        assert str(ROOT) not in text
        assert not re.findall(r"(?<![\w.])/(?:home|root|work|Users)/\S+", text), path.name
