"""Beyond the paper: low-risk rows that differ, data that is no table, and what accountants make of the same noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from kohort.privacy.dp.accounting import Accountant, Event, epsilon_of
from kohort.runs.config import Plan
from kohort.studies.harness.lines import row, row_of
from kohort.studies.hybrid.plans import (
    ONE_HOT,
    Case,
    Descent,
    Local,
    Setting,
    hybrid,
    low_risk_only,
    no_dp,
    peers_only,
    server_only,
    summed,
    tuned,
    tuned_hybrid,
)
from kohort.studies.hybrid.runs import Runs
from kohort.studies.registry import Say

__all__ = ["accounting", "digits_table", "shifted"]

YOUNGEST: Final = {"below:age:6": "the youngest 14 %", "below:age:7": "the youngest 25 %"}
"""Ages are coded in groups; a fifth lies between these two."""
DIGITS = Case(
    name="digits",
    title="Digits",
    table="digits",
    data={"target": "digit", "bounds": {f"pixel_{place:02d}": [0, 16] for place in range(64)}},
    clusters=2,
    sites=3,
    alpha=5.0,
    peers=Local(rounds=5, epochs=4, lr=0.5),
    server=Local(rounds=10, lr=0.5),
    clip=0.5,
    descent=Descent(rounds=40, lr=1.0, clip=0.3),
    least=120,
)
DIGITS_EPSILON: Final = 2.0
DELTA: Final = 1e-5
TWO_PHASES: Final = (Event(sigma=6.0, rate=0.2, steps=100), Event(sigma=8.0, rate=0.1, steps=600))


def shifted(runs: Runs, epsilons: Sequence[float], say: Say) -> dict[str, Any]:
    """Low-risk rows of young people only, who differ from the rest: can the DP phase earn its noise here?"""
    setting = Setting(name="shifted", alpha=5.0, delta=DELTA)
    # A site's share of young rows is its own, so sites must be large enough for either part.
    case = replace(ONE_HOT, least=250)
    say("Covariate shift: low-risk rows are the youngest")
    lines: dict[str, Plan] = {}
    for rule, who in YOUNGEST.items():
        lines |= {
            f"{who}: no DP, high-risk rows": no_dp(case, setting, rule),
            f"{who}: low-risk only": low_risk_only(case, setting, rule),
        }
        for epsilon in epsilons:
            lines |= {
                f"{who}, epsilon {epsilon:g}: tuned server-only": tuned(case, setting, rule, epsilon),
                f"{who}, epsilon {epsilon:g}: P2P, then tuned": tuned_hybrid(case, setting, rule, epsilon),
            }
    runs.prepare(list(lines.values()))
    rows = [row_of(name, None, runs.accuracies(plan)) for name, plan in lines.items()]
    return {"name": "Dutch, one-hot: low-risk rows are the youngest", "source": "beyond the paper", "rows": rows}


def digits_table(runs: Runs, say: Say) -> dict[str, Any]:
    """Pictures of handwritten digits, 8 x 8 pixels, over two clusters of three sites."""
    say("Digits")
    setting, share = Setting(name="digits", alpha=5.0, delta=DELTA), 0.4
    lines = {
        "no DP": no_dp(DIGITS, setting, share),
        "low-risk only": low_risk_only(DIGITS, setting, share),
        "peers only, mean of clusters": peers_only(DIGITS, setting, share),
    }
    ways = {
        "FL": server_only,
        "P2P+FL": hybrid,
        "tuned server-only": tuned,
        "P2P, then tuned": tuned_hybrid,
        "noise added once, all rows": summed,
    }
    for name, way in ways.items():
        lines[f"epsilon {DIGITS_EPSILON:g}: {name}"] = way(DIGITS, setting, share, DIGITS_EPSILON)
    runs.prepare(list(lines.values()))
    rows = [row_of(name, None, runs.accuracies(plan)) for name, plan in lines.items()]
    return {"name": "Handwritten digits, 40 % low-risk", "source": "beyond the paper", "rows": rows}


def accounting() -> dict[str, Any]:
    """One composition of everything, beside the Rényi account and the sum the paper suggests."""
    one = TWO_PHASES[1:]
    kinds: tuple[tuple[Accountant, str], ...] = (
        ("pld", "PLD"), ("rdp", "RDP"), ("basic", "RDP a phase, then summed"),
    )  # fmt: skip
    rows = [
        row(f"{what}: {label}", None, epsilon_of(events, DELTA, accountant=kind))
        for what, events, shown in (
            ("sigma 8, rate 0.1, 600 steps", one, kinds[:2]),
            ("sigma 6, rate 0.2, 100 steps, then the same", TWO_PHASES, kinds),
        )
        for kind, label in shown
    ]
    return {"name": "Epsilon at delta 1e-5 by accountant", "source": "Section 3", "rows": rows}
