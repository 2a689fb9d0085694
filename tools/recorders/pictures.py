"""python tools/recorders/pictures.py [lesson | figure] [--course FOLDER]

Make the pictures of README.md in notebooks/pictures/: lesson.png, lesson 04 open in JupyterLab as a
course has executed it (`make course`, by default the newest), and figure.png, a figure of recorded
runs. JupyterLab serves a copy of the notebook on 127.0.0.1 and is ended; a Chromium looks at it.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbformat import sign
from PIL import Image, ImageOps

from bootcamp.drawing import plots
from bootcamp.paths import LOGS, NOTEBOOKS, REFERENCE, ROOT
from bootcamp.records import runs

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]
import chromium  # noqa: E402
import lab  # noqa: E402

PICTURES = NOTEBOOKS / "pictures"
LESSON, HEADING = "04_ddp.ipynb", "Predict"  # what the picture begins with
WINDOW, PIXELS = (800, 520), 2  # of the browser, and of the picture for each of its own
RUNS = tuple(f"xeon-2core-{name}" for name in ("cpu-1", "ddp-2", "ddp_summed-2"))
TOKEN = "for-the-pictures"
EDGE = "#d0d7de"  # seen on a light page and on a dark one
# a progress bar as it was when its kernel ran, without the sign that the kernel is another one
LIVE = ".jupyter-widgets-disconnected::before { display: none !important; }"


class PictureError(Exception):
    """A picture that can't be made. Its text says what is missing and how to get it."""


def executed(root: Path = LOGS / "course") -> Path:
    """The lesson's newest executed copy, in root or a folder of it. Raises PictureError."""
    found = sorted([*root.glob(f"*/{LESSON}"), *root.glob(LESSON)])
    if not found:
        raise PictureError(f"{root} has no executed {LESSON}: `make course ARGS=04` makes one.")
    return found[-1]


def lesson(notebook: Path, target: Path) -> None:
    """A window of JupyterLab on an executed notebook, scrolled to HEADING."""
    if not notebook.is_file():
        raise PictureError(f"{notebook} is not there: `make course ARGS=04` makes one.")
    if chromium.PATH is None:
        raise PictureError("There is no Chromium here (Debian's package chromium will do).")
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as driver:
        folder = Path(scratch)
        shutil.copy(notebook, folder / LESSON)
        environment = {**os.environ, "JUPYTER_DATA_DIR": str(folder / "data")}
        environment["JUPYTERLAB_SETTINGS_DIR"] = str(folder / "settings")  # no theme of its user
        _trust(folder / LESSON, folder / "data")
        with lab.serving(folder, TOKEN, environment) as (address, _):
            browser = driver.chromium.launch(executable_path=chromium.PATH, args=chromium.FLAGS)
            size = {"width": WINDOW[0], "height": WINDOW[1]}
            page = browser.new_page(viewport=size, device_scale_factor=PIXELS)
            page.goto(f"{address}/doc/tree/{LESSON}?token={TOKEN}")
            page.wait_for_selector("#jp-main-statusbar >> text=| Idle", timeout=120_000)
            page.add_style_tag(content=LIVE)
            heading = page.locator(f".jp-Notebook h2:has-text('{HEADING}')").first
            heading.evaluate("heading => heading.scrollIntoView()")
            page.wait_for_timeout(2000)  # figures below take their height
            heading.evaluate("heading => heading.scrollIntoView()")
            page.wait_for_timeout(500)
            page.screenshot(path=target)
            browser.close()


def _trust(notebook: Path, data: Path) -> None:
    """Sign a notebook, as for somebody who has run it: else JupyterLab drops its outputs' style."""
    data.mkdir()
    store = sign.SQLiteSignatureStore(str(data / "nbsignatures.db"))
    notary = sign.NotebookNotary(data_dir=str(data), store=store)
    notary.sign(nbformat.read(notebook, 4))
    store.close()


def figure(target: Path) -> None:
    """What a forgotten division does to the losses, and what the proof says of it."""
    drawn = plots.loss_curves(*(runs.load(REFERENCE / name) for name in RUNS))
    drawn.savefig(target, dpi=PIXELS * 80)


def slim(path: Path) -> None:
    """An edge around a picture, and 256 colours, which are enough for letters and lines."""
    picture = ImageOps.expand(Image.open(path).convert("RGB"), PIXELS, EDGE)
    picture.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", nargs="*", choices=["lesson", "figure"], metavar="lesson | figure")
    parser.add_argument("--course", type=Path, default=LOGS / "course", help="executed notebooks")
    chosen = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    try:
        for name in chosen.which or ["lesson", "figure"]:
            target = PICTURES / f"{name}.png"
            if name == "figure":
                figure(target)
            else:
                lesson(executed(chosen.course), target)
            slim(target)
            print(f"{target.relative_to(ROOT)}: {target.stat().st_size / 1e3:.0f} kB")
    except (PictureError, lab.LabError) as problem:
        print(problem)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
