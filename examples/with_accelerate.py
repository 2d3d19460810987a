"""Accelerate: `prepare` takes CoGD as any optimizer; what it says of its gates is at `optimizer.optimizer`."""

import accelerate
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from cogd import CoGD, couple_conv_norm
from cogd.models import build

if __name__ == "__main__":
    digits = load_digits()
    images, labels = torch.tensor(digits.images[:, None] / 16).float(), torch.tensor(digits.target)
    loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)
    model = build("digits", 10)
    base = torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizer = CoGD(base, couple_conv_norm(model, active=0.7), rule="rollback", period=len(loader))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2 * len(loader))

    accelerator = accelerate.Accelerator()
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for epoch in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
        accelerator.print(epoch, f"loss {loss.item():.3f}", optimizer.optimizer.last_stats)
