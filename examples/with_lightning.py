"""Lightning: CoGD as it is from `configure_optimizers`, and a callback that logs how many gates open."""

import lightning
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from cogd import CoGD, couple_conv_norm
from cogd.models import build


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = build("digits", 10)

    def training_step(self, batch, _):
        inputs, targets = batch
        return cross_entropy(self.network(inputs), targets)

    def configure_optimizers(self):
        base = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return CoGD(base, couple_conv_norm(self.network, active=0.7), rule="rollback", period=10)


class LogGates(lightning.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        for stats in trainer.optimizers[0].last_stats:
            module.log(f"open gates/{stats.name}", stats.opened / stats.coordinates)


if __name__ == "__main__":
    digits = load_digits()
    images, labels = torch.tensor(digits.images[:, None] / 16).float(), torch.tensor(digits.target)
    loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)
    trainer = lightning.Trainer(max_epochs=1, callbacks=[LogGates()], log_every_n_steps=10, enable_checkpointing=False)
    trainer.fit(Digits(), loader)
    print({name: float(value) for name, value in trainer.logged_metrics.items()})
