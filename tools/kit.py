"""python tools/kit.py

Make slides/build/kit.html, the instructor's guide, from slides/kit/*.md: agendas, what to say in
each lesson, the room. Goals come from the notebooks, minutes from the map in README.md, expected
outputs from slides/kit/expected/MACHINE/, which `make course ARGS="--expected FOLDER"` records.
One file that needs no network.
"""

import re
import sys
from pathlib import Path

import pypandoc
import reset

import slides
from bootcamp.paths import ROOT

KIT = ROOT / "slides" / "kit"
LESSON = re.compile(r"^## (\d\d[a-z]?) (.+)$", re.MULTILINE)
STYLE = """<style>
body { font: 17px/1.55 system-ui, sans-serif; max-width: 54rem; margin: 2rem auto; padding: 0 1rem;
       color: #111827; }
table { border-collapse: collapse; } th, td { padding: .25rem .8rem; border-bottom: 1px solid #ccc;
       text-align: left; vertical-align: top; }
pre { background: #f3f4f6; padding: .8rem; white-space: pre-wrap; } h1 { margin-top: 3rem; }
details { margin: .5rem 0; }
</style>"""


class KitError(Exception):
    """A guide that can't be built. Its text says which file lacks what."""


def lessons() -> dict[str, dict]:
    """The lessons of the map in README.md that are here: number -> title, notebook, minutes."""
    here = [(number, title, row) for number, title, row in slides.map_rows() if row[0][0] == "["]
    return {
        number: {
            "title": title,
            "notebook": row[0].partition("](")[2].rstrip(")"),
            "minutes": int(row[2]),
        }
        for number, title, row in here
    }


def guide() -> str:
    """lessons.md with goals, minutes and expected outputs put in. Raises KitError."""
    text, known = (KIT / "lessons.md").read_text(), lessons()
    said = [number for number, _ in LESSON.findall(text)]
    if said != list(known):
        raise KitError(f"slides/kit/lessons.md has {said}, the map in README.md {list(known)}")

    def complete(match: re.Match) -> str:
        lesson = known[match[1]]
        facts = f"**{lesson['minutes']} minutes.** {reset.goals(reset.find(match[1]))}"
        return f"{match[0]}\n\n{facts}"

    parts = re.split(r"(?=^## )", LESSON.sub(complete, text), flags=re.MULTILINE)
    return "".join(part + _expected(part, known) for part in parts)


def _expected(part: str, known: dict) -> str:
    """A lesson's expected outputs, folded; nothing for a part that is no lesson."""
    found = LESSON.match(part)
    if not found:
        return ""
    name = Path(known[found[1]]["notebook"]).stem
    records = sorted(KIT.glob(f"expected/*/{name}.md"))
    shown = []
    for path in records:
        text = re.sub(r"^#+ (.*)$", r"**\1**", path.read_text(), flags=re.MULTILINE)
        machine = path.parent.name
        summary = f"<summary>Expected output of each cell, recorded on {machine}</summary>"
        shown.append(f"\n<details>{summary}\n\n{text}\n</details>\n\n")
    return "".join(shown)


def build(folder: Path) -> Path:
    """Write the guide as one HTML file and return its path. Raises KitError."""
    text = "\n\n".join(
        [(KIT / "agenda.md").read_text(), guide(), (KIT / "room.md").read_text()]
    ).replace("](../../", "](../")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "kit.html"
    options = ["--standalone", "--toc", "--toc-depth=2", "--metadata", "pagetitle=Instructor's kit"]
    page = pypandoc.convert_text(text, "html", format="markdown", extra_args=options)
    target.write_text(page.replace("</head>", f"{STYLE}</head>", 1))
    return target


def main() -> int:
    try:
        target = build(ROOT / "slides" / "build")
    except KitError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
