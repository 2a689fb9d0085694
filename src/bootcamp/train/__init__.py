"""What runs inside a rank: flags, data, models, optimizers, checkpoints, and the record of it.

Nothing here wraps a model, shards it, or calls a collective for the training: those lines stand in
the scripts, src/_train_*.py. Ranks never import the launcher.

Read first: config, then record.
"""
