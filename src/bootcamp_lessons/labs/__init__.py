"""What single lessons run, break, count and compare: a module for each idea."""
