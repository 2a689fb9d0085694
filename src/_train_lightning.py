"""torchrun --standalone --nproc-per-node 4 src/_train_lightning.py --strategy ddp --steps 20

The same training in Lightning: its Trainer owns the processes, the wrapping and the loop.
"""

import lightning
import torch
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from torch.utils.data import DataLoader

from bootcamp.train import checkpoint, config, data, environment, models, optimizers, record


class Training(lightning.LightningModule):
    """The loop of the other scripts, as methods that the Trainer calls."""

    def __init__(self):
        super().__init__()
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
        self.run.end_step()
        self.run.loss(trainer.strategy.reduce(outputs["loss"]))
        checkpoint.save(context, first + index, model, optimizer)
        self.run.begin_step(first + index + 1)


args, context = config.parse(own_flags={"--strategy": {"default": "ddp"}})
device = torch.device(context.device)

# 1. Processes
trainer = lightning.Trainer(
    accelerator=device.type,
    devices=environment.local_count(),
    strategy=args.strategy,
    plugins=TorchElasticEnvironment(),  # torchrun has started the ranks
    max_epochs=1,
    barebones=True,
    use_distributed_sampler=False,  # our batches are shared out already
)
rank, world = trainer.global_rank, trainer.world_size

# 2. Model
model = models.build(args).to(device)

# 3. Data
batches = data.Batches(args, rank, world)

# 4. Optimizer
optimizer = optimizers.build(args, model.parameters())
first = checkpoint.load(context, model, optimizer)

# 5. Training loop
training = Training()
trainer.fit(training, DataLoader(batches, batch_size=None, sampler=range(first, args.steps)))
training.run.finish()
