"""Clusters that are made on this machine: a real Slurm on simulated hosts, and what breaks on them.

`slurm` starts one and hands in jobs, `slurm_daemons` holds its daemons, `slurm_conf` has its
configuration; `drills` breaks something on a host while a run goes on.

May import: the top of the package, records, launcher.
Read first: slurm.
"""
