"""python tools/slides.py [NAME ...] [--records logs/reference/xeon-2core] [--html]

Make slides/build/*.html and *.pdf from slides/*.md: files that need no network when they are shown.
The PDF is printed by Chromium; without one, a sentence says that only the HTML is made.

A deck is Markdown; each heading of level 1 is a slide, with {minutes=2} and a `::: notes` block.
What may change elsewhere is not typed into a deck but asked for, in Jinja2's syntax, and looked up
at every build: {{ diff("gpu", "ddp") }} calls a function of slides/lookups.py, which
slides/README.md explains.

--records says which machine's runs are meant: those in the folders that begin so, which
tools/recorders/reference.py makes. A run with a slash, such as 08_hsdp/ddp-open, is one of
logs/reference/.
"""

import argparse
import re
import sys
import time
import traceback
from pathlib import Path

import explorer_page
import jinja2
import lessons
import pypandoc

ROOT = Path(__file__).resolve().parents[1]
SLIDES = ROOT / "slides"
sys.path[:0] = [str(SLIDES), str(ROOT / "tests")]
import chromium  # noqa: E402
import lookups  # noqa: E402
from lookups import SlideError  # noqa: E402

from bootcamp.paths import OWN, shown  # noqa: E402

BUILD = OWN / "slides" / "build"
MISTAKES = (TypeError, ValueError, OSError)  # of a call in a deck
PANDOC = (
    "--standalone",
    "--embed-resources",  # style, keys and pictures; what can't be put into the page is a warning
    "--fail-if-warnings",
    f"--resource-path={SLIDES}",
    f"--template={SLIDES / 'deck.html'}",
    "--mathml",
    "--slide-level=1",
)
PICTURE = re.compile(r'(?<=src=")data:image/svg\+xml;base64,[^"]+')
TEMPLATES = jinja2.Environment(
    undefined=jinja2.StrictUndefined,
    keep_trailing_newline=True,
    comment_start_string="{{!",  # {# begins an attribute of pandoc's
    comment_end_string="!}}",
)


def resolve(deck: str, name: str) -> str:
    """Look up all that a deck asks for. Raises SlideError, naming deck and line."""
    try:
        minutes = lessons.minutes_of_deck(deck)
        return TEMPLATES.from_string(deck).render(**lookups.ASKED, minutes=minutes)
    except (SlideError, lessons.LessonError, jinja2.TemplateError, *MISTAKES) as error:
        frames = traceback.extract_tb(error.__traceback__)
        rows = [frame.lineno for frame in frames if frame.filename == "<template>"]
        row = getattr(error, "lineno", None) or rows[-1]  # a syntax error brings its own
        text = deck.splitlines()[row - 1].strip()
        raise SlideError(f"{name}, line {row}, {text}: {error}") from None


def build(source: Path, folder: Path) -> Path:
    """Write one deck as one HTML file and return its path. Raises SlideError."""
    deck = resolve(source.read_text(), source.name)
    form, drawn = "markdown-implicit_figures", PICTURE.findall(deck)
    deck = PICTURE.sub("data:,", deck)  # pandoc would read every letter of them
    try:
        page = pypandoc.convert_text(deck, "dzslides", format=form, extra_args=PANDOC)
    except RuntimeError as error:
        raise SlideError(f"{source.name}: {error}") from None
    page = re.sub('(?<=src=")data:,(?=")', lambda _: drawn.pop(0), page)
    if 'class="explorer"' in page:
        page = page.replace("</body>", f"<script>\n{explorer_page.script()}</script>\n</body>")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{source.stem}.html"
    target.write_text(page)
    return target


def print_pdfs(pages: list[Path]) -> list[Path]:
    """Print each HTML file as a PDF beside it, a page for each slide, in one Chromium."""
    targets = [page.with_suffix(".pdf") for page in pages]
    with chromium.tab() as tab:
        for page, target in zip(pages, targets, strict=True):
            tab.goto(page.as_uri())
            tab.pdf(path=target, prefer_css_page_size=True, print_background=True)
    return targets


def decks() -> list[Path]:
    """List the sources of all decks."""
    return sorted(path for path in SLIDES.glob("*.md") if path.name != "README.md")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="decks to make, such as day 04_ddp (default: all)")
    parser.add_argument(
        "--records", type=Path, default=lookups.RECORDS, help="FOLDER/MACHINE of the runs"
    )
    parser.add_argument("--html", action="store_true", help="print no PDF")
    args = parser.parse_args()
    lookups.RECORDS = (ROOT / args.records).resolve()
    unknown = set(args.names) - {path.stem for path in decks()}
    if unknown:
        parser.error(f"no deck {', '.join(unknown)}: there is {', '.join(p.stem for p in decks())}")
    wanted = [source for source in decks() if not args.names or source.stem in args.names]
    began = time.monotonic()
    try:
        made = [build(source, BUILD) for source in wanted]
        if not args.html and (why := chromium.why_not()):
            print(f"No PDF: {why}")
        elif not args.html:
            made += print_pdfs(made)
    except SlideError as error:
        print(f"{error}", file=sys.stderr)
        return 1
    for path in made:
        print(f"{shown(path)}: {path.stat().st_size / 1e3:.0f} kB")
    print(f"{len(wanted)} decks in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
