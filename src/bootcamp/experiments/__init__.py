"""Runs that prove or measure something, built on the launcher, or recordings of them.

Read first: equality.
May import: the top of the package, scripts, costs, records, launcher, hosts, numpy.
"""
