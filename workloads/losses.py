"""Losses of the built-ins: cross entropy with its variants, and several losses weighed by learnt uncertainties."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, *, label_smoothing: float = 0.0, focal_gamma: float = 0.0
) -> torch.Tensor:
    """The mean cross entropy; with a gamma the focal loss (Lin et al. 2017, arXiv:1708.02002, eq. 4, without alpha).

    There each sample is weighed by (1 - p)^gamma, p being what the model gives its label; the weight has a gradient.
    """
    if focal_gamma == 0:
        return F.cross_entropy(logits, labels, label_smoothing=label_smoothing)
    logits = logits.float()
    each = F.cross_entropy(logits, labels, label_smoothing=label_smoothing, reduction="none")
    log_p = F.log_softmax(logits, 1).gather(1, labels[:, None])[:, 0]
    certainty = log_p.exp().clamp(max=1 - 1e-6)  # at 1 the power has no gradient for gamma < 1
    return ((1 - certainty) ** focal_gamma * each).mean()


class UncertaintyWeights(nn.Module):
    """The sum of losses, each weighed by a learnt variance (Kendall et al. 2018, arXiv:1705.07115, eq. 7).

    sum_i L_i / (2 s_i^2) + log s_i, with log s_i^2 as the parameter, so that no step makes a variance negative.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.log_variances = nn.Parameter(torch.zeros(count))

    def forward(self, *losses: torch.Tensor) -> torch.Tensor:
        weighed = torch.stack([loss.float() for loss in losses]) * torch.exp(-self.log_variances)
        total: torch.Tensor = (weighed + self.log_variances).sum() / 2
        return total
