"""The course as static pages: what is folded, the terms, the links, and pages in a browser offline.

Two lessons and the first errors are built once, from their notebooks as they are stored.
"""

import json
import shutil
from pathlib import Path

import chromium
import lessons
import nbformat
import pages
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

pytestmark = pytest.mark.filterwarnings("ignore:.*MystReferenceResolver")
LESSONS = ("00", "04")
LOOKED_AT = ("index.html", "04_ddp.html", "errors.html", "search.html?q=rank")


def test_answers_of_a_prediction_are_folded_and_its_question_is_not():
    said = [new_output("stream", text=f"309 samples/s, in {Path.home()}/logs/run")]
    asked = new_output("display_data", {"text/html": "<p><b>Predict.</b> How many?<br>MB</p>"})
    cells = [
        new_code_cell("launch('ddp')", outputs=said),
        new_code_cell("guess = predict('speed', 'How many?')\nguess", outputs=[asked]),
        new_markdown_cell("As [there](../src/snippets/horovod_ring.py), not [here](../LICENSE)."),
        new_code_cell("launch('ddp')", outputs=said),
        new_code_cell("ranks = 2"),
        new_code_cell("controls = simulators.pipeline_schedule(ranks=8)"),
    ]
    page = pages.page_of(new_notebook(cells=cells))
    folded = [pages.FOLDED in cell.metadata.get("tags", []) for cell in page.cells]
    assert folded == [False, False, False, True, False, False]
    assert page.cells[2].source == "As [there](scripts.md#src-snippets-horovod-ring-py), not here."
    assert str(Path.home()) not in page.cells[3].outputs[0].text
    explorer = page.cells[5].outputs[0].data["text/html"]
    data = explorer.split('application/json">')[1].split("</script>")[0]
    ranks = next(one for one in json.loads(data)["controls"] if one["name"] == "ranks")
    assert ranks["options"][ranks["initial"]][1] == 8, "it begins as in its lesson"


def test_terms_are_explained_in_their_lessons(tmp_path, monkeypatch):
    assert pages.glossary().count("\n\n") > 150
    listed = tmp_path / "terms.toml"
    listed.write_text('"04" = ["all-reduce", "all-to-none"]\n')
    monkeypatch.setattr(pages, "TERMS", listed)
    with pytest.raises(pages.PagesError, match="'all-to-none' is bold nowhere in 04_ddp.py"):
        pages.glossary()


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, list[str]]:
    """Two lessons, their terms and the errors of theirs, built: the folder, and what was wrong.

    Lesson 00 has three mistakes.
    """
    root = tmp_path_factory.mktemp("site")
    known, entries = lessons.notebooks(), pages.errors.ENTRIES
    few = {number: known[number] for number in LESSONS}
    listed = root / "terms.toml"
    listed.write_text('"00" = ["rank", "loss"]\n"04" = ["all-reduce"]\n')
    for lesson in few.values():
        shutil.copy(lesson.notebook, root)
    first = root / few["00"].notebook.name
    notebook = nbformat.read(first, 4)
    script = new_output("display_data", {"text/html": '<script src="//example.org/a.js"></script>'})
    notebook.cells += [
        new_markdown_cell("[page](gone.md) [place](04_ddp.ipynb#nowhere)"),
        new_code_cell("fetch", outputs=[script]),
    ]
    nbformat.write(notebook, first)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lessons, "notebooks", lambda: few)
        patch.setattr(lessons, "ways", lambda: "| Ways |\n|---|")
        patch.setattr(pages.errors, "ENTRIES", [e for e in entries if e.lesson in few][:4])
        patch.setattr(pages, "TERMS", listed)
        patch.setattr(pages, "SCRIPTS", ("src/_train_ddp.py", "src/snippets/threads*.py"))
        complaints = pages.build(root, root / "built")
    return root / "built", complaints


def test_wrong_links_and_what_would_be_loaded_are_named_and_nothing_else(built):
    site, complaints = built
    assert len(complaints) == 3, complaints
    for words in ("gone.md", "nowhere", "00_start_here.html loads //example.org/a.js"):
        assert any(words in one for one in complaints), complaints
    names = {path.name for path in site.glob("*.html")}
    assert {"index.html", "04_ddp.html", "glossary.html", "errors.html", "scripts.html"} <= names


def violations(page) -> list[tuple[str, str]]:
    """List what axe-core calls serious or critical: (rule, the first element's HTML)."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page).response["violations"]
    grave = [one for one in found if one["impact"] in ("serious", "critical")]
    return [(one["id"], one["nodes"][0]["html"]) for one in grave]


CUT_OFF = """() => [...document.querySelectorAll(".explorer")]
  .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.dataset.kind)"""


def barriers(page, site: Path, address: str) -> list:
    """List violations of a page, all of it unfolded, on a light wide screen and a dark narrow one,
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


@pytest.mark.slow
@pytest.mark.skipif(chromium.why_not() is not None, reason="no Chromium on this machine")
def test_search_and_explorers_work_in_a_browser_without_a_network(built):
    site, _ = built
    with chromium.tab() as page:
        page.goto((site / "index.html").as_uri())
        page.locator(".sidebar-search").press_sequentially("all-reduce")
        page.keyboard.press("Enter")
        page.get_by_text("Search finished").wait_for()
        results = page.locator("#search-results li").all_inner_texts()
        found = {result.split(">")[0].splitlines()[0].strip() for result in results}
        assert {"Terms", "04 Distributed data parallel: one model, several ranks"} <= found, found
        page.goto((site / "04_ddp.html").as_uri())
        assert page.locator("h1").count() == 1
        shown = page.locator(".explorer[data-kind=ddp_step]")
        shown.locator("input[name=ranks]").press("ArrowRight")
        assert "on 16 ranks" in shown.locator(".explorer-title").inner_text()
        assert {one: barriers(page, site, one) for one in LOOKED_AT} == dict.fromkeys(LOOKED_AT, [])
        page.set_content('<html lang="en"><title>t</title><img src="data:,"></html>')
        assert [name for name, _ in violations(page)] == ["image-alt"]
