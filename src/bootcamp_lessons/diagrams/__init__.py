"""Diagrams of the lessons: `plots.show(basics.run_path())`. Each function returns a Figure."""
