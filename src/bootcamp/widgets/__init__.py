"""What a reader moves in a notebook: choices in, a figure or a table out.

Read first: controls.
May import: the top of the package, scripts, costs, records, launcher, drawing, any library.
"""
