"""Runs that prove or measure something, built on the launcher.

`equality` proves that a strategy trains what the baseline trains, and `diagnosis` says what a
difference may mean. `roofline` and `allreduce_sweep` measure this machine once and
keep the result. `replay` shows a recording of what this machine can't make.

Read first: equality.
May import: the top of the package, scripts, costs, records, launcher, hosts, numpy.
"""
