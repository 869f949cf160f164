"""A recommender with sparse embedding tables, as a plain PyTorch script: will this user click this item?

The data are SYNTHETIC: users and items have hidden tastes, a history is drawn by taste, a click follows from it.
Attention over the history makes the memory of a step grow with the micro-batch; the embedding tables do not.
"""

import argparse
import json
import math
import os
import resource
import time
from pathlib import Path

import torch
from torch import nn

USERS, ITEMS, TASTES, HISTORY, WIDTH = 5_000, 5_000, 8, 64, 32


def clicks(count: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Synthetic impressions: user (n,), history (n, HISTORY), item (n,), whether it was clicked (n,)."""
    world = torch.Generator().manual_seed(0)
    of_user = torch.randint(0, TASTES, (USERS,), generator=world)
    of_item = torch.randint(0, TASTES, (ITEMS,), generator=world)
    by_taste = [torch.nonzero(of_item == taste).squeeze(1) for taste in range(TASTES)]
    made = torch.Generator().manual_seed(seed)
    user = torch.randint(0, USERS, (count,), generator=made)
    item = torch.randint(0, ITEMS, (count,), generator=made)
    history = torch.randint(0, ITEMS, (count, HISTORY), generator=made)
    for taste, items in enumerate(by_taste):
        rows = torch.nonzero(of_user[user] == taste).squeeze(1)
        liked = items[torch.randint(0, len(items), (len(rows), HISTORY), generator=made)]
        by_choice = torch.rand(len(rows), HISTORY, generator=made) < 0.7
        history[rows] = torch.where(by_choice, liked, history[rows])
    likes = torch.where(of_user[user] == of_item[item], 0.8, 0.1)
    return user, history, item, (torch.rand(count, generator=made) < likes).float()


class Recommender(nn.Module):
    """Logits (n,) from sparse tables of users and items and attention of the item over the history."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, WIDTH, sparse=True)
        self.items = nn.Embedding(ITEMS, WIDTH, sparse=True)
        self.mixing = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.head = nn.Sequential(nn.Linear(3 * WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, user: torch.Tensor, history: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        asked = self.items(item)
        mixed = self.mixing(self.items(history))
        weights = torch.softmax((mixed @ asked.unsqueeze(2)).squeeze(2) / math.sqrt(WIDTH), 1)
        wanted = (weights.unsqueeze(2) * mixed).sum(1)
        return self.head(torch.cat((self.users(user), wanted, asked), 1)).squeeze(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--batch-size", type=int, default=64, help="samples in memory at once")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches for each step of the optimizer")
    parser.add_argument("--samples", type=int, default=8_192)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    torch.manual_seed(given.seed)
    torch.set_num_threads(1)
    data, held = clicks(8_192, seed=1), clicks(512, seed=2)
    model = Recommender()
    sparse = torch.optim.SparseAdam([model.users.weight, model.items.weight], lr=given.lr)
    dense = torch.optim.AdamW([*model.mixing.parameters(), *model.head.parameters()], lr=given.lr)
    effective = given.batch_size * given.accumulate
    steps = max(1, given.samples // effective)
    spent = 0.0

    for step in range(1, steps + 1):
        began = time.perf_counter()
        for _ in range(given.accumulate):
            rows = torch.randint(0, len(data[0]), (given.batch_size,))
            user, history, item, clicked = (column[rows] for column in data)
            loss = nn.functional.binary_cross_entropy_with_logits(model(user, history, item), clicked)
            (loss / given.accumulate).backward()
        sparse.step()
        dense.step()
        model.zero_grad()
        spent += time.perf_counter() - began
        if step % max(1, steps // 20) == 0 or step == steps:
            report(step, step * effective, evaluate(model, held), step * effective / spent)


def evaluate(model: Recommender, held: tuple[torch.Tensor, ...]) -> float:
    """The mean loss over the held-out impressions, 64 at a time: evaluation must fit too."""
    total = 0.0
    with torch.no_grad():
        for user, history, item, clicked in zip(*(column.split(64) for column in held), strict=True):
            logits = model(user, history, item)
            total += nn.functional.binary_cross_entropy_with_logits(logits, clicked, reduction="sum").item()
    return total / len(held[0])


def report(step: int, samples: int, val_loss: float, samples_per_s: float) -> None:
    """One line for people, and one for x5tune where it runs this."""
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"step {step} val_loss {val_loss:.4f} {samples_per_s:.0f} samples/s peak {peak_mib:.0f} MiB", flush=True)
    if "X5TUNE_REPORT" in os.environ:
        metrics = {"val_loss": val_loss, "samples_per_s": samples_per_s, "peak_mib": peak_mib}
        with Path(os.environ["X5TUNE_REPORT"]).open("a") as lines:
            lines.write(json.dumps({"step": step, "samples": samples, "metrics": metrics}) + "\n")


if __name__ == "__main__":
    main()
