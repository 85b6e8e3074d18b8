"""What the paper prints (Fisichella, Lax, Russo 2022). Its figures are curves without values, so these are the numbers
of its text and tables; other results have no figure of the paper beside them."""

from __future__ import annotations

from typing import Final

__all__ = ["ACCURACY", "ENCODING_E2", "LARGEST", "TIMES_EQUAL", "TIMES_FASTER_HUB", "Times"]

Times = tuple[float, float, float, float]
"""Server, slowest client, transfer, total: seconds."""

# Section 6: "from 0.80 to 0.83" after 100 epochs with encoding E1.
ACCURACY: Final = {"central": 0.83, "fedavg": 0.80}
# Section 5.3: about 0.80 after 100 epochs, about 0.02 more after 400.
ENCODING_E2: Final = {100: 0.80, 400: 0.82}
# Section 5.4: from these thresholds on nothing is shared.
LARGEST: Final = {"k": 554, "l": 402}

# Table 1, equal power. k = 1 is central learning, k = 555 FedAvg; both are printed for l too.
TIMES_EQUAL: Final[dict[str, dict[int, Times]]] = {
    "k": {
        1: (126.00, 0.00, 0.79, 126.79),
        100: (110.64, 13.18, 0.69, 124.51),
        200: (78.58, 15.05, 0.59, 94.22),
        300: (66.97, 15.95, 0.41, 83.34),
        400: (42.53, 19.55, 0.27, 62.36),
        500: (24.12, 21.13, 0.12, 45.38),
        555: (0.00, 24.75, 0.00, 24.75),
    },
    "l": {
        100: (91.88, 5.61, 0.63, 98.12),
        200: (55.52, 13.28, 0.41, 69.21),
        300: (31.71, 22.41, 0.35, 54.47),
    },
}
# Table 2, a hub ten times faster.
TIMES_FASTER_HUB: Final[dict[str, dict[int, Times]]] = {
    "k": {
        1: (12.60, 0.00, 0.79, 13.39),
        100: (11.06, 13.18, 0.69, 24.93),
        200: (7.86, 15.05, 0.59, 23.50),
        300: (6.70, 15.95, 0.41, 23.06),
        400: (4.25, 19.55, 0.27, 24.08),
        500: (2.41, 21.13, 0.12, 23.67),
        555: (0.00, 24.75, 0.00, 24.75),
    },
    "l": {
        100: (9.19, 5.61, 0.63, 15.43),
        200: (5.55, 13.28, 0.41, 19.24),
        300: (3.17, 22.41, 0.35, 25.93),
    },
}
