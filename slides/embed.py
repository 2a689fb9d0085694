"""A figure of the course as a part of a slide: title and foot as text, the drawing as SVG.

The lessons draw for a notebook. On a slide the same drawing is read from the last row: its letters
are enlarged to SMALLEST_PX pixels of a stage of 1280 x 720, and title and foot become the slide's
own text. SVG stays crisp at every size and holds no font.
"""

import base64
import html
import io
import re

from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from bootcamp.drawing.style import STYLE, alt

WIDTH = 1184  # pixels of the stage that a drawing may be wide
PLOT_PX_PER_INCH = 128  # so a plot's letters of 14 points are 25 pixels high
SMALLEST_PX = 21
SIGN_PX = 16  # of what keeps its size: signs, and words in a box that has no room for larger ones
APART_PX = 4  # between words and a box that is not theirs, of the figure as it was drawn
SIGN = 2  # characters: as short as this it is a sign in a small box, and keeps its size
TITLE_INCHES = 0.5  # what a picture's title has taken


def to_html(figure: Figure, height: float, title: bool) -> str:
    """An HTML figure that takes at most WIDTH x height pixels, title and foot not counted.

    title: whether the figure's own title stands above the drawing.
    """
    words, foot = figure.get_suptitle(), figure.get_supxlabel()
    says = alt(figure)
    _take_out_text(figure)
    px_per_inch = _fit(figure, height)
    _enlarge_letters(figure, px_per_inch)
    wide, high = (px_per_inch * inches for inches in figure.get_size_inches())
    data = base64.b64encode(_svg(figure)).decode()
    parts = [f"<figcaption>{html.escape(' '.join(words.split()))}</figcaption>"] if title else []
    parts.append(
        f'<img src="data:image/svg+xml;base64,{data}" alt="{html.escape(says)}" '
        f'width="{wide:.0f}" height="{high:.0f}">'
    )
    if foot:
        parts.append(f'<p class="foot">{html.escape(_tidy(foot))}</p>')
    return f"<figure>{''.join(parts)}</figure>"


def _tidy(foot: str) -> str:
    """The foot as one paragraph; names of runs follow each other, and break at no hyphen."""
    foot = " ".join(foot.split()).replace(", recorded run ", ", ")
    return re.sub(r"(?<=\w)-(?=\w)", "\N{NON-BREAKING HYPHEN}", foot)


def _take_out_text(figure: Figure) -> None:
    """Empty title and foot, and the room that a legend keeps for the title."""
    figure.suptitle("").set_in_layout(False)
    figure.supxlabel("").set_in_layout(False)
    for each in figure.legends:
        each.set_title(None)


def _fit(figure: Figure, height: float) -> float:
    """Give the figure its size in inches for the room there is; returns pixels of an inch.

    A plot is laid out anew. A picture, which has no axis, keeps its proportions, since what stands
    in its boxes has to fit them.
    """
    if _is_plot(figure):
        figure.set_size_inches(WIDTH / PLOT_PX_PER_INCH, height / PLOT_PX_PER_INCH)
        _lay_down_labels(figure)
        return PLOT_PX_PER_INCH
    wide, high = figure.get_size_inches()
    figure.set_size_inches(wide, high - TITLE_INCHES)
    figure.set_layout_engine("none")  # it would make room for text beside the axes
    for axes in figure.axes:
        axes.set_position((0.005, 0.01, 0.99, 0.98))
    return min(WIDTH / wide, height / (high - TITLE_INCHES))


def _lay_down_labels(figure: Figure) -> None:
    """Write a y label over its axes if it is longer than they are high."""
    if any(axes.get_ylabel() for axes in figure.axes):
        figure.draw_without_rendering()
    for axes in figure.axes:
        words = axes.get_ylabel()
        if words and axes.yaxis.label.get_window_extent().height > axes.bbox.height:
            axes.set_ylabel("")
            axes.set_title(words, loc="left", fontsize=STYLE["axes.labelsize"], pad=12)


def _is_plot(figure: Figure) -> bool:
    return any(axes.axison for axes in figure.axes)


def _enlarge_letters(figure: Figure, px_per_inch: float) -> None:
    """Make small letters SMALLEST_PX high; in a picture as far as they stay in their boxes."""
    points, boxes = SMALLEST_PX * 72 / px_per_inch, []
    if not _is_plot(figure):
        patches = [each for axes in figure.axes for each in axes.patches]
        kinds = (FancyBboxPatch, Rectangle)
        boxes = [each.get_window_extent() for each in patches if isinstance(each, kinds)]
    for text in figure.findobj(Text):
        if text.get_fontsize() < points and len(text.get_text().strip()) > SIGN:
            _enlarge(text, points, boxes, figure.bbox)


def _enlarge(text: Text, points: float, boxes: list[Bbox], page: Bbox) -> None:
    """Set the largest size up to `points` that has room, on two lines if that helps."""
    size, words = text.get_fontsize(), text.get_text()
    two_lines = words if "\n" in words else words.replace(" ", "\n", 1)
    for step in range(7):
        text.set_fontsize(points + (0.94 * size - points) * step / 6)
        for each in (words, two_lines):
            text.set_text(each)
            if not boxes or _is_free(text.get_window_extent(), boxes, page):
                return
    text.set_text(words)


def _is_free(words: Bbox, boxes: list[Bbox], page: Bbox) -> bool:
    """Whether text stays in the boxes around its middle, out of all others, and on the page."""
    x, y = (words.x0 + words.x1) / 2, (words.y0 + words.y1) / 2
    around = [box for box in boxes if box.contains(x, y)]
    others = [box for box in boxes if not box.contains(x, y)]
    wide = all(box.x0 < words.x0 and words.x1 < box.x1 for box in [*around, page])
    high = all(box.y0 < words.y0 + 2 and words.y1 - 2 < box.y1 for box in around)
    return wide and high and not any(words.overlaps(box.padded(APART_PX)) for box in others)


def _svg(figure: Figure) -> bytes:
    """The drawing; the same bytes for the same figure, and no word about when and by what."""
    content = io.BytesIO()
    with style.context({**STYLE, "svg.hashsalt": "bootcamp"}, after_reset=True):
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    return content.getvalue()
