"""What a run leaves in its folder, logs/<run>/: the files, and how they are read.

`summary` writes how a run ended, `steps` reads its steps, `heartbeat` writes a rank's sign of life,
`trace` reads one profiled step, `runs` puts all of it into a Run, and `measurement` tells where its
numbers come from. logs/README.md describes every field.

Read first: runs.
May import: the top of the package, costs.
"""
