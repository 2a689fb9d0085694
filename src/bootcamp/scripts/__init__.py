"""The training scripts as texts: which there are, how they differ, why each line is there.

`family` is the list of scripts with their parents, `diff` what a script adds to its parent and why,
`variants` a script with lines replaced.

Read first: family.
May import: the top of the package.
"""
