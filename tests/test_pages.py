"""The course as static pages: what is folded, the terms, the links, and pages in a browser offline.

Two lessons and the first errors are built once, from their notebooks as they are stored.
"""

import json
import shutil
import sys
from pathlib import Path

import chromium
import lessons
import nbformat
import page_links
import page_notes
import pages
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from bootcamp.costs import model_shapes, overlap
from bootcamp_lessons import explorers

pytestmark = pytest.mark.filterwarnings("ignore:.*MystReferenceResolver")
LESSONS = ("00", "04")
LOOKED_AT = ("index.html", "04_ddp.html", "glossary.html", "errors.html", "search.html?q=rank")
MEASURED = "rank 0: 309 samples/s"


def lesson_with_a_prediction() -> nbformat.NotebookNode:
    said = [new_output("stream", text=MEASURED)]
    return new_notebook(
        cells=[
            new_code_cell("launch('ddp')", outputs=said),
            new_code_cell("guess = predict('speed', 'How many?')\nguess", outputs=said),
            new_markdown_cell("As [there](../src/snippets/horovod_ring.py)."),
            new_code_cell("launch('ddp')", outputs=said),
            new_code_cell("ranks = 2"),
        ]
    )


def test_what_answers_a_prediction_is_folded_and_the_question_is_not():
    page = pages.page_of(lesson_with_a_prediction())
    folded = [pages.FOLDED in cell.metadata.get("tags", []) for cell in page.cells]
    assert folded == [False, False, False, True, False]
    assert page.cells[2].source == "As [there](scripts.md#src-snippets-horovod-ring-py)."


def test_links_of_the_pages_behind_the_readme_lead_to_pages_or_are_words():
    course = pages.behind("notebooks/README.md")
    assert "[04 DDP](04_ddp.ipynb)" in course
    assert "[derived files](commands.md#derived-files)" in course
    assert "instructor's kit" in course
    assert "slides/kit" not in course, "which is not among the pages"
    assert "[first page](index.md#what-has-run-where)" in pages.behind("tools/INSTALL.md")
    assert "[subpackages](code.md#the-subpackages)" in pages.behind("src/README.md")


def test_the_first_page_says_what_has_run_where_as_the_readme_does():
    said = pages.section("What has run where", pages.behind("README.md"))
    assert said.startswith("`make test` is run on Linux")
    assert "[untested](installing.md#systems)" in said
    assert "GPU" in said
    assert "##" not in said
    assert said in pages.index(pages.executed_lessons(pages.ROOT / "notebooks"))


def test_a_prediction_without_its_field_is_the_question_and_the_unit():
    shown = new_output("display_data", {"text/html": "<p><b>Predict.</b> How many?<br>MB</p>"})
    notebook = new_notebook(cells=[new_code_cell("predict('bytes', '')", outputs=[shown])])
    page = pages.page_of(notebook).cells[0].outputs[0].data["text/html"]
    assert page == "<p><b>Predict.</b> How many? <i>(in MB)</i></p>"


def test_outputs_name_no_folder_of_the_machine():
    notebook = new_notebook(cells=[new_code_cell("here", outputs=[])])
    notebook.cells[0].outputs = [new_output("stream", text=f"in {Path.home()}/logs/run")]
    assert str(Path.home()) not in pages.page_of(notebook).cells[0].outputs[0].text


def test_every_term_is_explained_in_its_lesson():
    found = pages.terms()
    assert len({term.name.lower() for term in found}) == len(found)
    assert all(term.name.lower() in term.says.lower() for term in found)
    known = lessons.notebooks()
    assert [term.lesson.number for term in found] == sorted(
        (term.lesson.number for term in found), key=list(known).index
    )


def test_a_term_that_is_bold_nowhere_is_named(tmp_path, monkeypatch):
    listed = tmp_path / "terms.toml"
    listed.write_text('"04" = ["all-reduce", "all-to-none"]\n')
    monkeypatch.setattr(pages, "TERMS", listed)
    with pytest.raises(pages.PagesError, match="'all-to-none' is bold nowhere in 04_ddp.py"):
        pages.terms()


@pytest.mark.parametrize(
    ("said", "explained"),
    [
        ("**Ring** is one. It goes round. More.", "**Ring** is one. It goes round."),
        ("All send. This is a **ring**. Then on.", "All send. This is a **ring**. Then on."),
        ("A ring, not bold.", None),
    ],
)
def test_a_term_takes_the_sentences_that_explain_it(said, explained):
    assert pages.first_use("ring", [said]) == explained


def test_the_newest_course_with_most_lessons_is_taken(tmp_path):
    for name, numbers in (("1", ("00", "04")), ("2", ("00", "04")), ("3", ("04",))):
        (tmp_path / name).mkdir()
        for number in numbers:
            shutil.copy(lessons.find(number).notebook, tmp_path / name)
    assert pages.newest_course(tmp_path).name == "2"


def test_without_an_executed_lesson_a_sentence_says_what_to_run(tmp_path):
    (tmp_path / "20260101-000000").mkdir()
    with pytest.raises(pages.PagesError, match="make course"):
        pages.newest_course(tmp_path)


@pytest.mark.parametrize("named", ["gone", "file", "folder"])
def test_a_course_without_an_executed_lesson_is_no_course(named, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(sys, "argv", ["pages.py", "--course", str(tmp_path / named)])
    assert pages.main() == 2
    assert "has no executed lesson: `make course`" in capsys.readouterr().out


@pytest.mark.parametrize("there", ["mine.txt", "file", pages.BUILT, None])
def test_only_pages_of_an_earlier_build_are_removed(there, tmp_path):
    """A folder with anything else stays as it is, also where it was named by mistake."""
    output = tmp_path / "site"
    if there == "file":
        output.write_text("mine")
    else:
        output.mkdir()
    if there not in ("file", None):
        (output / there).write_text("mine")
    if there in ("file", "mine.txt"):
        with pytest.raises(pages.PagesError, match="no earlier build: name another folder"):
            pages.make_room(output)
        assert output.exists()
    else:
        pages.make_room(output)
    assert (output / "mine.txt").exists() == (there == "mine.txt")
    assert not (output / pages.BUILT).exists()


def test_pages_that_can_not_be_written_are_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(pages.PagesError, match="site can't be written: Not a directory"):
        pages.make_room(tmp_path / "file" / "site")


@pytest.mark.parametrize(
    ("ran", "error", "far", "says"),
    [
        ((None, None), "", page_notes.NEVER, "no outputs"),
        ((1, 2), "", page_notes.ENDED, "What answers a prediction is folded"),
        ((1, None), "", page_notes.STOPPED, "stopped early**"),
        ((1, None), "RunFailed", page_notes.STOPPED, "stopped early with RunFailed**"),
        ((1, 2), "RunFailed", page_notes.ENDED, "predict, then open"),  # it was meant to
    ],
)
def test_a_page_says_how_far_its_lesson_ran(ran, error, far, says):
    cells = [new_code_cell("1 / 0", execution_count=count) for count in ran]
    if error:
        cells[0].outputs = [new_output("error", ename=error, evalue="", traceback=[])]
    if error and far == page_notes.ENDED:
        cells[0].metadata["tags"] = ["raises-exception"]
    notebook = new_notebook(cells=cells, metadata={"ran": {"machine": "2 cores", "date": "today"}})
    note = page_notes.note(lessons.find("04"), notebook)
    assert page_notes.how_far(notebook) == far
    assert says in note
    assert "make lab LESSON=04" in note
    assert ("2 cores today" in note.replace(" on ", " ")) == (far != page_notes.NEVER)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ('<a href="gone.html">x</a>', "gone.html, which is not there"),
        ('<a href="#nowhere">x</a>', "#nowhere, and there is no such place"),
        ('<img src="https://example.org/a.png">', "loads https://example.org/a.png"),
        ('<link rel="stylesheet" href="//example.org/a.css">', "loads //example.org/a.css"),
        ('<a href="https://example.org">x</a><p id="here"></p><a href="#here">y</a>', None),
    ],
)
def test_wrong_links_are_named(tmp_path, body, complaint):
    (tmp_path / "page.html").write_text(f"<html><body>{body}</body></html>")
    found = page_links.wrong_links(tmp_path)
    assert [complaint in one for one in found] == ([True] if complaint else [])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Two lessons, their terms and the errors of theirs, built."""
    root = tmp_path_factory.mktemp("site")
    known, entries = lessons.notebooks(), pages.errors.ENTRIES
    few = {number: known[number] for number in LESSONS}
    listed = root / "terms.toml"
    listed.write_text('"00" = ["rank", "loss"]\n"04" = ["all-reduce"]\n')
    for lesson in few.values():
        shutil.copy(lesson.notebook, root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lessons, "notebooks", lambda: few)
        patch.setattr(pages.errors, "ENTRIES", [e for e in entries if e.lesson in few][:4])
        patch.setattr(pages, "TERMS", listed)
        patch.setattr(pages, "SCRIPTS", ("src/_train_ddp.py", "src/snippets/threads*.py"))
        complaints = pages.build(root, root / "built")
    assert complaints == []
    return root / "built"


def test_the_pages_load_nothing_from_elsewhere_and_lead_somewhere(site):
    assert page_links.wrong_links(site) == []
    names = {path.name for path in site.glob("*.html")}
    assert {"index.html", "04_ddp.html", "glossary.html", "errors.html", "scripts.html"} <= names
    assert {f"{name}.html" for name in pages.BEHIND.values()} <= names
    (site / "glossary.html").rename(site / "moved.html")
    try:
        assert any("glossary.html, which is not there" in x for x in page_links.wrong_links(site))
    finally:
        (site / "moved.html").rename(site / "glossary.html")


def test_what_the_explorers_show_is_the_theory():
    runs = explorers.make_data("collective")["runs"]
    ring = runs["all-reduce by a ring 4"]
    assert ring["moments"][-1] == ring["wanted"] == [[15] * 4] * 4
    assert ring["moments"][0] == [[1 << rank] * 4 for rank in range(4)]
    for kind in explorers.KINDS:
        data = json.loads(json.dumps(explorers.make_data(kind)))
        for control in data["controls"]:
            assert 0 <= control["initial"] < len(control["options"])
    charts = explorers.make_data("pipeline_schedule")["charts"]
    assert charts["1f1b 2 1"] == "1f1b over 2 ranks needs at least 2 micro-batches, not 1"


def test_an_explorer_begins_on_the_site_as_in_its_lesson():
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell("controls = simulators.pipeline_schedule(ranks=8)")]
    (output,) = pages.page_of(notebook).cells[0].outputs
    numbers = output.data["text/html"].split('application/json">')[1].split("</script>")[0]
    controls = {control["name"]: control for control in json.loads(numbers)["controls"]}
    ranks = controls["ranks"]
    assert ranks["options"][ranks["initial"]][1] == 8


def explore_ddp(shown) -> None:
    """By keys: twice the ranks. The step's end is the theory's."""
    layers = model_shapes.layers(*explorers.MODELS["GPT-2, 124 M"])
    for ranks in (8, 16):
        step = overlap.predict_step(layers, None, ranks, 12.5e9, 20e-6, 0.2)
        title = shown.locator(".explorer-title").inner_text()
        milliseconds = float(title.split("a step of ")[1].removesuffix(" ms"))
        assert f"on {ranks} ranks" in title
        assert milliseconds == pytest.approx(1e3 * step.ended, rel=5e-3)
        shown.locator("input[name=ranks]").press("ArrowRight")


def explore_a_collective(shown) -> None:
    """By mouse: a step further, and another collective."""
    picture, step = shown.get_by_role("img"), shown.locator("input[name=step]")
    before = picture.get_attribute("aria-label")
    assert "All-reduce by a ring, 4 ranks: after step 2 of 6" in before
    room = step.bounding_box()
    step.click(position={"x": room["width"] - 2, "y": room["height"] / 2})
    assert "after step 6 of 6" in picture.get_attribute("aria-label")
    shown.locator("select[name=way]").select_option(label="broadcast by a tree")
    assert "Broadcast by a tree, 4 ranks: after step 2 of 2" in picture.get_attribute("aria-label")


def violations(page) -> list[tuple[str, str]]:
    """What axe-core calls serious or critical: (rule, the first element's HTML)."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page).response["violations"]
    grave = [one for one in found if one["impact"] in ("serious", "critical")]
    return [(one["id"], one["nodes"][0]["html"]) for one in grave]


CUT_OFF = """() => [...document.querySelectorAll(".explorer")]
  .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.dataset.kind)"""


def barriers(page, site: Path, address: str) -> list:
    """Violations of a page, all of it unfolded, on a light and a dark screen and on a phone's,
    and whether it scrolls sideways."""
    path, _, query = address.partition("?")
    found = []
    for scheme, width in (("light", 1440), ("dark", 390)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(f"{(site / path).as_uri()}?{query}")
        page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        page.evaluate("Promise.all(document.getAnimations().map((one) => one.finished))")  # fades
        found += [(scheme, *one) for one in violations(page)]
        wide = page.evaluate("document.documentElement.scrollWidth")
        found += [(scheme, f"{wide} pixels wide")] if wide > width else []
        found += [(scheme, f"{name}: its picture is cut off") for name in page.evaluate(CUT_OFF)]
    return found


@pytest.mark.skipif(chromium.PATH is None, reason="no Chromium on this machine")
def test_search_and_explorers_work_in_a_browser_without_a_network(site):
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium.PATH, args=chromium.FLAGS)
        page, asked, wrong = browser.new_page(), [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto((site / "index.html").as_uri())
        page.locator(".sidebar-search").press_sequentially("all-reduce")
        page.keyboard.press("Enter")
        page.get_by_text("Search finished").wait_for()
        results = page.locator("#search-results li").all_inner_texts()
        found = {result.split(">")[0].splitlines()[0].strip() for result in results}
        assert {"Terms", "04 Distributed data parallel: one model, several ranks"} <= found, found
        page.goto((site / "04_ddp.html").as_uri())
        assert page.locator("h1").count() == 1
        explore_ddp(page.locator(".explorer[data-kind=ddp_step]"))
        explore_a_collective(page.locator(".explorer[data-kind=collective]"))
        seen = {address: barriers(page, site, address) for address in LOOKED_AT}
        page.set_content('<html lang="en"><title>t</title><img src="data:,"></html>')
        assert [name for name, _ in violations(page)] == ["image-alt"]
        browser.close()
    assert seen == dict.fromkeys(LOOKED_AT, [])
    assert wrong == []
    assert asked
    assert all(url.startswith(("file:", "data:")) for url in asked)
