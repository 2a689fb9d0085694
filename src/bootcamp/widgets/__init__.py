"""What a reader moves in a notebook: choices in, a figure or a table out.

`controls` makes a widget of a drawing function; `simulators` play formulas, `board` and `monitor`
show runs, `explorer` and `diff_viewer` show scripts.

Read first: controls.
May import: the top of the package, scripts, theory, records, launcher, drawing, any library.
"""
