"""What can be calculated without running anything: memory, bytes and seconds of a plan.

A model is a list of layers, a plan a mesh of ranks with options. The formulas for this course's
scripts are exact; the planner's constants were fitted to published runs (`published/`).

Read first: model_shapes, then memory.
"""
