"""Serving: exported files of a trained model, servers of them, and a client that loads these.

A server is a script of src/serve/; `server_process` starts and ends one from a cell.

Read first: protocol, artifacts.
"""
