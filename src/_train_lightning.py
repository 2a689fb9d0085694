"""torchrun --standalone --nproc-per-node 4 src/_train_lightning.py --strategy ddp --steps 20

The same training in Lightning: its Trainer owns the processes, the wrapping and the loop.
"""

import lightning
import torch
from torch.utils.data import DataLoader

from bootcamp.train import checkpoint, config, data, environment, models, optimizers, record

# A flag names one of Lightning's strategies.
args, context = config.parse(own_flags={"--strategy": {"default": "ddp"}})
device = torch.device(context.device)

# 1. Processes
trainer = lightning.Trainer(
    accelerator=device.type,
    devices=environment.local_world_size(),
    num_nodes=environment.world_size() // environment.local_world_size(),
    strategy=args.strategy,
    # Torchrun has started the ranks.
    plugins=lightning.fabric.plugins.environments.TorchElasticEnvironment(),
    max_epochs=1,
    barebones=True,
    # Each rank's batches are its share already.
    use_distributed_sampler=False,
)
# The same two numbers, from the Trainer.
rank, world = trainer.global_rank, trainer.world_size

# 2. Model
model = models.build(args).to(device)

# 3. Data
batches = data.Batches(args, rank, world)

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
first = checkpoint.load(context, model, optimizer)

# 5. Training loop


class Training(lightning.LightningModule):
    """The loop of the other scripts, as methods that the Trainer calls."""

    def __init__(self, model):
        super().__init__()
        # As an attribute, so that the Trainer finds the parameters.
        self.model = model

    def configure_optimizers(self):
        return optimizer

    def training_step(self, batch, _):
        inputs, targets = batch
        return models.loss(self.model(inputs), targets)

    def on_train_start(self):
        self.run = record.Run(context, model, optimizer, batches, world)
        self.run.begin_step(first)

    def on_train_batch_end(self, outputs, _, index):
        # The step's clock stops: what follows is no training.
        self.run.end_step()
        # The mean of the ranks' losses, for the record.
        self.run.loss(trainer.strategy.reduce(outputs["loss"]))
        # The course's own checkpoint: `barebones` has switched Lightning's off.
        checkpoint.save(context, first + index, model, optimizer)
        # The next step's clock runs; the Trainer counts from 0 after a restart, too.
        self.run.begin_step(first + index + 1)


# The object that the Trainer calls.
training = Training(model)
# Runs the loop; the loader asks `batches` for one step after another.
trainer.fit(training, DataLoader(batches, batch_size=None, sampler=range(first, args.steps)))
# Writes this rank's record, and on rank 0 the run's summary.
training.run.finish()
