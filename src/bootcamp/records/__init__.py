"""The files of a run, in logs/<run>/, and how they are read. logs/README.md has every field.

Read first: runs.
"""
