"""A plain loop with mixed precision and a scheduler: CoGD stands where any optimizer stands."""

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from cogd import CoGD, couple_conv_norm
from cogd.models import build

if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    digits = load_digits()
    images = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32, device=device)
    labels = torch.tensor(digits.target, device=device)
    model = build("digits", 10).to(device)
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = CoGD(base, couple_conv_norm(model, active=0.7), rule="rollback", period=20)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=60)
    scaler = torch.amp.GradScaler(device)
    for _ in range(60):
        batch = torch.randint(len(images), (64,), device=device)
        optimizer.zero_grad()
        with torch.autocast(device, torch.float16 if device == "cuda" else torch.bfloat16):
            loss = cross_entropy(model(images[batch]), labels[batch])
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # a step whose gradients overflowed is left out, and CoGD doesn't count it
        scaler.update()
        scheduler.step()
    print(f"loss {loss.item():.3f}", optimizer.last_stats)
