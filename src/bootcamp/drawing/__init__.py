"""Figures of runs and of plans (`plots`), and what diagrams are drawn with (`canvas`).

`palette` has the colours, `charts` the parts that charts share, `style` the sizes of text and the
line below each figure that names where its numbers come from. Figures are pure functions.

Read first: style, then charts and plots.
"""
