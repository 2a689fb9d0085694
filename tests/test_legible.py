"""The measure of what can be read in a figure: each of its checks can fail."""

import textwrap

import pytest

pytest.importorskip("matplotlib")  # a GPU machine may lack all of the notebook side
pytest.importorskip("nbformat")

import legible
import nbformat
from matplotlib.figure import Figure

from bootcamp.drawing import style


def draw(x=0.1, y=0.8, words="another", size=14, **look):
    figure = Figure(figsize=(6, 3))
    figure.text(0.5, 0.5, "one text", fontsize=14)
    figure.text(x, y, words, fontsize=size, **look)
    return figure


@pytest.mark.parametrize(
    ("given", "faults"),
    [
        ({}, []),
        ({"x": 0.49, "y": 0.5, "visible": False}, []),
        ({"x": 0.49, "y": 0.5, "words": " "}, []),
        ({"x": 0.49, "y": 0.5}, ["over each other: 'one text' and 'another'"]),
        ({"x": -0.05}, ["cut off: 'another'"]),
        ({"x": 0.95}, ["cut off: 'another'"]),
        ({"y": 0.98}, ["cut off: 'another'"]),
        ({"size": 10}, ["too small: 'another' has 10 points, 11 are read"]),
        ({"words": "long " * 40}, [f"cut off: '{('long ' * 40)[:37]}...'"]),
    ],
)
def test_faults_are_texts_over_each_other_cut_off_or_too_small(given, faults):
    assert legible.faults(draw(**given), 11) == faults


def test_faults_are_texts_that_matplotlib_drops():
    """A value's label whose bar is longer than the axes is nowhere in the picture."""
    figure = draw()
    axes = figure.add_axes((0.1, 0.1, 0.8, 0.2))
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
    axes.annotate("within", (0.9, 0.5), (-30, 0), textcoords="offset points", fontsize=12)
    axes.annotate("farther", (1.01, 0.5), (-90, 0), textcoords="offset points", fontsize=12)
    assert legible.faults(figure, 11) == ["beyond its axes: 'farther'"]


def test_labels_of_axes_ticks_and_legends_are_measured():
    figure = Figure(figsize=(6, 3))
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], label="a line")
    axes.legend(title="a title", fontsize=9)
    axes.set_xticks([0.0, 0.01, 5.0], ["the first tick", "the second", "beyond the limits"])
    axes.set(xlim=(0, 1), xlabel="below")
    axes.set_title("on the left", loc="left")
    found = legible.faults(figure, 9.5)
    assert "over each other: 'the first tick' and 'the second'" in found
    assert "too small: 'a line' has 9 points, 9.5 are read" in found
    assert not [fault for fault in found if "beyond" in fault]
    said = {text.get_text() for text in legible.texts(figure)}
    assert {"below", "on the left", "a title"} <= said
    axes.axis("off")
    assert "the first tick" not in [text.get_text() for text in legible.texts(figure)]


def test_figure_that_can_not_be_read_is_not_shown():
    figure = draw(0.49, 0.5)
    figure.suptitle("A title")
    with pytest.raises(legible.Illegible, match="'A title' can't be read:\n- over each other: 'o"):
        style.show(figure)


def test_notebooks_cell_fails_with_a_figure_that_can_not_be_read():
    nbclient = pytest.importorskip("nbclient")
    code = """
        from bootcamp.drawing import style
        figure, _ = style.begin("A title")
        for words in ("one text", "another"):
            figure.text(0.5, 0.5, words, fontsize=14)
        style.show(figure)
    """
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(textwrap.dedent(code))])
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="can't be read"):
        nbclient.NotebookClient(notebook, timeout=60).execute()
