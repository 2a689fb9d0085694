"""The explorers: what explorers.js draws is the theory, in a page and by the kernel's controls."""

import chromium
import pytest

pytest.importorskip("matplotlib")
from bootcamp.costs import memory, model_shapes
from bootcamp_lessons import explorers, simulators


@pytest.fixture
def shown(monkeypatch):
    """What is displayed, each as its bundle by MIME type."""
    pytest.importorskip("anywidget")
    from bootcamp_lessons import explorer_widget

    bundles = []
    monkeypatch.setattr(explorer_widget, "display", lambda bundle, raw: bundles.append(bundle))
    return bundles


def test_a_widget_has_a_still_for_pages_without_a_kernel(shown):
    for kind in explorers.KINDS:
        getattr(simulators, kind)()
        assert {"application/vnd.jupyter.widget-view+json", "text/plain"} < set(shown[-1])
        assert "<table>" in shown[-1]["text/html"]


def test_what_a_call_begins_with_can_be_chosen(shown):
    chosen = {"schedule": "gpipe", "ranks": 6, "micro_batches": 12}
    assert simulators.pipeline_schedule(**chosen).choice == chosen
    found = simulators.collective(way="all-to-all by pairs", ranks=8)
    assert found.choice["way"] == "all-to-all by pairs"
    simulators.pipeline_schedule(micro_batches=3)
    assert "needs at least 4 micro-batches" in shown[-1]["text/html"], "1f1b on 4 ranks"
    with pytest.raises(ValueError, match="model: 'GPT-9' can't be chosen, but GPT tiny"):
        simulators.memory(model="GPT-9")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """All explorers in one page that is opened from the disk."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if chromium.PATH is None:
        pytest.skip("no Chromium on this machine")
    given = {"pipeline_schedule": {"ranks": 2, "micro_batches": 4}, "collective": {"ranks": 8}}
    body = "".join(explorers.render_div(kind, **given.get(kind, {})) for kind in explorers.KINDS)
    path = tmp_path_factory.mktemp("explorers") / "page.html"
    head = '<meta charset="utf-8"><body style="font: 14px sans-serif">'
    path.write_text(f"{head}{body}<script>{explorers.script()}</script>")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium.PATH, args=chromium.FLAGS)
        page, wrong = browser.new_page(viewport={"width": 1024, "height": 800}), []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(path.as_uri())
        yield page
        browser.close()
    assert wrong == []


def says(page, kind: str) -> str:
    return page.locator(f"[data-kind={kind}] svg[role=img]").get_attribute("aria-label")


def test_memory_is_the_theorys_for_any_choice(page):
    shown = page.locator("[data-kind=memory]")
    shown.locator("input[name=samples]").press("End")
    shown.locator("select[name=kept]").select_option(label="all")
    shown.locator("input[name=shard]").press("ArrowRight")
    model = model_shapes.published_gpts()["7.5 B"]
    held = memory.by_strategy(model, 64, 16, "bf16 mixed", 32, "all")
    said = dict(one.split(": ", 1) for one in says(page, "memory").split(". ", 1)[1].split("; "))
    assert list(said) == list(held)
    for name, kinds in held.items():
        if isinstance(kinds, str):
            assert said[name].rstrip(".") == kinds
            continue
        number, unit = said[name].split(":")[0].split()
        size = float(number) * {"TB": 1e12, "GB": 1e9}[unit]
        assert size == pytest.approx(sum(kinds.values()), rel=6e-3)


def test_a_schedule_has_a_box_for_each_action(page):
    shown = page.locator("[data-kind=pipeline_schedule]")
    assert "in theory: bubble 0.25" in says(page, "pipeline_schedule")
    numbers = shown.locator("svg[role=img] text").all_text_contents()
    drawn = [numbers.count(f"{batch}") for batch in range(4)]
    assert drawn == [4, 5, 5, 5], "forward and backward on two ranks; the graph has 1 to 3 too"
    shown.locator("input[name=micro_batches]").press("ArrowRight")
    assert "1f1b, 2 ranks, 6 micro-batches" in shown.locator(".explorer-title").inner_text()


def test_a_slider_ends_with_the_last_step_and_ranks_are_kept(page):
    shown = page.locator("[data-kind=collective]")
    shown.locator("input[name=step]").press("End")
    assert "8 ranks: after step 14 of 14" in says(page, "collective")
    shown.locator("select[name=way]").select_option(label="all-to-all by pairs")
    assert "8 ranks: after step 7 of 7" in says(page, "collective")
    assert shown.locator("output").all_text_contents() == ["8", "7"], "not beyond the last"
    boxes = shown.locator("svg[role=img] text").all_text_contents()
    assert sum("→" in text for text in boxes) == 2 * 64 - 8, "what was sent is still there"


def test_every_control_has_a_name_and_says_its_value(page):
    inputs = page.locator(".explorer input, .explorer select").all()
    assert len(inputs) == 3 + 6 + 6 + 3
    for one in inputs:
        assert one.evaluate("(one) => one.labels.length") == 1
        if one.get_attribute("type") == "range":
            assert one.get_attribute("aria-valuetext")
    assert page.get_by_role("status").count() == 0, "a slider says its value, and says it once"


def test_a_narrow_page_is_drawn_anew_and_print_has_no_controls(page):
    wide = page.locator("[data-kind=ddp_step] svg[role=img]").bounding_box()["width"]
    page.set_viewport_size({"width": 480, "height": 800})
    drawn = "document.querySelector('[data-kind=ddp_step] svg[role=img]')"
    assert wide > 480
    page.wait_for_function(f"{drawn}.getBoundingClientRect().width < 480")
    page.emulate_media(media="print")
    assert not page.locator(".explorer-controls").first.is_visible()
    assert page.locator(".explorer svg[role=img]").first.is_visible()
