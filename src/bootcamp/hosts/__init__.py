"""Clusters that are made on this machine: a real Slurm on simulated hosts, and what breaks on them.

May import: the top of the package, records, launcher.
Read first: slurm.
"""
