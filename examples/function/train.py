"""The spirals of `examples/script` as a function: imported once, forked for each trial, pruned at exact points."""

import math
from typing import Any

import torch
from torch import nn

torch.set_num_threads(1)


def spirals(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 2, (count,), generator=made)
    angle = torch.rand(count, generator=made) * 3 * math.pi
    turned = angle + label * math.pi
    points = torch.stack((turned.cos(), turned.sin()), 1) * (angle / math.pi).unsqueeze(1)
    return points + 0.1 * torch.randn(count, 2, generator=made), label


DATA, HELD = spirals(2000, seed=1), spirals(500, seed=2)  # made once, shared by all trials


def train(config: Any, probe: Any) -> None:
    torch.manual_seed(config.seed)
    (inputs, labels), (held_inputs, held_labels) = DATA, HELD
    width = config["width"]  # a parameter of our own
    model = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"])
    for step in range(1, probe.steps + 1):
        batch = torch.randint(0, len(inputs), (config["batch_size"],))
        loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if probe.due(step):
            with torch.no_grad():
                held = nn.functional.cross_entropy(model(held_inputs), held_labels)
            probe.report(step=step, val_loss=held.item(), train_loss=loss.item())
