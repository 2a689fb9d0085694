"""Diagrams of the lessons' ideas: `plots.show(basics.run_path())`. Each function returns a Figure.

A diagram explains and measures nothing: it draws what it is given. What all are drawn with is in
bootcamp/drawing/canvas.py.
"""
