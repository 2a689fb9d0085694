"""What belongs to single lessons: their diagrams, exercises and simulators.

A lesson adds to this package and leaves `bootcamp` as it is. `diagrams` draw ideas, `simulators`
let a reader play with them; `exercises` are the tasks, `exercise` starts and checks them; `clinic`
(with its judges, `clinic_judges`) is lesson 12, `capstone` lesson 14; `axes` and `pipeline_tables`
are the rows of lessons 06 and 06b; `reading` is the code and the prints that lessons show.

Read first: exercise.
May import: every room, any library.
"""
