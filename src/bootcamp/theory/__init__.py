"""What can be calculated without running anything: sizes, bytes, memory, schedules.

`model_shapes` has the parameters of each layer; `data_parallel`, `ddp`, `sharding`, `tensor`,
`experts` and `memory` what they cost under each strategy; `kv_cache` what a request costs;
`failures` how often many GPUs fail; `layer_cut` where to cut a model; `collectives` and
`pipeline_schedules` the algorithms, step by step. `published` holds other people's measurements as
CSV, with their sources.

Read first: model_shapes, then ddp.
May import: the top of the package, numpy.
"""
