"""The decks build into single files that ask no other host, from lines and records that exist.

All decks are built once, and looked at in one Chromium.
"""

import re
import shutil
import sys
from pathlib import Path

import chromium
import pytest
from matplotlib.text import Text

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import slides  # noqa: E402
from bootcamp.drawing import plots  # noqa: E402
from bootcamp.drawing.diagrams import ddp_overview  # noqa: E402
from bootcamp.records import summary  # noqa: E402

UNITS = r"(?:%|×|ms|s\b|seconds|samples|tokens|[kMGT]?i?B\b|times)"
MEASURED = re.compile(rf"(?<!\w)\d[\d.,]*\s*{UNITS}")
FROM_RECORDS = re.compile(r"\{\{(record|bytes) ")
LESSON_SLIDES = range(5, 10)
SMALLEST_PX, SMALLEST_IN_A_FOOT_PX = 21, 17
needs_chromium = pytest.mark.skipif(
    slides.why_no_pdf() is not None, reason=slides.why_no_pdf() or "there is a Chromium"
)
# elements of the shown slide that stick out of it, are cut off, or have small letters
FAULTS = """([smallest, inFoot]) => {
  const slide = document.querySelector("section.here"), frame = slide.getBoundingClientRect();
  const shown = [...slide.querySelectorAll("*:not(.notes):not(.notes *)")];
  const says = (why, element) => `${why}: ${element.tagName} ${element.textContent.slice(0, 40)}`;
  return shown.flatMap((element) => {
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
    if (own && parseFloat(getComputedStyle(element).fontSize) < least - 0.5)
      faults.push("has small letters");
    return faults.map((why) => says(why, element));
  });
}"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """{name of each deck: (its source, the HTML file built from it)}."""
    folder = tmp_path_factory.mktemp("slides")
    return {
        path.stem: (path.read_text(), slides.build(path, folder / path.stem))
        for path in slides.decks()
    }


@pytest.fixture(scope="module")
def pages(built):
    """{name of each deck: its HTML}."""
    return {name: path.read_text() for name, (_, path) in built.items()}


def sections(page):
    """The slides of a deck's HTML."""
    return re.findall(r"<section.*?</section>", page, re.DOTALL)


def test_each_lesson_has_a_deck_of_five_to_nine_slides_and_the_day_has_one(pages):
    lessons = {path.stem for path in (ROOT / "notebooks" / "sources").glob("*.py")}
    assert set(pages) <= lessons | {"day"}, "a deck of a lesson that is not there"
    must = {name for name in lessons if name[:2] <= "08"} | {"day"}
    assert must <= set(pages), "a lesson without a deck"
    for name, page in pages.items():
        assert name == "day" or len(sections(page)) in LESSON_SLIDES, name


def test_a_deck_is_one_file_without_an_address_elsewhere(built, pages):
    for name, page in pages.items():
        assert slides.external_addresses(page) == [], name
        assert "<link" not in page or 'href="data:' in page, name
        loaded = re.findall(r"<(?:img|script)[^>]*\bsrc=[\"']([^\"']{1,40})", page)
        asked = re.search(r"\{\{(?:picture|figure)|!\[", built[name][0])
        assert bool(loaded) == bool(asked), name
        assert len(re.findall(r"<img[^>]*\balt=[\"'][^\"']{10}", page)) == page.count("<img"), name
        assert all(source.startswith("data:") for source in loaded), name
        folder = built[name][1].parent
        assert {path.suffix for path in folder.iterdir()} <= {".html", ".pdf"}, name


def test_every_slide_has_minutes_and_notes(pages):
    for name, page in pages.items():
        assert sections(page), name
        for section in sections(page):
            assert re.search(r'data-minutes="[1-9]', section), section[:80]
            assert re.search(r'class="notes".*?<p>.{40}', section, re.DOTALL), section[:80]


def test_no_placeholder_is_left_and_no_measured_number_is_typed(built, pages):
    for name, (source, _) in built.items():
        assert "{{" not in pages[name], name
        shown = re.sub(r"::: notes.*?\n:::\n|\{\{.*?\}\}", "", source, flags=re.DOTALL)
        assert MEASURED.findall(shown) == [], name


def test_a_number_from_a_record_stands_beside_its_machine(built):
    for name, (source, _) in built.items():
        for slide in re.split(r"^# ", source, flags=re.MULTILINE):
            if FROM_RECORDS.search(slide):
                assert "{{origin " in slide or "{{figure " in slide, f"{name}: {slide[:40]}"


def test_every_measured_figure_names_its_machine(pages):
    figures = [f for page in pages.values() for f in re.findall(r"<figure.*?</figure>", page, re.S)]
    measured = [figure for figure in figures if "recorded run" in figure]
    assert len(measured) > 20
    for figure in measured:
        foot = re.search(r'class="foot">(.*?)</p>', figure, re.DOTALL)[1]
        assert re.search(r"ranks? .*on .*, torch \S+; recorded run", foot, re.DOTALL), foot


def test_a_deck_shows_the_scripts_as_they_are(pages):
    assert "DistributedDataParallel(model)" in pages["04_ddp"]
    for line in (slides.ROOT / "src" / "_train_cpu.py").read_text().splitlines()[-4:]:
        assert line.strip().split("(")[0] in pages["01_cpu_baseline"]


@pytest.mark.parametrize(
    ("placeholder", "says"),
    [
        ('{{lines cpu "model = gone("}}', "_train_cpu.py: no line begins with 'model = gone('"),
        ('{{lines cpu "import"}}', "_train_cpu.py: no line begins with 'import'"),
        ('{{lines cpu "# "}}', "5 lines begin with '# '"),
        ('{{lines cpu "run.finish" to "rank, world"}}', "stands above"),
        ('{{lines cpu "rank, world" until "x"}}', "expected"),
        ('{{lines nobody "x"}}', "there is no script 'nobody'"),
        ("{{diff gpu nobody}}", "there is no script 'nobody'"),
        ("{{diff gpu gpu}}", "does not differ"),
        ("{{diff gpu}}", "diff()"),
        ("{{record gone final_loss}}", "reference/epyc-2core-gone: there is no such record"),
        ("{{bytes 05_horovod/gone peak_bytes}}", "reference/05_horovod/gone: there is no such"),
        ("{{figure plots.throughput gone-2}}", "reference/epyc-2core-gone-2: there is no such"),
        ("{{figure plots.throughput}}", "expected at least one run"),
        ("{{figure plots.gone cpu-1}}", "there is no drawing 'plots.gone'"),
        ("{{picture gone.overlap}}", "there is no drawing 'gone.overlap'"),
        ("{{lines src/snippets/gone.py 'x'}}", "there is no script"),
        ("{{lesson 99}}", "its map has no lesson 99"),
        ("{{chart x}}", "there is no 'chart': choose one of"),
    ],
)
def test_what_no_longer_exists_stops_the_build(placeholder, says):
    with pytest.raises(slides.SlideError) as error:
        slides.resolve(f"# One\n\n{placeholder}\n", "lesson.md")
    assert str(error.value).startswith(f"lesson.md, line 3, {placeholder}: ")
    assert says in str(error.value)


def test_a_number_comes_from_a_record(monkeypatch, tmp_path):
    folder = tmp_path / "laptop-ddp-2"
    folder.mkdir()
    summary.write(folder, "ok", final_loss=2.5, samples_per_second={"median": 1234.0})
    monkeypatch.setattr(slides, "RECORDS", tmp_path / "laptop")
    assert slides.resolve("{{record ddp-2 samples_per_second.median}}", "x.md") == "1,234"
    assert slides.resolve("{{record ddp-2 final_loss}}", "x.md") == "2.500"
    with pytest.raises(slides.SlideError, match=r"summary.json has no seconds"):
        slides.resolve("{{record ddp-2 seconds}}", "x.md")
    with pytest.raises(slides.SlideError, match=r"rank 0 has recorded no peak_bytes"):
        slides.resolve("{{bytes ddp-2 peak_bytes}}", "x.md")


def test_figures_can_come_from_this_machines_own_records(monkeypatch, tmp_path):
    shutil.copytree(slides.REFERENCE / "epyc-2core-cpu-1", tmp_path / "laptop-cpu-1")
    monkeypatch.setattr(slides, "RECORDS", tmp_path / "laptop")
    drawn = slides.resolve("{{figure plots.loss_curves cpu-1}}", "x.md")
    assert "<figcaption>Loss at each step</figcaption>" in drawn
    assert "recorded run" not in drawn
    assert re.search(r"measured here|recorded on another machine", drawn)


def test_letters_of_a_figure_are_large_and_stay_in_their_boxes():
    run = slides._run("ddp-2")
    for figure in (plots.loss_curves(run), plots.throughput(run)):
        slides.embed.to_html(figure, 465, title=True)
        sizes = [text.get_fontsize() for text in figure.findobj(Text) if len(text.get_text()) > 2]
        assert min(sizes) * slides.embed.PLOT_PX_PER_INCH / 72 >= SMALLEST_PX - 0.5
    drawn = ddp_overview.overlap()
    words = {text.get_text() for text in drawn.findobj(Text)}
    slides.embed.to_html(drawn, 540, title=False)
    assert "middle layers" in words
    assert "middle\nlayers" in {text.get_text() for text in drawn.findobj(Text)}


def test_a_long_diff_can_be_cut_to_headings_and_loses_its_indentation():
    whole, loop = slides.diff("gpu", "ddp"), slides.diff("gpu", "ddp", "5")
    assert "# 2. Model" in whole
    assert "# 2. Model" not in loop
    assert "import" not in loop
    assert "+     dist.all_reduce(mean_loss)" in loop
    assert "+ with record_function" in slides.diff("gpu", "dp_by_hand", "5")


def test_a_timetable_adds_up(monkeypatch, tmp_path):
    monkeypatch.setattr(slides, "README", tmp_path / "README.md")
    row = "| [{} {}](notebooks/x.ipynb) | words | {} | any machine |\n"
    (tmp_path / "README.md").write_text(row.format("00", "One", 20) + row.format("01", "Two", 70))
    shown = slides.timetable("09:00", "00", "pause=15", "01")
    assert re.findall(r"<i>(\d+:\d\d)", shown) == ["9:00", "9:20", "9:35", "10:45"]
    assert slides.lesson("01") == "70 minutes · any machine"


def test_the_map_is_the_readmes(monkeypatch, tmp_path):
    here = re.findall(r'class="here"><b>(\d\d[a-z]?)</b>', slides.course_map())
    assert here == re.findall(
        r"\[(\d\d[a-z]?) [^\]]+\]\(notebooks/", (ROOT / "README.md").read_text()
    )
    monkeypatch.setattr(slides, "README", tmp_path / "README.md")
    (tmp_path / "README.md").write_text("# Nothing\n")
    with pytest.raises(slides.SlideError, match=r"no lesson with a link"):
        slides.course_map()


@pytest.mark.parametrize(
    "outside",
    [
        '<img src="https://example.org/a.png">',
        "<img src=//example.org/a.png>",
        '<script src="http://example.org/a.js"></script>',
        '<a href="https://example.org">there</a>',
        "<style>body { background: url(https://example.org/a.png) }</style>",
        '<style>@import "other.css";</style>',
    ],
)
def test_an_address_elsewhere_stops_the_build(outside, tmp_path):
    source = tmp_path / "lesson.md"
    source.write_text(f"---\npagetitle: T\n---\n\n# One\n\n{outside}\n")
    with pytest.raises(slides.SlideError, match=r"^lesson.md: .* is on another host"):
        slides.build(source, tmp_path / "build")
    assert not (tmp_path / "build").exists()


def test_a_missing_picture_stops_the_build(tmp_path):
    source = tmp_path / "lesson.md"
    source.write_text("---\npagetitle: T\n---\n\n# One\n\n![gone](figures/gone.svg)\n")
    with pytest.raises(RuntimeError, match=r"gone\.svg"):
        slides.build(source, tmp_path / "build")


@pytest.mark.browser
@needs_chromium
def test_every_slide_fits_its_stage_and_keys_move(built):
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium.PATH, args=chromium.FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        asked, errors, faults = [], [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        for name, (_, path) in built.items():
            page.goto(path.as_uri())
            count = page.locator("section").count()
            for number in range(1, count + 1):
                assert page.locator("section.here").count() == 1
                found = page.evaluate(FAULTS, [SMALLEST_PX, SMALLEST_IN_A_FOOT_PX])
                faults += [f"{name}, slide {number}, {fault}" for fault in found]
                page.keyboard.press("ArrowRight")
            assert page.url.endswith(f"#{count}"), name
        assert faults == []
        with page.expect_popup() as popup:
            page.keyboard.press("n")
        last = page.locator("section.here h1").text_content()
        assert popup.value.locator("h1").text_content() == last
        assert len(popup.value.locator("#notes").text_content()) > 40
        browser.close()
    elsewhere = [url for url in asked if not url.startswith(("file:", "data:", "about:"))]
    assert elsewhere == []
    assert errors == []


@pytest.mark.browser
@needs_chromium
def test_the_pdf_has_a_page_for_each_slide(built):
    pdfs = slides.print_pdfs([path for _, path in built.values()])
    for (source, _), pdf in zip(built.values(), pdfs, strict=True):
        pages = len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf.read_bytes()))
        assert pages == len(re.findall(r"^# ", source, re.MULTILINE)), pdf.name


def test_without_a_chromium_the_html_is_made_and_a_sentence_says_why(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(slides, "SLIDES", tmp_path)
    monkeypatch.setattr(slides, "ROOT", tmp_path)
    monkeypatch.setattr(slides.chromium, "PATH", None)
    monkeypatch.setattr(slides, "_pandoc", lambda deck, *more: deck)
    monkeypatch.setattr(sys, "argv", ["slides.py"])
    (tmp_path / "one.md").write_text("# One {minutes=1}\n")
    assert slides.main() == 0
    assert "No PDF: there is no Chromium here" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "build").iterdir()] == ["one.html"]
