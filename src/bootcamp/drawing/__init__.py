"""Figures: from records (`plots`) and from formulas and schedules (`diagrams`).

`style` has the colours, the sizes of text, and the line below each figure that says where its
numbers come from. A figure is a pure function of what it is given.

Read first: style, then plots.
May import: the top of the package, scripts, theory, records, any library.
"""
