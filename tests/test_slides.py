"""The decks build into single files that need no network, from lines and records that exist.

All decks are built once, and looked at in one Chromium.
"""

import re
import shutil

import chromium
import embed
import legible
import lessons
import lookups
import pytest
from matplotlib.text import Text

import slides
from bootcamp.drawing import plots
from bootcamp.drawing.canvas import box, canvas, label
from bootcamp.paths import SRC
from bootcamp.records import summary

legible.watch_slides(embed)
UNITS = r"(?:%|×|ms|s\b|seconds|samples|tokens|[kMGT]?i?B\b|times)"
MEASURED = re.compile(rf"(?<!\w)\d[\d.,]*\s*{UNITS}")
ASKED = re.compile(r"\{\{.*?\}\}", re.DOTALL)
LESSON_SLIDES = range(5, 10)
SMALLEST_PX, SMALLEST_IN_A_FOOT_PX = 21, 17
# elements of each slide, moved to by the key's event, that stick out of it, are cut off, or have
# small letters; nothing is painted meanwhile
FAULTS = """([smallest, inFoot]) => [...document.querySelectorAll("section")].map((slide) => {
  const frame = slide.getBoundingClientRect();
  const shown = [...slide.querySelectorAll("*:not(.notes):not(.notes *)")];
  const says = (why, element) => `${why}: ${element.tagName} ${element.textContent.slice(0, 40)}`;
  const found = shown.flatMap((element) => {
    const box = element.getBoundingClientRect(), faults = [];
    if (!box.width) return [];
    const beside = box.right > frame.right + 1 || box.left < frame.left;
    if (beside || box.bottom > frame.bottom - 36) faults.push("sticks out");
    if (/PRE|DIV/.test(element.tagName) && element.scrollWidth > element.clientWidth + 1)
      faults.push("is cut off");
    if (element.tagName === "IMG" && !(element.complete && element.naturalWidth))
      faults.push("is missing");
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const least = element.closest(".foot") ? inFoot : smallest;
    const scale = element.getScreenCTM?.().a; // of an explorer's picture: smaller words
    const size = parseFloat(getComputedStyle(element).fontSize) * (scale ?? 1);
    if (own && size < (scale ? inFoot : least) - 0.5) faults.push("has small letters");
    return faults.map((why) => says(why, element));
  });
  dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
  return found;
})"""


@pytest.fixture(scope="module")
def built(tmp_path_factory, request):
    """{name of each deck: (its source, the HTML file built from it)}."""
    if request.config.getoption("without_ranks"):
        pytest.skip("slow: make test builds every deck")
    folder = tmp_path_factory.mktemp("slides")
    return {path.stem: (path.read_text(), slides.build(path, folder)) for path in slides.decks()}


def typed_numbers(source):
    """What looks like a measurement in a deck's own words, on its slides and in its notes."""
    return MEASURED.findall(ASKED.sub("", source))


def test_decks_are_single_files_of_few_slides_with_minutes_notes_and_words_for_pictures(built):
    assert set(built) == {lesson.file for lesson in lessons.lessons().values()} | {"day"}
    for name, (_, path) in built.items():
        page = path.read_text()
        loads = re.findall(r"<(?:link|(?:img|script)[^>]* src=[\"'](?!data:))[^>]{0,40}", page)
        assert loads == [], name
        words = re.findall(r"<img[^>]*\b(?:alt|aria-label)=[\"'][^\"']{10}", page)
        assert len(words) == page.count("<img"), name
        sections = re.findall(r"<section.*?</section>", page, re.DOTALL)
        assert name == "day" or len(sections) in LESSON_SLIDES, name
        for section in sections:
            assert re.search(r'data-minutes="[1-9]', section), section[:80]
            assert re.search(r'class="notes".*?<p>.{40}', section, re.DOTALL), section[:80]


def test_measured_numbers_are_not_typed_and_stand_beside_their_machine(built):
    figures = []
    for name, (source, path) in built.items():
        figures += re.findall(r"<figure.*?</figure>", path.read_text(), re.DOTALL)
        assert typed_numbers(source) == [], name
        for slide in re.split(r"^# ", source, flags=re.MULTILINE):
            if re.search(r"\{\{ (record|megabytes)\(", slide):
                assert "{{ origin(" in slide or "{{ figure(" in slide, f"{name}: {slide[:40]}"
    measured = [figure for figure in figures if "recorded run" in figure]
    assert len(measured) > 20
    for figure in measured:
        foot = re.search(r'class="foot">(.*?)</p>', figure, re.DOTALL)[1]
        assert re.search(r"ranks? .*on .*, torch \S+; recorded run", foot, re.DOTALL), foot
    assert typed_numbers('# One\n\n{{ figure("plots.throughput", "ddp-2", height=430) }}\n') == []
    for words in ("1,234 samples/s\n", "::: notes\nIt took 12 ms a step.\n:::\n"):
        assert len(typed_numbers(f"# One\n\n{words}")) == 1


def test_scripts_and_diffs_are_shown_as_they_are_without_reasons_and_indentation():
    code = (SRC / "_train_cpu.py").read_text().partition("# 5. ")[2].splitlines()
    shown = lookups.lines("cpu", "# 5.", to="run.finish()")
    missing = [line.strip() for line in code[1:] if line.strip() not in shown]
    assert missing == [line.strip() for line in code[1:] if line.strip().startswith("# ")]
    whole, loop = lookups.diff("gpu", "ddp"), lookups.diff("gpu", "ddp", 5)
    assert "# 2. Model" in whole
    assert "# 2. Model" not in loop
    assert "import" not in loop
    assert "+     run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))" in loop


GONE = [  # what a deck may ask for in vain, and what is said
    ('lines("cpu", "model = gone(")', "_train_cpu.py: no line begins with 'model = gone('"),
    ('lines("cpu", "# ")', "5 lines begin with '# '"),
    ('lines("cpu", "run.finish", to="rank, world")', "comes before"),
    ('diff("gpu", "nobody")', "there is no script 'nobody'"),
    ('record("gone", "final_loss")', "reference/xeon-2core-gone: there is no such record"),
    ('figure("plots.gone", "cpu-1")', "there is no drawing 'plots.gone'"),
    ('table("prepared.gone")', "there is no drawing 'prepared.gone'"),
    ('timetable("09:00", "Three days")', "there is no agenda 'Three days': choose of Half a"),
]


def test_sources_that_are_gone_stop_the_build():
    for asked, says in GONE:
        with pytest.raises(slides.SlideError) as error:
            slides.resolve(f"# One\n\n{{{{ {asked} }}}}\n", "lesson.md")
        assert str(error.value).startswith(f"lesson.md, line 3, {{{{ {asked} }}}}: ")
        assert says in str(error.value)


def test_numbers_and_figures_come_from_the_records_of_the_machine_that_is_meant(
    monkeypatch, tmp_path
):
    folder = tmp_path / "laptop-ddp-2"
    folder.mkdir()
    summary.write(folder, "ok", final_loss=2.5, samples_per_second={"median": 1234.0})
    shutil.copytree(lookups.REFERENCE / "xeon-2core-cpu-1", tmp_path / "laptop-cpu-1")
    monkeypatch.setattr(lookups, "RECORDS", tmp_path / "laptop")
    assert lookups.record("ddp-2", "samples_per_second.median") == "1,234"
    assert slides.resolve('{{ record("ddp-2", "final_loss") }}', "x.md") == "2.500"
    with pytest.raises(slides.SlideError, match=r"summary.json has no seconds"):
        lookups.record("ddp-2", "seconds")
    with pytest.raises(slides.SlideError, match=r"rank 0 has recorded no peak_bytes"):
        lookups.megabytes("ddp-2", "peak_bytes")
    drawn = lookups.figure("plots.loss_curves", "cpu-1")
    assert "<figcaption>Loss at each step</figcaption>" in drawn
    assert "recorded run" not in drawn
    assert re.search(r"measured here|recorded on another machine", drawn)


def test_letters_of_figures_are_large_stay_in_their_boxes_and_can_be_read():
    """Every deck is built under the check that refuses the last of these."""
    plot = plots.throughput(lookups._run("ddp-2"))
    embed.to_html(plot, 465, title=True)
    sizes = [text.get_fontsize() for text in plot.findobj(Text) if len(text.get_text()) > 2]
    assert min(sizes) * embed.PLOT_PX_PER_INCH / 72 >= SMALLEST_PX - 0.5
    drawn, axes = canvas("A title", "A box.", 3)
    box(axes, 40, 15, 10.5, 6, "middle layers", size=9.5)
    embed.to_html(drawn, 540, title=False)
    assert "middle\nlayers" in {text.get_text() for text in drawn.findobj(Text)}
    for text in ("one text", "another"):
        label(axes, 80, 15, text)
    with pytest.raises(legible.Illegible, match="can't be read:\n- over each other"):
        embed.to_html(drawn, 465, title=True)


@pytest.mark.skipif(chromium.why_not() is not None, reason="no Chromium on this machine")
def test_pdf_has_a_page_for_each_slide(built):
    source, path = built["04_ddp"]
    (pdf,) = slides.print_pdfs([path])
    pages = len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf.read_bytes()))
    assert pages == len(re.findall(r"^# ", source, re.MULTILINE))


@pytest.mark.skipif(chromium.why_not() is not None, reason="no Chromium on this machine")
def test_slides_fit_their_stage_and_keys_move(built):
    faults = []
    with chromium.tab() as tab:
        for name, (_, path) in built.items():
            tab.goto(path.as_uri())
            found = tab.evaluate(FAULTS, [SMALLEST_PX, SMALLEST_IN_A_FOOT_PX])
            count = len(found)
            assert tab.evaluate("location.hash") == f"#{count}", name
            faults += [f"{name}, {at}, {one}" for at, each in enumerate(found, 1) for one in each]
        assert faults == []
        for key, number in (("Home", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", count)):
            tab.keyboard.press(key)
            assert tab.evaluate("location.hash") == f"#{number}", key
        with tab.expect_popup() as popup:
            tab.keyboard.press("n")
        last = tab.locator("section.here h1").text_content()
        assert popup.value.locator("h1").text_content() == last
        assert len(popup.value.locator("#notes").text_content()) > 40
        popup.value.close()
        named = tab.locator("section").nth(1).get_attribute("id")
        for anchor, shown in {"gone": 1, named: 2, "-3": 1, "999": count}.items():
            tab.goto("about:blank")
            tab.goto(f"{path.as_uri()}#{anchor}")
            assert tab.evaluate("location.hash") == f"#{shown}", anchor
