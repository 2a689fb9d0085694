"""Exercises of lessons 07 to 08 that are a function in a cell."""

TASKS = []
