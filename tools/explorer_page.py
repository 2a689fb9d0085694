"""Explorers on static pages and slides: an explorer's <div>, and the script that draws them."""

import html
import json

from bootcamp_lessons import explorers

EXPORTS = "export default { render };"


def render_div(kind: str, pixels: tuple[float, float] | None = None, **initial) -> str:
    """Return an explorer's <div>, which script() fills.

    pixels: (width while it is hidden, largest height).
    """
    data = explorers.make_data(kind, **initial)
    numbers = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    look = ' data-width="{}" style="--explorer-height: {}px"'.format(*pixels) if pixels else ""
    return (
        f'<div class="explorer" data-kind="{html.escape(kind)}"{look}><noscript>'
        f"{explorers.make_fallback_table(kind, data)._repr_html_()}</noscript>"
        f'<script type="application/json">{numbers}</script></div>'
    )


def script() -> str:
    """Return explorers.js for pages that can't load modules; it draws every explorer's <div>."""
    text = explorers.SCRIPT.read_text().replace(EXPORTS, "")
    start = 'document.addEventListener("DOMContentLoaded", exploreAll);'
    return f"(() => {{\n{text}\n{start}\n}})();\n"
