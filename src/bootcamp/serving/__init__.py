"""A trained model answers requests: its files, servers of it, and a client that loads them.

`consolidate` makes one file of parameters from a checkpoint, and `artifacts` reads every exported
format. `protocol` is the Open Inference Protocol, which Triton speaks too; a server is a script of
src/serve/, and `service` starts and ends one from a cell.

Read first: protocol, artifacts.
May import: the top of the package, costs, records, train, launcher, aiohttp, numpy, psutil.
"""
