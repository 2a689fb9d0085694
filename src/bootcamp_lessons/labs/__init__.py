"""Experiments of single lessons, a module for each."""
