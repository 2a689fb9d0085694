"""What a strategy changes: a script's diff to its parent, derived from the files when shown."""

import difflib
import html
import io
import tokenize
from pathlib import Path

from bootcamp import family


def code_lines(path: Path) -> list[str]:
    """The lines of a script that are code: without comments, docstrings and blank lines."""
    text = Path(path).read_text()
    kept = {}
    previous = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        starts_statement = previous in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING):
            continue
        if not (token.type == tokenize.STRING and starts_statement) and token.string.strip():
            for row in range(token.start[0], token.end[0] + 1):
                kept[row] = True
        previous = token.type
    lines = text.splitlines()
    return [_without_comment(lines[row - 1]) for row in sorted(kept)]


def _without_comment(line: str) -> str:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(line.strip() + "\n").readline))
    except (tokenize.TokenError, IndentationError, SyntaxError):
        return line.rstrip()
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    indent = line[: len(line) - len(line.lstrip())]
    return indent + line.strip()[: comments[0].start[1]].rstrip() if comments else line.rstrip()


def changed_lines(child: Path, parent: Path) -> tuple[int, int]:
    """Code lines that a script adds to its parent and takes from it: (added, removed).

    A line that is changed counts in both.
    """
    matcher = difflib.SequenceMatcher(None, code_lines(parent), code_lines(child), autojunk=False)
    changes = [change for change in matcher.get_opcodes() if change[0] != "equal"]
    return sum(c[4] - c[3] for c in changes), sum(c[2] - c[1] for c in changes)


class ScriptDiff:
    """The changed lines of a script between the unchanged ones around them.

    Shows as coloured lines in a notebook, and with + and - everywhere, so that it needs no colour.
    """

    def __init__(self, child: Path, parent: Path, context: int = 2):
        self.child, self.parent = Path(child), Path(parent)
        self.added, self.removed = changed_lines(child, parent)
        before, after = (path.read_text().splitlines() for path in (self.parent, self.child))
        self.lines = list(
            difflib.unified_diff(
                before, after, self.parent.name, self.child.name, lineterm="", n=context
            )
        )

    @property
    def title(self) -> str:
        """What the diff is of, and how many code lines it comes to."""
        return (
            f"{self.child.name}: {self.added} code lines added to {self.parent.name}, "
            f"{self.removed} taken out"
        )

    def __str__(self) -> str:
        return "\n".join([self.title, *self.lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        # light backgrounds with dark text: readable in a light and in a dark theme
        styles = {"+": "background:#d7ecff;color:#0b3a66", "-": "background:#ffe3c7;color:#6b3200"}
        rows = []
        for line in self.lines[2:]:
            style = styles.get(line[:1], "opacity:0.6" if line.startswith("@@") else "")
            text = "⋯" if line.startswith("@@") else html.escape(line) or " "
            rows.append(f'<div style="{style};white-space:pre">{text}</div>')
        return (
            f"<p><b>{html.escape(self.title)}</b></p>"
            f'<div role="region" aria-label="{html.escape(self.title)}" '
            f'style="font-family:monospace;font-size:90%;line-height:1.4">{"".join(rows)}</div>'
        )


def script_diff(script: str, parent: str | Path | None = None) -> ScriptDiff:
    """The diff of a script of the family to its parent, or to another script or file."""
    path = family.find(script)
    if parent is None:
        parent = family.SCRIPTS[str(script)].parent
    if parent is None:
        raise ValueError(f"{script} is the baseline: it has no parent to compare with")
    return ScriptDiff(path, family.find(parent))
