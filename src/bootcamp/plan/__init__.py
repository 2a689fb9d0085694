"""The planner's command: `python -m bootcamp.plan < plans.csv > predictions.csv`.

Read first: __main__.
"""
