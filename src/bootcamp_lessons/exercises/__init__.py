"""The exercises of the lessons: EXERCISES[name]. exercise.py has how they are started and checked.

A file for each kind and topic; each has TASKS, a list. The order is that of the lessons.
"""

from bootcamp_lessons import clinic, silent
from bootcamp_lessons.exercises import (
    bring,
    compose,
    data_parallel,
    experts,
    exporting,
    failures,
    faster_step,
    from_horovod,
    hosts,
    jobs,
    known_programs,
    long_texts,
    model_parallel,
    one_device,
    planning,
    practice,
    scaling,
    serving,
    sharding,
    slow_ranks,
    training_scripts,
)

MODULES = (
    training_scripts,
    one_device,
    faster_step,
    data_parallel,
    scaling,
    from_horovod,
    practice,
    slow_ranks,
    model_parallel,
    long_texts,
    sharding,
    experts,
    silent,
    hosts,
    jobs,
    failures,
    planning,
    exporting,
    serving,
    clinic,
    bring,
    known_programs,
    compose,
)
EXERCISES = {task.name: task for module in MODULES for task in module.TASKS}
