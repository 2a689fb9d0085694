"""The system's Chromium for what looks at pages and prints slides; it asks no network by itself."""

import contextlib
import importlib.util
import shutil

PATH = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LOCAL = ("file:", "data:", "about:", "blob:")


def why_not() -> str | None:
    """Return the sentence that says what is missing to open a page; None if nothing is."""
    if PATH is None:
        return "there is no Chromium here (Debian's package chromium will do)."
    if importlib.util.find_spec("playwright") is None:
        return "there is no playwright here. Install the packages of the group test."
    return None


@contextlib.contextmanager
def tab(width: int = 1280, height: int = 720):
    """Open a tab in a Chromium of its own.

    Raises AssertionError at its end if a page raised an error in it or asked a network.
    """
    from playwright.sync_api import sync_playwright

    wrong = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=PATH, args=FLAGS)
        page = browser.new_page(viewport={"width": width, "height": height})
        page.on("request", lambda one: one.url.startswith(LOCAL) or wrong.append(one.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        yield page
        browser.close()
    assert wrong == []
