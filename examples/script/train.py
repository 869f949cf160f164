"""An ordinary PyTorch script with argparse; it has never heard of x5tune.

The data are synthetic: points on two spirals, made from a fixed seed.
"""

import argparse
import math

import torch
from torch import nn


def spirals(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 2, (count,), generator=made)
    angle = torch.rand(count, generator=made) * 3 * math.pi
    turned = angle + label * math.pi
    points = torch.stack((turned.cos(), turned.sin()), 1) * (angle / math.pi).unsqueeze(1)
    return points + 0.1 * torch.randn(count, 2, generator=made), label


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--samples", type=int, default=32_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    torch.manual_seed(given.seed)
    torch.set_num_threads(1)
    inputs, labels = spirals(2000, seed=1)
    held_inputs, held_labels = spirals(500, seed=2)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.lr, weight_decay=given.weight_decay)
    steps = given.samples // (given.batch_size * given.accumulate)

    for step in range(1, steps + 1):
        for _ in range(given.accumulate):
            batch = torch.randint(0, len(inputs), (given.batch_size,))
            loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
            (loss / given.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % max(1, steps // 40) == 0 or step == steps:
            with torch.no_grad():
                held = nn.functional.cross_entropy(model(held_inputs), held_labels)
            print(f"step {step}/{steps} train_loss={loss.item():.4f} val_loss={held.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
