"""The decks build into single files that ask no other host, from lines and records that exist."""

import re
import sys
from pathlib import Path

import chromium
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import slides  # noqa: E402
from bootcamp import summary  # noqa: E402

MEASURED = re.compile(r"\d[\d.,]*\s*(?:%|×|ms|s\b|seconds|samples|tokens|[kMGT]?i?B\b|times)")
# elements of the shown slide that stick out of it, or are cut off
OUTSIDE = """() => {
  const slide = document.querySelector("section.here"), frame = slide.getBoundingClientRect();
  return [...slide.querySelectorAll("*:not(.notes):not(.notes *)")].filter((element) => {
    const box = element.getBoundingClientRect();
    const beside = box.right > frame.right + 1 || box.left < frame.left;
    const below = box.bottom > frame.bottom - 20;
    const cut = element.tagName === "PRE" && element.scrollWidth > element.clientWidth;
    return box.width && (beside || below || cut);
  }).map((element) => `${slide.id}: ${element.tagName} ${element.textContent.slice(0, 40)}`);
}"""


@pytest.fixture(scope="module", params=slides.decks(), ids=lambda path: path.stem)
def deck(request, tmp_path_factory):
    """A deck's source and the file built from it."""
    built = slides.build(request.param, tmp_path_factory.mktemp("slides"))
    return request.param.read_text(), built


def test_a_deck_is_one_file_without_an_address_elsewhere(deck):
    page = deck[1].read_text()
    assert slides.external_addresses(page) == []
    assert "<link" not in page or 'href="data:' in page
    loaded = re.findall(r"<(?:img|script)[^>]*\bsrc=[\"']([^\"']{1,40})", page)
    assert loaded
    assert len(re.findall(r"<img[^>]*\balt=[\"'][^\"']{10}", page)) == page.count("<img")
    assert all(source.startswith("data:") for source in loaded)
    assert [path.name for path in deck[1].parent.iterdir()] == [deck[1].name]


def test_every_slide_has_minutes_and_notes(deck):
    sections = re.findall(r"<section.*?</section>", deck[1].read_text(), re.DOTALL)
    assert sections
    for section in sections:
        assert re.search(r'data-minutes="[1-9]', section), section[:80]
        assert 'class="notes"' in section, section[:80]


def test_no_placeholder_is_left_and_no_measured_number_is_typed(deck):
    assert "{{" not in deck[1].read_text()
    shown = re.sub(r"::: notes.*?\n:::\n|\{\{.*?\}\}", "", deck[0], flags=re.DOTALL)
    assert MEASURED.findall(shown) == []


def test_the_opening_shows_the_scripts_as_they_are(deck):
    page = deck[1].read_text()
    assert "DistributedDataParallel(model)" in page
    for line in (slides.ROOT / "src" / "_train_cpu.py").read_text().splitlines()[-4:]:
        assert line.strip().split("(")[0] in page


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
        ("{{record gone final_loss}}", "logs/reference/gone: there is no such record"),
        ("{{figure x}}", "there is no 'figure': choose one of"),
    ],
)
def test_what_no_longer_exists_stops_the_build(placeholder, says):
    with pytest.raises(slides.SlideError) as error:
        slides.resolve(f"# One\n\n{placeholder}\n", "lesson.md")
    assert str(error.value).startswith(f"lesson.md, line 3, {placeholder}: ")
    assert says in str(error.value)


def test_a_number_comes_from_a_record(monkeypatch, tmp_path):
    (tmp_path / "run").mkdir()
    summary.write(tmp_path / "run", "ok", final_loss=2.5, samples_per_second={"median": 1234.0})
    monkeypatch.setattr(slides, "REFERENCE", tmp_path)
    assert slides.resolve("{{record run samples_per_second.median}}", "x.md") == "1,234"
    assert slides.resolve("{{record run final_loss}}", "x.md") == "2.500"
    with pytest.raises(slides.SlideError, match=r"summary.json has no seconds"):
        slides.resolve("{{record run seconds}}", "x.md")


def test_the_map_is_the_readmes(monkeypatch, tmp_path):
    here = re.findall(r'class="here"><b>(\d\d[a-z]?)', slides.course_map())
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
@pytest.mark.skipif(chromium.PATH is None, reason="no Chromium: install Debian's package chromium")
def test_every_slide_fits_its_stage_and_keys_move(deck):
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium.PATH, args=chromium.FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        asked, errors = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(deck[1].as_uri())
        outside = []
        for _ in range(page.locator("section").count()):
            assert page.locator("section.here").count() == 1
            outside += page.evaluate(OUTSIDE)
            page.keyboard.press("ArrowRight")
        assert outside == []
        assert page.url.endswith(f"#{page.locator('section').count()}")
        with page.expect_popup() as popup:
            page.keyboard.press("n")
        last = page.locator("section.here h1").text_content()
        assert popup.value.locator("h1").text_content() == last
        assert len(popup.value.locator("#notes").text_content()) > 40
        browser.close()
    elsewhere = [url for url in asked if not url.startswith(("file:", "data:", "about:"))]
    assert elsewhere == []
    assert errors == []
