"""The training scripts as texts: which there are, how they differ, why each line is there.

Read first: strategies.
"""
