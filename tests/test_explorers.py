"""Explorers: a table where they can't be drawn; explorers.js draws the theory for any choice."""

import chromium
import explorer_page
import pytest

pytest.importorskip("matplotlib")
from bootcamp.costs import memory, model_shapes, overlap, pipeline_schedules
from bootcamp_lessons import explorers, simulators

# Tables


def tabulate(kind, **initial):
    """What is shown where an explorer can't be, its columns a blank apart."""
    table = explorers.make_fallback_table(kind, explorers.make_data(kind, **initial))
    return " ".join(str(table).split())


# A choice of an explorer, and what its table says of it.
TABLES = [
    ("collective", {"step": 0}, "all-reduce by a ring, 4 ranks, after step 0 of 6. Each rank has"),
    ("collective", {"step": 3}, "1 chunk 2 to 2 chunk 0 (1), chunk 1 (0+1+2+3)"),
    ("ddp_step", {}, "50 7 30.6 ms 231 ms"),
    ("ddp_step", {}, "Predicted by a model, nothing here is measured"),
    ("memory", {"samples": 0}, "ZeRO-1 15 GB 15 GB 1.41 GB 0 bytes 31.4 GB 40 GB"),
    ("memory", {"model": "175 B", "ranks": 1, "samples": 32}, " none "),
    ("memory", {"model": "7.5 B", "ranks": 64}, "32 heads do not divide over 64 ranks"),
    ("pipeline_schedule", {"schedule": "1f1b", "micro_batches": 3}, "at least 4 micro-batches"),
]
TABLES += [
    ("collective", {"way": way, "ranks": ranks, "step": 14}, "All is done")
    for way in explorers.list_algorithms()
    for ranks in (2, 8)
]
TABLES += [("ddp_step", {"model": name, "ranks": 1024}, name) for name in explorers.MODELS]
TABLES += [
    ("pipeline_schedule", {"schedule": name, "ranks": 3, "micro_batches": 6}, f"{name}, 3 ranks, 6")
    for name in pipeline_schedules.SCHEDULES
]


@pytest.mark.parametrize(("kind", "choice", "says"), TABLES)
def test_table_shows_any_choice_or_says_why_not(kind, choice, says):
    assert says in tabulate(kind, **choice)


def test_page_without_widgets_shows_one_choice_of_each(monkeypatch, capsys):
    monkeypatch.setenv(simulators.VARIABLE, "0")
    shown = []
    monkeypatch.setattr(simulators, "display", shown.append)
    for kind in explorers.KINDS:
        assert getattr(simulators, kind)() is None
        assert f"simulators.{kind}(...) shows another" in capsys.readouterr().out
        assert " ".join(str(shown.pop()).split()) == tabulate(kind)


def test_widget_has_a_still_of_the_choice_that_it_begins_with(monkeypatch):
    pytest.importorskip("anywidget")
    from bootcamp_lessons import explorer_widget

    shown = []
    monkeypatch.setattr(explorer_widget, "display", lambda bundle, raw: shown.append(bundle))
    for kind in explorers.KINDS:
        getattr(simulators, kind)()
        assert {"application/vnd.jupyter.widget-view+json", "text/plain"} < set(shown[-1])
        assert "<table>" in shown[-1]["text/html"]
    chosen = {"schedule": "gpipe", "ranks": 6, "micro_batches": 12}
    assert simulators.pipeline_schedule(**chosen).choice == chosen
    simulators.pipeline_schedule(micro_batches=3)
    assert "needs at least 4 micro-batches" in shown[-1]["text/html"], "1f1b on 4 ranks"
    with pytest.raises(ValueError, match="model: 'GPT-9' can't be chosen, but GPT tiny"):
        simulators.memory(model="GPT-9")


# Explorers on a page


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """All explorers in one page that is opened from the disk."""
    if why := chromium.why_not():
        pytest.skip(why)
    given = {"pipeline_schedule": {"ranks": 2, "micro_batches": 4}, "collective": {"ranks": 8}}
    body = "".join(
        explorer_page.render_div(kind, **given.get(kind, {})) for kind in explorers.KINDS
    )
    path = tmp_path_factory.mktemp("explorers") / "page.html"
    head = '<meta charset="utf-8"><body style="font: 14px sans-serif">'
    path.write_text(f"{head}{body}<script>{explorer_page.script()}</script>")
    with chromium.tab(1024, 800) as page:
        page.goto(path.as_uri())
        yield page


def says(page, kind: str) -> str:
    return page.locator(f"[data-kind={kind}] svg[role=img]").get_attribute("aria-label")


def test_memory_on_a_page_is_the_theorys(page):
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


def test_ddp_step_on_a_page_ends_with_the_theorys(page):
    layers = model_shapes.layers(*explorers.MODELS["GPT-2, 124 M"])
    shown = page.locator("[data-kind=ddp_step]")
    for ranks in (8, 16):
        step = overlap.predict_step(layers, None, ranks, 12.5e9, 20e-6, 0.2)
        title = shown.locator(".explorer-title").inner_text()
        milliseconds = float(title.split("a step of ")[1].removesuffix(" ms"))
        assert f"on {ranks} ranks" in title
        assert milliseconds == pytest.approx(1e3 * step.ended, rel=5e-3)
        shown.locator("input[name=ranks]").press("ArrowRight")


def test_schedule_on_a_page_has_a_box_for_each_action(page):
    shown = page.locator("[data-kind=pipeline_schedule]")
    assert "in theory: bubble 0.25" in says(page, "pipeline_schedule")
    numbers = shown.locator("svg[role=img] text").all_text_contents()
    drawn = [numbers.count(f"{batch}") for batch in range(4)]
    assert drawn == [4, 5, 5, 5], "forward and backward on two ranks; the graph has 1 to 3 too"
    shown.locator("input[name=micro_batches]").press("ArrowRight")
    assert "1f1b, 2 ranks, 6 micro-batches" in shown.locator(".explorer-title").inner_text()
