"""Sources of classes for which x5tune owns the loop, as a user would write them, for the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tuner.support import slot_setup
from tuner.assignment import SlotSetup
from tuner.jobspec import UserCode

IMPORTS = """
import os, time
import torch
from torch import nn
"""

CLASS = """
class Rows:
    parameters = {"width": 8}

    def __init__(self):
        made = torch.Generator().manual_seed(0)
        inputs = torch.randn(240, 6, generator=made)
        self.rows = (inputs, (inputs.sum(1) > 0).long())

    def model(self, config):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, config["width"]), nn.Tanh(), nn.Linear(config["width"], 2))

    def train_data(self):
        return tuple(part[:200] for part in self.rows)

    def eval_data(self):
        return tuple(part[200:] for part in self.rows)

    def loss(self, model, batch):
        inputs, labels = batch
        return nn.functional.cross_entropy(model(inputs), labels)

    def evaluate(self, model, data):
        return {"val_loss": self.loss(model, data), "val_accuracy": 0.5}
"""


def class_setup(folder: Path, *methods: str, before: str = "", **changes: Any) -> SlotSetup:
    """A slot for `CLASS` with these methods in the place of its own."""
    own = "".join(f"\n    def {method}\n" for method in methods)
    (folder / "train.py").write_text(f"{IMPORTS}{before}{CLASS}{own}")
    return slot_setup(folder, code=UserCode(str(folder), target="train.py:Rows"), **changes)
