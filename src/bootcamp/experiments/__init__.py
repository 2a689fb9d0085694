"""Runs that prove or measure something, built on the launcher, or recordings of them.

Read first: equality.
"""
