"""A module of one's own for `examples/torch.toml`: two residual blocks with layer norm and dropout.

A factory takes the number of inputs and outputs, which follow from the table, and returns a new module that maps rows
[n, inputs] to raw scores [n, outputs]: no softmax at the end.
"""

import torch
from torch import nn


class Residual(nn.Module):
    """x + f(x), with dropout while training."""

    def __init__(self, width: int, *, dropout: float) -> None:
        super().__init__()
        self.change = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Dropout(dropout), nn.Linear(width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The rows, a little changed."""
        changed: torch.Tensor = self.change(x)
        return x + changed


def residual(inputs: int, outputs: int, *, width: int = 24, dropout: float = 0.1) -> nn.Module:
    """What `model.kind = "torch:torch_module:residual"` names."""
    return nn.Sequential(
        nn.Linear(inputs, width),
        Residual(width, dropout=dropout),
        Residual(width, dropout=dropout),
        nn.Linear(width, outputs),
    )
