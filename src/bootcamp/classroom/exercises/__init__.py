"""The exercises of the lessons: EXERCISES[name]. How they are checked stands in exercise.py.

A file for what belongs together; each has TASKS, a list. The order is that of the lessons.
"""

from bootcamp.classroom.exercises import (
    bring,
    clinic,
    compose,
    data_parallel,
    model_parallel,
    one_device,
    scripts,
    sharding,
)

MODULES = (
    scripts,
    one_device,
    data_parallel,
    model_parallel,
    sharding,
    clinic,
    bring,
    compose,
)
EXERCISES = {task.name: task for module in MODULES for task in module.TASKS}
