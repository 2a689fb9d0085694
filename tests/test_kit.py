"""The instructor's kit agrees with the lessons' data, the notebooks and the Makefile."""

import re
import sys

import course
import kit
import lessons
import nbformat
import pytest

from bootcamp import quietness
from bootcamp.classroom.tasks import PythonSource
from bootcamp.paths import ROOT

ROW = re.compile(r"^\| (\d+):(\d\d) \| (\d*) \| (\d+) \| (.+?) \| (.*) \|$", re.MULTILINE)


def test_agendas_add_up_with_the_decks_and_fit_their_hours():
    parts = re.split(r"^## ", kit.agendas(begins="0:00"), flags=re.MULTILINE)[1:]
    for part, agenda in zip(parts, lessons.agendas().values(), strict=True):
        assert part.startswith(agenda.name)
        now = 0
        for hours, minutes, slides, work, title, remark in ROW.findall(part):
            assert 60 * int(hours) + int(minutes) == now, (agenda.name, title)
            now += int(slides or 0) + int(work)
            assert now % 5 == 0
            lesson = lessons.lessons().get(title.split()[0])
            if lesson:
                assert title == f"{lesson.number} {lesson.title}"
                assert slides in ("", str(lesson.deck_minutes)), "a deck is shown or left out"
                in_part = int(work) < lesson.minutes
                assert in_part == ("in part" in remark), (agenda.name, title)
        assert now == agenda.minutes, agenda.name
        assert now >= 0.75 * agenda.most_minutes, agenda.name


OWN = """
[[agenda]]
name = "Mine"
audience = "us"
most_minutes = 100
blocks = [
    { lesson = "00", deck = false, until = "Predict" },
    { lesson = "04", deck = false, since = "Prove it", remark = "by hand" },
    { pause = "Coffee", minutes = 11 },
    { lesson = "12", deck = false, minutes = 40, remark = "in part" },
]
"""


def test_own_agenda_is_added_up_from_its_file(tmp_path):
    (tmp_path / "mine.toml").write_text(OWN)
    assert ROW.findall(kit.agendas(tmp_path / "mine.toml", "13:30")) == [
        ("13", "30", "", "10", "00 Start here", "in part, to *Predict*"),
        ("13", "40", "", "20", "04 DDP", "in part, from *Prove it*: by hand"),
        ("14", "00", "", "15", "Coffee", ""),
        ("14", "15", "", "40", "12 Clinic", "in part"),
    ]


@pytest.mark.parametrize(
    ("line", "becomes", "wrong"),
    [
        ('"Coffee", minutes = 11', '"Coffee", minutes = 60', "Mine: 130 minutes, at most 100"),
        ("pause =", "what =", "Mine: 85 minutes without a pause until the end of 12 Clinic"),
        ('lesson = "00"', 'lesson = "01"', "Mine: lesson 01 comes before what it needs, 00"),
        ('remark = "by', 'skips = ["03"], remark = "by', "lesson 04 skips 03, and its remark does"),
        ('lesson = "12"', 'lesson = "99"', "There is no lesson 99"),
        ('"Prove it"', '"Gone"', "mine.toml has no agendas as .*: 'Gone' is not in list"),
        ('"Mine"', '"Mine"\nfollows = "Yours"', "mine.toml has no agendas as .*: 'Yours'"),
        ("audience", "for", "mine.toml has no agendas as .*'for'"),
        ("[[agenda]]", "[[agenda", "mine.toml has no agendas as"),
    ],
)
def test_agendas_that_can_not_be_taught_are_refused(line, becomes, wrong, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(OWN.replace(line, becomes))
    with pytest.raises(lessons.LessonError, match=wrong):
        lessons.agendas(path)


def test_guide_says_what_helps_and_has_the_answer_of_every_exercise(tmp_path, monkeypatch):
    guide = kit.guide()
    parts = re.split(r"^## ", guide, flags=re.MULTILINE)[1:]
    for part, lesson in zip(parts, lessons.lessons().values(), strict=True):
        assert part.startswith(lesson.number)
        assert f"**{lesson.minutes} minutes, and {lesson.deck_minutes} of slides.** After" in part
        answers = map("**{}**\n".format, lesson.exercises)
        for words in ("**People get stuck** ", "**Say:** ", *answers):
            assert part.count(words) == 1, (lesson.number, words)
    assert "+model = DistributedDataParallel(model)\n" in guide
    assert "def samples_of_rank(order, rank, world):" in guide
    monkeypatch.setattr(kit, "guide", lambda: guide)
    page = kit.build(tmp_path).read_text()
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', page), "an address elsewhere"
    assert "Lesson by lesson" in page
    assert "Half a day" in page


def test_commands_in_the_kit_exist():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    for path in kit.KIT.glob("*.md"):
        named = re.findall(r"(?:`|^|RUN )make ([a-z-]+)", path.read_text(), re.M)
        assert set(named) <= set(targets), path.name


def expect(data: dict) -> str:
    """What `make course` expects of a cell that displays this: {MIME type: data}."""
    title, cell = nbformat.v4.new_markdown_cell("# 99 Title"), nbformat.v4.new_code_cell("run")
    cell.outputs = [nbformat.v4.new_output("display_data", data=data)]
    lesson = course.Lesson.__new__(course.Lesson)
    lesson.notebook = nbformat.v4.new_notebook(cells=[title, cell])
    return lesson.expected().split("~~~\n")[1].rstrip("\n")


def test_expected_outputs_are_not_recorded_on_a_busy_machine(monkeypatch, capsys, tmp_path):
    busy = quietness.Quietness(share=0.5, spread=0.3, second_core=0.4, unix_seconds=0)
    monkeypatch.setattr(quietness, "measure", lambda: busy)
    monkeypatch.setattr(course, "run_lessons", lambda *_: pytest.fail("it would run"))
    monkeypatch.setattr(sys, "argv", ["course.py", "00", "--expected", str(tmp_path / "here")])
    assert course.main() == 2
    assert "This machine is busy" in capsys.readouterr().out


TEMPORARY = "on this-host, in (temporary folder)/x and (temporary folder)/y"
OBJECT = {"text/plain": "<IPython.core.display.HTML object>"}
PAGE = "<style>p { color: red }</style><p>A <b>claim</b> &lt; 3</p><table><tr><td>2</td><td>3</td>"
FIGURE = '<img src="data:image/png;base64,AAAA" alt="Speed: 3 &lt; 4" style="x">'


def test_displays_are_the_words_that_a_reader_sees(monkeypatch):
    monkeypatch.setattr(course.socket, "gethostname", lambda: "od")
    monkeypatch.setattr(course.tempfile, "gettempdir", lambda: "/tmp")
    for data, words in (
        (OBJECT | {"text/markdown": "```python\n...\n```"}, "```python\n...\n```"),
        (OBJECT | {"text/html": PAGE}, "A claim < 3 2 3"),
        (OBJECT | {"text/html": FIGURE}, "[figure: Speed: 3 < 4]"),
        ({"text/plain": "Run x: ok", "text/html": "<i>x</i>"}, "Run x: ok"),
        ({"text/plain": "<Digraph object>", "image/svg+xml": "<svg/>"}, "[figure without words]"),
        ({"text/plain": "<bootcamp.x.Y object at 0x7f>"}, "(nothing)"),
        ({"text/plain": repr(PythonSource("a = 'b'\nc"))}, "a = 'b'\nc"),
        ({"text/plain": "divmod(step)"}, "divmod(step)"),
        ({"text/plain": "on od, in /tmp/tmpab12cd_3/x and /tmp/y"}, TEMPORARY),
        ({"text/plain": "row\n" * 100}, "row\n" * course.EXPECTED_LINES + "... and 40 lines"),
    ):
        assert expect(data) == words


def test_recorded_outputs_name_no_folder_of_the_machine():
    for path in kit.KIT.glob("expected/*/*.md"):
        found = re.findall(r"(?<![\w.])/(?:home|root|work|Users)/\S+", path.read_text())
        assert not found, path.name
