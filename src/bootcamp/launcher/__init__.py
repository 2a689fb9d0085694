"""Start ranks, watch them and end them: `launch("ddp", ranks=2)`.

A supervisor process ends every rank when the kernel goes; a fork server lets ranks start fast;
device locks tell a run which devices others use. What runs in a rank is never imported here.

Read first: launch, then supervisor.
"""
