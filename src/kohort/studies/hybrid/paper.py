"""What the paper prints (Corbucci, Monreale, Pellungrini 2024): Tables 1 to 3, and the settings beside them.

Accuracies are means of four runs. Where a table's improvement is a dash none is printed here; the others use two
denominators, the server's accuracy in one line (32.24 %) and the hybrid's in its neighbours (22.34 %).
"""

from __future__ import annotations

from typing import Final

__all__ = ["DELTAS", "EPSILONS", "HYBRID", "IMPROVEMENT", "NO_DP", "SERVER", "SHARES"]

SHARES: Final = (0.2, 0.3, 0.4)
"""Of low-risk rows."""
EPSILONS: Final = {"dutch": (0.2, 0.5, 1.0), "income": (0.5, 1.0, 2.0), "covertype": (0.5, 1.0, 2.0)}
DELTAS: Final = {"dutch": 9e-3, "income": 1e-2, "covertype": 3e-3}
"""Section 4: one over the rows of the smallest client."""

# The first three lines of each table, by share.
NO_DP: Final = {
    "dutch": (0.817, 0.815, 0.810),
    "income": (0.781, 0.780, 0.779),
    "covertype": (0.698, 0.697, 0.695),
}
# The other nine: by share, then by epsilon.
SERVER: Final = {
    "dutch": ((0.629, 0.792, 0.785), (0.611, 0.705, 0.788), (0.632, 0.771, 0.791)),
    "income": ((0.732, 0.745, 0.756), (0.741, 0.757, 0.765), (0.718, 0.753, 0.761)),
    "covertype": ((0.554, 0.614, 0.640), (0.533, 0.615, 0.612), (0.573, 0.572, 0.612)),
}
HYBRID: Final = {
    "dutch": ((0.810, 0.747, 0.808), (0.808, 0.682, 0.803), (0.815, 0.788, 0.809)),
    "income": ((0.769, 0.777, 0.777), (0.757, 0.774, 0.757), (0.770, 0.771, 0.773)),
    "covertype": ((0.594, 0.642, 0.652), (0.632, 0.627, 0.616), (0.635, 0.643, 0.673)),
}
IMPROVEMENT: Final[dict[str, tuple[tuple[float | None, ...], ...]]] = {
    "dutch": ((0.2234, None, None), (0.3224, None, 0.0186), (0.2245, 0.0215, 0.0222)),
    "income": ((0.0481, 0.0411, 0.0277), (0.0215, 0.0219, None), (0.0675, 0.0220, 0.0155)),
    "covertype": ((0.0722, 0.0456, 0.0187), (0.1857, 0.0195, 0.0065), (0.1082, 0.1241, 0.0996)),
}
