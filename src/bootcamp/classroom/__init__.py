"""What makes notebooks a course: exercises and their checkers, predictions, errors explained.

A task of `tasks` is one exercise: what a reader is given and how the answer is checked. `predict`
asks before a measurement answers, `journal` keeps what a reader has done, `errors` explains a
failure. The exercises are those of bootcamp_lessons.

Read first: tasks.
"""
