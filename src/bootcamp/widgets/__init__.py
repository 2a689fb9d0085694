"""What a reader moves in a notebook: choices in, a figure or a table out.

Read first: controls.
"""
