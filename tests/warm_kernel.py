"""A notebook's kernel as a fork of warm_python.py's server; warm.kernels() tells Jupyter of it.

So is the supervisor that its first launch starts, and that one's fork server.
"""

import os
import sys

import warm
from ipykernel import kernelapp

from bootcamp.launcher import connection

os.environ.pop("JPY_PARENT_PID", None)  # this fork's parent is another; who ends the shim ends it
sys.path.remove(os.path.dirname(os.path.abspath(__file__)))  # a kernel's Python has none first
os.environ[connection.VARIABLE] = warm.python()
sys.argv[0] = kernelapp.__file__
kernelapp.launch_new_instance()
