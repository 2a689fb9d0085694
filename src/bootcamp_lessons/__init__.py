"""What belongs to single lessons: their diagrams, exercises and simulators.

A lesson adds to this package and leaves `bootcamp` as it is. `diagrams` draw ideas, `simulators`
let a reader play with them; `exercises` are the tasks, `exercise` starts and checks them; `clinic`
(with its judges, `clinic_judges`) is lesson 12, `capstone` lesson 14; `axes`, `failed_lines` and
`pipeline_tables` are the rows of lessons 06 and 06b.

Read first: exercise.
May import: every room, any library.
"""
