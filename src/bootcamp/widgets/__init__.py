"""What a reader moves in a notebook: choices in, a figure or a table out.

`controls` makes a widget of a drawing function; `board` and `monitor` show runs (`run_state`: how
one is doing), `planner` a plan, `diff_viewer` what scripts add to each other.

Read first: controls.
May import: the top of the package, scripts, costs, records, launcher, drawing, any library.
"""
