"""Clusters that are made on this machine: a real Slurm on simulated hosts, and what breaks on them.

Read first: slurm.
"""
