"""Code of single lessons: diagrams, labs, exercises (`exercise` checks them), the clinic.

Read first: exercise.
"""
