"""A notebook's kernel as tests start it; warm.kernels() tells Jupyter of it.

Its launches may be answered by earlier ones (run_cache.py). Under tools/test.py it is a fork of the
warm Python, and so is the supervisor that its first launch starts.
"""

import os
import sys

import run_cache
import warm
from ipykernel import kernelapp

run_cache.install(os.environ[run_cache.VARIABLE])
if warm.VARIABLE in os.environ:
    run_cache.CachedRuns.command = warm.supervisor()
    run_cache.CachedRuns.python = warm.python()
    os.environ.pop("JPY_PARENT_PID", None)  # its parent is another; who ends the shim ends it
sys.path.remove(os.path.dirname(os.path.abspath(__file__)))  # a kernel's Python has none first
sys.argv[0] = kernelapp.__file__
kernelapp.launch_new_instance()
