"""python tools/slides.py [NAME ...] [--records logs/reference/xeon-2core] [--html]

Make slides/build/*.html and *.pdf from slides/*.md: files that need no network when they are shown.
The PDF is printed by Chromium; without one, a sentence says that only the HTML is made.

A deck is Markdown; each heading of level 1 is a slide, with {minutes=2} and a `::: notes` block.
What may change elsewhere is not typed into a deck but asked for, in Jinja2's syntax, and looked up
at every build: {{ diff("gpu", "ddp") }} calls a function of slides/lookups.py, which
slides/README.md explains.

--records says which machine's runs are meant: those in the folders that begin so, which
tools/reference.py makes. A run with a slash, such as 08_hsdp/ddp-open, is one of logs/reference/.
"""

import argparse
import base64
import importlib.util
import mimetypes
import re
import sys
import time
import traceback
from pathlib import Path

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
from bootcamp_lessons import explorers  # noqa: E402

BUILD = OWN / "slides" / "build"

PARTS = (("style", "deck.css"), ("script", "deck.js"))
MISTAKES = (TypeError, ValueError, OSError)  # of a call in a deck
# what a browser would load or go to: an attribute or a style that names another host
EXTERNAL = re.compile(
    r"""(?:src|srcset|href|data|action|poster)\s*=\s*["']?\s*(?:https?:)?//[^\s"'>]+"""
    r"""|url\(\s*["']?\s*(?:https?:)?//[^\s"')]+|@import[^;]*""",
    re.IGNORECASE,
)
LOCAL_IMAGE = re.compile(r'(<img[^>]*\bsrc=")(?!data:)([^"]+)"')
TEMPLATES = jinja2.Environment(
    undefined=jinja2.StrictUndefined,
    keep_trailing_newline=True,
    comment_start_string="{{!",  # {# begins an attribute of pandoc's
    comment_end_string="!}}",
)


def resolve(deck: str, name: str) -> str:
    """A deck's text with everything looked up. Raises SlideError, naming deck and line."""
    try:
        minutes = lessons.minutes_of_deck(deck)
        return TEMPLATES.from_string(deck).render(**lookups.ASKED, minutes=minutes)
    except (SlideError, lessons.LessonError, jinja2.TemplateError, *MISTAKES) as error:
        frames = traceback.extract_tb(error.__traceback__)
        rows = [frame.lineno for frame in frames if frame.filename == "<template>"]
        row = getattr(error, "lineno", None) or rows[-1]  # a syntax error brings its own
        text = deck.splitlines()[row - 1].strip()
        raise SlideError(f"{name}, line {row}, {text}: {error}") from None


def external_addresses(page: str) -> list[str]:
    """Whatever in a page would make a browser ask another host."""
    return [match[0] for match in EXTERNAL.finditer(page)]


def build(source: Path, folder: Path) -> Path:
    """Write one deck as one HTML file and return its path. Raises SlideError."""
    page = _in_one_file(_pandoc(resolve(source.read_text(), source.name)), source.name)
    if found := external_addresses(page):
        raise SlideError(f"{source.name}: {found[0]} is on another host. Put a copy into slides/.")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{source.stem}.html"
    target.write_text(page)
    return target


def _pandoc(deck: str) -> str:
    options = ["--standalone", "--mathml", "--slide-level=1", f"--template={SLIDES / 'deck.html'}"]
    return pypandoc.convert_text(
        deck,
        "dzslides",
        format="markdown-implicit_figures",
        extra_args=[*options, "--fail-if-warnings"],
    )


def _in_one_file(page: str, name: str) -> str:
    """A page with its style, its keys and its images inside. Raises SlideError."""

    def image(match: re.Match) -> str:
        path = SLIDES / match[2]
        if "//" in match[2]:
            return match[0]  # on another host: build() says so
        if not path.exists():
            raise SlideError(f"{name}: there is no picture {match[2]}")
        data = base64.b64encode(path.read_bytes()).decode()
        return f'{match[1]}data:{mimetypes.guess_type(path)[0]};base64,{data}"'

    style, keys = (f"<{tag}>\n{(SLIDES / file).read_text()}</{tag}>" for tag, file in PARTS)
    page = page.replace('<link rel="stylesheet" href="deck.css">', style)
    if 'class="explorer"' in page:
        keys += f"<script>\n{explorers.script()}</script>"
    page = page.replace('<script src="deck.js"></script>', keys)
    return LOCAL_IMAGE.sub(image, page)


def why_no_pdf() -> str | None:
    """The sentence that says what is missing for a PDF; None if nothing is."""
    if chromium.PATH is None:
        return "No PDF: there is no Chromium here (Debian's package chromium will do)."
    if importlib.util.find_spec("playwright") is None:
        return "No PDF: there is no playwright here. Install the packages of the group test."
    return None


def print_pdfs(pages: list[Path]) -> list[Path]:
    """Print each HTML file as a PDF beside it, a page for each slide, in one Chromium."""
    from playwright.sync_api import sync_playwright

    targets = [page.with_suffix(".pdf") for page in pages]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium.PATH, args=chromium.FLAGS)
        tab = browser.new_page()
        for page, target in zip(pages, targets, strict=True):
            tab.goto(page.as_uri())
            tab.pdf(path=target, prefer_css_page_size=True, print_background=True)
        browser.close()
    return targets


def decks() -> list[Path]:
    """The sources of all decks."""
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
        if not args.html and (why := why_no_pdf()):
            print(why)
        elif not args.html:
            made += print_pdfs(made)
    except (SlideError, RuntimeError) as error:
        print(f"{error}", file=sys.stderr)
        return 1
    for path in made:
        print(f"{shown(path)}: {path.stat().st_size / 1e3:.0f} kB")
    print(f"{len(wanted)} decks in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
