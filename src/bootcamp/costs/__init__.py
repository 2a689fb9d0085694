"""What can be calculated without running anything: memory, bytes and seconds of a plan.

`model_shapes` has the model as layers, `plans` the plan, `hardware` the cluster. `memory` says
what a rank holds, `traffic` what it sends, `step` how long it takes, with `kernels` and `links`;
the first two answer exactly for this course's scripts. `sharding`, `experts`, `context` and `ddp`
have what each way of sharing costs; `failures` how often many GPUs fail; `layer_cut` where to cut a
model; `collectives` and `pipeline_schedules` the algorithms, step by step. `fitted_constants` has
what was fitted to published runs, `published` other people's measurements as CSV, with sources.
`planner` answers for one plan, `plan_table` reads tables of plans.

Read first: model_shapes, then memory.
May import: the top of the package, numpy.
"""
