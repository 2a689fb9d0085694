"""A trained model answers requests: its files, servers of it, and a client that loads them.

`consolidate` makes one file of parameters from a checkpoint, `src/serve/export.py` the others.
`artifacts` reads whatever file a model was exported to as one function, `faithful` holds it against
the model. `protocol` is what servers and client say to each other, the Open Inference Protocol,
which Triton speaks too. A server is a script, `src/serve/*.py`; `service` starts and ends one from
a cell.

Read first: protocol, artifacts.
May import: the top of the package, costs, records, train, launcher, aiohttp, numpy.
"""
