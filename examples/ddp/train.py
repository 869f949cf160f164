"""The spirals of `examples/script`, trained by several processes: an ordinary DistributedDataParallel script.

By itself: `torchrun --nproc-per-node 2 train.py`. Every process takes its share of each batch; the gradients meet in
the backward pass. x5tune starts it under torchrun as `resources.processes` says.
"""

import argparse
import contextlib
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import x5tune


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
    parser.add_argument("--batch-size", type=int, default=32, help="of one process at a time")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--samples", type=int, default=32_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, processes = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(given.seed)  # the same model everywhere
    inputs, labels = (part.to(device) for part in spirals(2000, seed=1))
    held_inputs, held_labels = (part.to(device) for part in spirals(500, seed=2))
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)).to(device)
    shared = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.lr)
    torch.manual_seed(given.seed * processes + rank)  # other samples on each
    steps = given.samples // (given.batch_size * given.accumulate * processes)

    for step in range(1, steps + 1):
        for part in range(given.accumulate):
            batch = torch.randint(0, len(inputs), (given.batch_size,), device=device)
            with shared.no_sync() if part < given.accumulate - 1 else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(shared(inputs[batch]), labels[batch])
                (loss / given.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % max(1, steps // 20) == 0 or step == steps:
            with torch.no_grad():
                held = nn.functional.cross_entropy(model(held_inputs), held_labels)
            x5tune.report(step=step, val_loss=held.item())  # rank 0 reports; on the others it does nothing
            if rank == 0:
                print(f"step {step}/{steps} val_loss={held.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
