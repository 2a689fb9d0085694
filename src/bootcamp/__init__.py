"""The small package under the scripts and notebooks of the multi-GPU bootcamp.

Two sides, kept apart so that a GPU machine without Jupyter can run every script:

- the rank side (`config`, `data`, `models`, `optimizers`, `record`) imports torch, never a
  notebook library;
- the notebook side (`launch`, `runs`, `compare`, `predict`, `check`, `exercise`, `plots`) never
  imports torch; of it, `launch` and `runs` need nothing but the standard library.
"""
