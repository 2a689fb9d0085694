"""What can be calculated without running anything: memory, bytes and seconds of a plan.

`model_shapes` has the parameters of each layer; `sharding`, `tensor`, `experts`, `data_parallel`,
`ddp` and `memory` what they cost under each strategy; `kv_cache` what a request costs; `failures`
how often many GPUs fail; `layer_cut` where to cut a model; `collectives` and `pipeline_schedules`
the algorithms, step by step. The planner: `shapes`, `hardware` and `setting` are the model, the
cluster and the plan; `kernels`, `links`, `step` and `peak` calculate; `stacks` has what was fitted
to published runs; `course` says what a rank of the course's own scripts holds and sends.
`published` holds other people's measurements as CSV, with their sources.

Read first: model_shapes, then step.
May import: the top of the package, numpy.
"""
