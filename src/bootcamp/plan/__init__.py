"""The planner: what fits, how fast it is and what limits it, for a model, a cluster and a plan.

`python -m bootcamp.plan < plans.csv > predictions.csv` answers a table of plans. `rows` reads a
row; `shapes`, `hardware` and `setting` are the model, the cluster and the plan; `kernels`, `links`,
`step` and `peak` calculate; `stacks` has what was fitted to published runs, which `published/`
holds with their sources; `make accuracy` says how wrong it is on rows that it has not seen.
`course` says what a rank of the course's own scripts holds and sends, to the byte; `here` how long
their steps take on the machine at hand, which was measured for it (`make unseen`).

Read first: step, then predict.
May import: the top of the package, theory.
"""
