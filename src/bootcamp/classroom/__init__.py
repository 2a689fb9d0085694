"""What makes notebooks a course: exercises and their checkers, predictions, errors explained.

`exercise` gives a reader a script or a function to complete and checks it; `exercises` are the
tasks; `predict` asks before a measurement answers; `errors` explains a failure; `capstone` and
`journal` keep what a reader has done.

Read first: exercise.
May import: every room, any library.
"""
