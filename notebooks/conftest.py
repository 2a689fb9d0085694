"""Cells are tests: pytest --nbval-lax notebooks/04_ddp.ipynb runs them as tests/plugin.py says."""

from plugin import pytest_configure  # noqa: F401
