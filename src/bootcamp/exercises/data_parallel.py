"""Exercises of lessons 03 to 05 that are a function in a cell."""

TASKS = []
