"""The measure of what a figure says and of what can be read: each of its checks can fail."""

import pytest

pytest.importorskip("matplotlib")  # a GPU machine may lack all of the notebook side

import legible
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
        ({"x": 0.95}, ["cut off: 'another'"]),
        ({"y": 0.98}, ["cut off: 'another'"]),
        ({"size": 10}, ["too small: 'another' has 10 points, 11 are read"]),
    ],
)
def test_faults_are_texts_over_each_other_cut_off_or_too_small(given, faults):
    assert legible.faults(draw(**given), 11) == faults


def test_faults_are_those_of_labels_ticks_legends_and_dropped_texts():
    """A value's label whose bar is longer than the axes is nowhere in the picture."""
    figure = Figure(figsize=(6, 3))
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], label="a line")
    axes.legend(fontsize=9)
    axes.set_xticks([0.0, 0.01, 5.0], ["the first tick", "the second", "beyond the limits"])
    axes.set(xlim=(0, 1))
    axes.annotate("farther", (1.01, 0.5), (-90, 0), textcoords="offset points", fontsize=12)
    assert legible.faults(figure, 9.5) == [
        "over each other: 'the first tick' and 'the second'",
        "too small: 'a line' has 9 points, 9.5 are read",
        "beyond its axes: 'farther'",
    ]


def test_unsaid_are_the_values_the_origin_and_what_numbers_count():
    figure = Figure()
    (line,) = figure.subplots().plot([0, 1], [0, 1])
    figure.alt = "A line"
    unsaid = legible.list_unsaid(figure)
    for word in ("no paragraph", "no values", "where its values are from", "on x are", "on y are"):
        assert any(word in sentence for sentence in unsaid), word
    line.axes.set(xlabel="seconds", ylabel="loss", title="Predicted")
    figure.alt = "A line from 0 to 1: its loss is as long as its seconds, as was predicted."
    assert legible.list_unsaid(figure) == []


def test_notebooks_cell_fails_with_a_figure_that_can_not_be_read():
    """So does a test: this process and each kernel watch what becomes a PNG."""
    figure = draw(0.49, 0.5)
    figure.suptitle("A title")
    with pytest.raises(legible.Illegible, match="'A title' can't be read:\n- over each other: 'o"):
        style.show(figure)
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    code = (
        "from matplotlib.figure import Figure\nfigure = Figure()\n"
        "for words in ('one', 'another'):\n    figure.text(0.5, 0.5, words, fontsize=14)\n"
        "figure.savefig('/dev/null', format='png')"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="can't be read"):
        nbclient.NotebookClient(notebook, timeout=60).execute()
