"""The exercises in the order of the lessons: EXERCISES[name]."""

from importlib import import_module

from bootcamp.classroom.tasks import Task

IN_ORDER = """
    exercises.training_scripts exercises.one_device exercises.data_parallel exercises.from_horovod
    exercises.model_parallel exercises.sharding labs.silent exercises.hosts exercises.jobs
    exercises.planning exercises.serving labs.clinic exercises.bring
    exercises.known_programs exercises.compose
"""
MODULES = [import_module(f"bootcamp_lessons.{name}") for name in IN_ORDER.split()]


def _tasks_of(module) -> list[Task]:
    """A module's list TASKS, or else each task that has a name in it."""
    named = [value for value in vars(module).values() if isinstance(value, Task)]
    return getattr(module, "TASKS", named)


EXERCISES = {task.name: task for module in MODULES for task in _tasks_of(module)}
