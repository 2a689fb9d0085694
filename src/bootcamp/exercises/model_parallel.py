"""Exercises of lessons 06 to 06c that are a function in a cell."""

TASKS = []
