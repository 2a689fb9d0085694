"""Exercises of lessons 00 to 02 that are a function in a cell."""

TASKS = []
