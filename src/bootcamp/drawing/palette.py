"""The colours of all figures: the strong ones are Okabe and Ito's, which colour-blind readers tell
apart (jfly.uni-koeln.de/color). None carries a meaning alone: a hatch or a word goes with it.
"""

from types import SimpleNamespace

ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE, BLACK = "#0072B2", "#D55E00", "#CC79A7", "#000000"
COLOURS = (BLUE, VERMILLION, GREEN, BLACK, PURPLE, ORANGE, SKY)  # of lines, in this order
MARKERS = "osD^vPX"
INK, PALE, GREY, PAPER = "#222222", "#8A8A8A", "#DDDDDD", "#F4F4F4"
LIGHT = SimpleNamespace(
    blue="#D6ECFA", green="#D3EFE5", orange="#FBEBCB", red="#FFD9CC", mint="#8FD1B8"
)
FOUR = (SKY, ORANGE, "#8FD1B8", "#E3B6CE")  # ranks in one diagram
TINTS = (LIGHT.blue, LIGHT.orange, LIGHT.green)
TINTS += ("#F3DCE9", "#FFF7C2", "#E3E3F7", "#FFE1D6", "#DDEEDD")


def line_look(number: int) -> dict[str, str]:
    """Colour and marker of a chart's line with this number, from 0."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


# What fills a rank's memory: colour and hatch of each kind.
KINDS = {
    "parameters": (BLUE, ""),
    "gradients": (ORANGE, "//"),
    "optimizer state": (GREEN, ".."),
    "activations": (GREY, "\\\\"),
}
