"""The decks build into single files that ask no other host, from lines and records that exist.

All decks are built once, and looked at in one Chromium.
"""

import re
import shutil
import sys
from pathlib import Path

import chromium
import embed
import legible
import lessons
import lookups
import prepared
import pytest
from matplotlib.text import Text

import slides
from bootcamp.costs import model_shapes
from bootcamp.drawing import plots
from bootcamp.drawing.canvas import box, canvas, label
from bootcamp.files import write_json
from bootcamp.records import summary

ROOT = Path(__file__).resolve().parents[1]


legible.watch_slides(embed)
UNITS = r"(?:%|×|ms|s\b|seconds|samples|tokens|[kMGT]?i?B\b|times)"
MEASURED = re.compile(rf"(?<!\w)\d[\d.,]*\s*{UNITS}")
FROM_RECORDS = re.compile(r"\{\{ (record|megabytes)\(")
ASKED = re.compile(r"\{\{.*?\}\}", re.DOTALL)
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
    const scale = element.getScreenCTM?.().a; // of an explorer's picture: smaller words
    const size = parseFloat(getComputedStyle(element).fontSize) * (scale ?? 1);
    if (own && size < (scale ? inFoot : least) - 0.5)
      faults.push("has small letters");
    return faults.map((why) => says(why, element));
  });
}"""


@pytest.fixture(scope="module")
def built(tmp_path_factory, request):
    """{name of each deck: (its source, the HTML file built from it)}."""
    if request.config.getoption("without_ranks"):
        pytest.skip("slow: make test builds every deck")
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


@pytest.mark.slow
def test_each_lesson_has_a_deck_of_five_to_nine_slides_and_the_day_has_one(pages):
    assert set(pages) == {lesson.file for lesson in lessons.lessons().values()} | {"day"}
    for name, page in pages.items():
        assert name == "day" or len(sections(page)) in LESSON_SLIDES, name


def test_a_deck_is_one_file_without_an_address_elsewhere(built, pages):
    for name, page in pages.items():
        assert slides.external_addresses(page) == [], name
        assert "<link" not in page or 'href="data:' in page, name
        loaded = re.findall(r"<(?:img|script)[^>]*\bsrc=[\"']([^\"']{1,40})", page)
        asked = re.search(r"\{\{ (?:picture|figure)\(|!\[", built[name][0])
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
        assert typed_numbers(source) == [], name


def typed_numbers(source):
    """What looks like a measurement in a deck's own words, on its slides and in its notes."""
    return MEASURED.findall(ASKED.sub("", source))


@pytest.mark.parametrize("where", ["1,234 samples/s\n", "::: notes\nIt took 12 ms a step.\n:::\n"])
def test_a_typed_number_is_found_on_a_slide_and_in_its_notes(where):
    assert typed_numbers('# One\n\n{{ figure("plots.throughput", "ddp-2", height=430) }}\n') == []
    assert len(typed_numbers(f"# One\n\n{where}")) == 1


def test_a_number_from_a_record_stands_beside_its_machine(built):
    for name, (source, _) in built.items():
        for slide in re.split(r"^# ", source, flags=re.MULTILINE):
            if FROM_RECORDS.search(slide):
                assert "{{ origin(" in slide or "{{ figure(" in slide, f"{name}: {slide[:40]}"


def test_every_measured_figure_names_its_machine(pages):
    figures = [f for page in pages.values() for f in re.findall(r"<figure.*?</figure>", page, re.S)]
    measured = [figure for figure in figures if "recorded run" in figure]
    assert len(measured) > 20
    for figure in measured:
        foot = re.search(r'class="foot">(.*?)</p>', figure, re.DOTALL)[1]
        assert re.search(r"ranks? .*on .*, torch \S+; recorded run", foot, re.DOTALL), foot


def test_a_deck_shows_the_scripts_as_they_are(pages):
    assert "DistributedDataParallel(model)" in pages["04_ddp"]
    lines = (slides.ROOT / "src" / "_train_cpu.py").read_text().splitlines()[-8:]
    for line in lines:
        shown = line.strip().split("(")[0] in pages["01_cpu_baseline"]
        assert shown != line.strip().startswith("#"), "a script's lines, without its reasons"


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ('lines("cpu", "model = gone(")', "_train_cpu.py: no line begins with 'model = gone('"),
        ('lines("cpu", "import")', "_train_cpu.py: no line begins with 'import'"),
        ('lines("cpu", "# ")', "5 lines begin with '# '"),
        ('lines("cpu", "run.finish", to="rank, world")', "comes before"),
        ('lines("cpu", "rank, world", until="x")', "unexpected keyword argument 'until'"),
        ('lines("nobody", "x")', "there is no script 'nobody'"),
        ('diff("gpu", "nobody")', "there is no script 'nobody'"),
        ('diff("gpu", "gpu")', "does not differ"),
        ('diff("gpu")', "diff()"),
        ('record("gone", "final_loss")', "reference/xeon-2core-gone: there is no such record"),
        ('megabytes("05_horovod/gone", "peak_bytes")', "reference/05_horovod/gone: there is no"),
        ('figure("plots.throughput", "gone-2")', "reference/xeon-2core-gone-2: there is no such"),
        ('figure("plots.throughput")', "expected at least one run"),
        ('figure("plots.gone", "cpu-1")', "there is no drawing 'plots.gone'"),
        ('table("prepared.gone")', "there is no drawing 'prepared.gone'"),
        ('picture("gone.overlap")', "there is no drawing 'gone.overlap'"),
        ('lines("src/snippets/gone.py", "x")', "there is no script"),
        ('lesson("99")', "There is no lesson 99"),
        ('timetable("09:00", "Three days")', "there is no agenda 'Three days': choose of Half a"),
        ('chart("x")', "'chart' is undefined"),
        ("lesson(", "unexpected '}'"),
    ],
)
def test_what_no_longer_exists_stops_the_build(asked, says):
    with pytest.raises(slides.SlideError) as error:
        slides.resolve(f"# One\n\n{{{{ {asked} }}}}\n", "lesson.md")
    assert str(error.value).startswith(f"lesson.md, line 3, {{{{ {asked} }}}}: ")
    assert says in str(error.value)


def test_a_number_comes_from_a_record(monkeypatch, tmp_path):
    folder = tmp_path / "laptop-ddp-2"
    folder.mkdir()
    summary.write(folder, "ok", final_loss=2.5, samples_per_second={"median": 1234.0})
    monkeypatch.setattr(lookups, "RECORDS", tmp_path / "laptop")
    assert lookups.record("ddp-2", "samples_per_second.median") == "1,234"
    assert slides.resolve('{{ record("ddp-2", "final_loss") }}', "x.md") == "2.500"
    with pytest.raises(slides.SlideError, match=r"summary.json has no seconds"):
        lookups.record("ddp-2", "seconds")
    with pytest.raises(slides.SlideError, match=r"rank 0 has recorded no peak_bytes"):
        lookups.megabytes("ddp-2", "peak_bytes")


def test_figures_can_come_from_this_machines_own_records(monkeypatch, tmp_path):
    shutil.copytree(lookups.REFERENCE / "xeon-2core-cpu-1", tmp_path / "laptop-cpu-1")
    monkeypatch.setattr(lookups, "RECORDS", tmp_path / "laptop")
    drawn = lookups.figure("plots.loss_curves", "cpu-1")
    assert "<figcaption>Loss at each step</figcaption>" in drawn
    assert "recorded run" not in drawn
    assert re.search(r"measured here|recorded on another machine", drawn)


def test_a_table_by_formula_has_what_a_gpu_can_answer_at_a_time():
    shown = lookups.table("prepared.requests_that_fit", 80, 8192, 131_072)
    model = model_shapes.served_models()["Llama 3 8B"]
    for length in (8192, 131_072):
        assert f">{model.requests_that_fit(length, 80e9)}</td>" in shown
    assert "query heads" not in shown
    assert "GPT-2" not in shown, "its context is shorter"
    assert shown.count("<tr>") == 3
    smaller = lookups.table("prepared.requests_that_fit", 20, 8192)
    assert f">{model.requests_that_fit(8192, 20e9)}</td>" in smaller
    assert 'class="foot">By formula: a GPU of 20 GB' in smaller


def test_a_table_of_recorded_drills_names_its_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(prepared, "REFERENCE", tmp_path)
    asked = '{{ table("prepared.triton_drills") }}'
    with pytest.raises(slides.SlideError, match=r"triton_drills.json: there is no such record"):
        slides.resolve(asked, "x.md")
    right = {"drill": "a worker is killed", "requests": 400, "right": 397, "no answer": 3}
    path = tmp_path / "11_serving" / "triton_drills.json"
    path.parent.mkdir()
    write_json(path, {"machine": {"cpu": "A <CPU>", "cores": 2}, "rows": [right]})
    shown = slides.resolve(asked, "x.md")
    assert re.findall(r"<td[^>]*>(.*?)</td>", shown) == ["a worker is killed", "397", "3"]
    foot = re.search(r'class="foot">(.*?)</p>', shown)[1]
    assert "On A &lt;CPU&gt;, 2 cores; recorded run" in foot


def test_letters_of_a_figure_are_large_and_stay_in_their_boxes():
    run = lookups._run("ddp-2")
    for figure in (plots.loss_curves(run), plots.throughput(run)):
        embed.to_html(figure, 465, title=True)
        sizes = [text.get_fontsize() for text in figure.findobj(Text) if len(text.get_text()) > 2]
        assert min(sizes) * embed.PLOT_PX_PER_INCH / 72 >= SMALLEST_PX - 0.5
    drawn, axes = canvas("A title", "A box.", 3)
    box(axes, 40, 15, 10.5, 6, "middle layers", size=9.5)
    embed.to_html(drawn, 540, title=False)
    assert "middle\nlayers" in {text.get_text() for text in drawn.findobj(Text)}


def test_a_drawing_that_can_not_be_read_is_refused_on_a_slide():
    """Every deck is built under this check: here a figure that needs it."""
    figure, axes = canvas("A title", "Two words.", 3)
    for text in ("one text", "another"):
        label(axes, 50, 15, text)
    with pytest.raises(legible.Illegible, match="'A title.*' can't be read:\n- over each other"):
        embed.to_html(figure, 465, title=True)


def test_a_long_diff_can_be_cut_to_headings_and_loses_its_indentation():
    whole, loop = lookups.diff("gpu", "ddp"), lookups.diff("gpu", "ddp", 5)
    assert "# 2. Model" in whole
    assert "# 2. Model" not in loop
    assert "import" not in loop
    assert "+     run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))" in loop
    assert "+ with record_function" in lookups.diff("gpu", "dp_by_hand", 5)


def test_a_timetable_adds_up(monkeypatch):
    """Each block begins where the one before it ends, decks counted."""
    first, second = lessons.find("00"), lessons.find("04")
    rows = [{"lesson": "00", "deck": False}, {"what": "Break", "minutes": 15}, {"lesson": "04"}]
    monkeypatch.setattr(lessons, "agendas", lambda: {"A": lessons._agenda("A", "all", 240, rows)})
    shown = lookups.timetable("09:30", "A")
    ends = 9 * 60 + 30
    expected = ["9:30"]
    for minutes in (first.minutes, 15, second.minutes + second.deck_minutes):
        ends += minutes
        expected.append(f"{ends // 60}:{ends % 60:02}")
    assert re.findall(r"<i>(\d+:\d\d)", shown) == expected
    assert lookups.lesson("00") == f"{first.minutes} minutes · {first.needs}"


def test_the_map_is_that_of_the_lessons():
    here = re.findall(r'class="here"><b>(\d\d[a-z]?)</b>', lookups.course_map())
    assert here == list(lessons.lessons())
    later = re.findall(r'class="later"><b>(\d\d[a-z]?)</b>', lookups.course_map())
    all_lessons = [n for n, each in lessons.everything().items() if not each.appendix]
    assert sorted(here + later) == all_lessons


def test_the_question_of_deck_04_is_answered_on_the_next_slide(built):
    """It asks what each of sixty-four ranks sends: 2 * 63/64 times the gradients, by the ring."""
    source = built["04_ddp"][0]
    asks, answers = source.partition("with sixty-four ranks?")[::2]
    assert answers, "the question has changed"
    sent = 2 * 63 / 64 * lookups._run("ddp-2").ranks[0]["gradient_bytes"] / 1e6
    page = sections(built["04_ddp"][1].read_text())
    slide = page[asks.count("\n# ")]
    assert f"Sixty-four: {sent:.3g} MB" in " ".join(slide.split())


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
    with pytest.raises(slides.SlideError, match=r"^lesson.md: .*gone\.svg"):
        slides.build(source, tmp_path / "build")


@pytest.mark.browser
@needs_chromium
@pytest.mark.slow
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
        named = page.locator("section").nth(1).get_attribute("id")
        anchors = {"gone": 1, named: 2, str(count): count, "-3": 1, "999": count}
        for anchor, shown in anchors.items():
            page.goto("about:blank")
            page.goto(f"{path.as_uri()}#{anchor}")
            assert page.locator("section.here").count() == 1, anchor
            assert page.url.endswith(f"#{shown}"), anchor
        browser.close()
    elsewhere = [url for url in asked if not url.startswith(("file:", "data:", "about:"))]
    assert elsewhere == []
    assert errors == []


@pytest.mark.browser
@needs_chromium
@pytest.mark.slow
def test_an_explorer_in_a_deck_takes_the_keys_and_gives_them_back(tmp_path):
    source = tmp_path / "deck.md"
    source.write_text(
        '# One\n\nWords\n\n# Two\n\n{{ explorer("collective", ranks=3) }}\n\n# Three\n'
    )
    deck = slides.build(source, tmp_path / "built")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium.PATH, args=chromium.FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        page.goto(f"{deck.as_uri()}#2")
        picture = page.get_by_role("img")
        assert "3 ranks: after step 2 of 4" in picture.get_attribute("aria-label")
        page.locator("input[name=step]").press("ArrowRight")
        assert "3 ranks: after step 3 of 4" in picture.get_attribute("aria-label")
        assert page.url.endswith("#2")
        page.keyboard.press("Escape")
        page.keyboard.press("ArrowRight")
        assert page.url.endswith("#3")
        page.emulate_media(media="print")
        assert picture.is_visible()
        assert not page.locator(".explorer-controls").is_visible()
        browser.close()


@pytest.mark.browser
@needs_chromium
@pytest.mark.slow
def test_the_pdf_has_a_page_for_each_slide(built):
    pdfs = slides.print_pdfs([path for _, path in built.values()])
    for (source, _), pdf in zip(built.values(), pdfs, strict=True):
        pages = len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf.read_bytes()))
        assert pages == len(re.findall(r"^# ", source, re.MULTILINE)), pdf.name


def test_without_a_chromium_the_html_is_made_and_a_sentence_says_why(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(slides, "decks", lambda: [tmp_path / "one.md"])
    monkeypatch.setattr(slides, "BUILD", tmp_path / "build")
    monkeypatch.setattr(slides, "ROOT", tmp_path)
    monkeypatch.setattr(slides.chromium, "PATH", None)
    monkeypatch.setattr(slides, "_pandoc", lambda deck: deck)
    monkeypatch.setattr(sys, "argv", ["slides.py"])
    (tmp_path / "one.md").write_text("# One {minutes=1}\n")
    assert slides.main() == 0
    assert "No PDF: there is no Chromium here" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "build").iterdir()] == ["one.html"]
