"""The exercises in the order of the lessons: EXERCISES[name]. Each module has a list TASKS."""

from importlib import import_module

IN_ORDER = """
    exercises.training_scripts exercises.one_device exercises.data_parallel exercises.from_horovod
    exercises.model_parallel exercises.sharding exercises.experts silent exercises.hosts
    exercises.jobs exercises.planning exercises.serving clinic exercises.bring
    exercises.known_programs exercises.compose
"""
MODULES = [import_module(f"bootcamp_lessons.{name}") for name in IN_ORDER.split()]
EXERCISES = {task.name: task for module in MODULES for task in module.TASKS}
