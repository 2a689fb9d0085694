"""The exercises in the order of the lessons: EXERCISES[name]."""

from importlib import import_module

from bootcamp.classroom.tasks import Task

IN_ORDER = """
    exercises.training_scripts exercises.one_device exercises.data_parallel exercises.ports
    exercises.model_parallel exercises.sharding labs.silent_bugs exercises.hosts exercises.jobs
    exercises.planning exercises.serving labs.clinic exercises.bring
    exercises.known_programs exercises.compose
"""
MODULES = [import_module(f"bootcamp_lessons.{name}") for name in IN_ORDER.split()]


def _list_tasks(module) -> list[Task]:
    """Return the tasks of a module: its TASKS, or else those that are its own or its functions'."""
    defined = [getattr(value, "exercise", value) for value in vars(module).values()]
    return getattr(module, "TASKS", [value for value in defined if isinstance(value, Task)])


EXERCISES = {task.name: task for module in MODULES for task in _list_tasks(module)}
