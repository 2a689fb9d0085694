"""What a page says above its lesson: how to run it, and where and how far it ran.

An executed notebook says in its metadata where it ran (tools/course.py writes it).
"""

import lessons
import nbformat

from bootcamp.drawing.style import join_words

NEVER, STOPPED, ENDED = "not run here", "stopped early", "ran"


def how_far(notebook: nbformat.NotebookNode) -> str:
    """NEVER, STOPPED or ENDED: by the numbers that executed cells have."""
    cells = [one for one in notebook.cells if one.cell_type == "code" and one.source.strip()]
    ran = [cell.get("execution_count") is not None for cell in cells]
    if not ran[0]:  # a stored notebook has numbers only where its outputs are kept
        return NEVER
    return ENDED if all(ran) and not _error(cells[-1]) else STOPPED


def _error(cell: nbformat.NotebookNode) -> str:
    """The error that ended a cell and was not meant to; empty without one."""
    meant = "raises-exception" in cell.metadata.get("tags", [])
    errors = [one for one in cell.get("outputs", []) if one.output_type == "error" and not meant]
    return errors[-1].ename if errors else ""


def note(lesson: lessons.Lesson, notebook: nbformat.NotebookNode) -> str:
    """The box under a lesson's title, as Markdown."""
    run = f"`make lab LESSON={lesson.number}` opens this lesson in JupyterLab."
    run += f" What it needs: {lesson.needs}."
    if lesson.after:
        run += f" It builds on {join_words(lesson.after)}."
    return f"```{{admonition}} Run it yourself\n:class: tip\n\n{run}\n\n{_outputs(notebook)}\n```"


def _outputs(notebook: nbformat.NotebookNode) -> str:
    """Where the outputs are from, and what is missing."""
    far, ran = how_far(notebook), notebook.metadata.get("ran", {})
    if far == NEVER:
        return "**This page has no outputs**: the lesson has not run for it."
    machine = f"a machine with {ran['machine']}" if ran else "the machine that its figures name"
    when = f" on {ran['date']}" if ran else ""
    here = f"The outputs are from {machine}{when}; *measured here* means there."
    if far == STOPPED:
        found = next(filter(None, (_error(cell) for cell in notebook.cells)), "")
        why = f" with {found}" if found else ""
        return f"{here} **The run stopped early{why}**, so the cells after that show nothing."
    return f"{here} What answers a prediction is folded: predict, then open it."
