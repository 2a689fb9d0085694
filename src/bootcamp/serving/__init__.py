"""A trained model answers requests: its files, servers of it, and a client that loads them.

A server is a script of src/serve/; `service` starts and ends one from a cell. Read first:
protocol, artifacts.
"""
