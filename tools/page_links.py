"""Links of built pages: which lead nowhere, and what a page would load from another address.

Standard library only.
"""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {"src", "srcset", "data", "poster"}  # attributes whose address a browser asks for itself
LOADING_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "manifest", "preconnect"}


@dataclass
class Page(HTMLParser):
    """A page's ids and addresses: (address, whether the browser loads it without a click)."""

    ids: set[str] = field(default_factory=set)
    addresses: list[tuple[str, bool]] = field(default_factory=list)

    def __post_init__(self):
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.update(given[name] for name in ("id", "name") if given.get(name))
        kinds = set(given.get("rel", "").split())
        for name, value in given.items():
            if name in LOADS:
                self.addresses.append((value, True))
            elif name == "href":
                self.addresses.append((value, tag == "link" and bool(kinds & LOADING_LINKS)))


def read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text())
    return page


def wrong_links(folder: Path) -> list[str]:
    """A sentence for each link of the folder's pages that leads nowhere or loads from outside."""
    pages = {path.resolve(): read(path) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(folder.resolve())
        for address, loaded in page.addresses:
            parts = urlsplit(address)
            if parts.scheme in ("data", "mailto", "javascript"):
                continue
            if parts.scheme or parts.netloc:
                if loaded:
                    found.append(f"{name} loads {address}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                found.append(f"{name} links to {address}, which is not there")
            elif target in pages and unquote(parts.fragment) not in {"", *pages[target].ids}:
                found.append(f"{name} links to {address}, and there is no such place")
    return found
