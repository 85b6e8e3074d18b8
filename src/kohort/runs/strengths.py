"""Three strengths of protection for every method: what `kohort compare --strengths` sets side by side.

Each is a change of keys on the user's own plan, from the method's least protection to its most, so that k, l, t,
epsilon, masks and encryption stand on one chart. They are examples to begin with, not advice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kohort.errors import ConfigError, nearest

__all__ = ["ALL", "STRENGTHS", "Strength", "strengths_of"]

ALL: Final = "all"


@dataclass(frozen=True)
class Strength:
    """One way to protect a method.

    Attributes:
        label: In words, for tables.
        kind: What protects: "none", "k", "l", "t", "epsilon", "masks" or "encryption".
        keys: `section.key=value` on the plan, beside `method.name`.
    """

    label: str
    kind: str
    keys: tuple[str, ...] = ()


def _budget(epsilon: float, *more: str, key: str = "method.dp", kind: str = "epsilon") -> Strength:
    dp = f'{key}={{epsilon = {epsilon}, delta = 1e-5, unit = "row"}}'
    return Strength(f"epsilon {epsilon:g}", kind, (dp, *more))


def _phases(epsilon: float) -> Strength:
    peers = '{kind = "peers", rounds = 6, local_epochs = 7, optimizer = "sgd", lr = 0.3}'
    dp = f"{{epsilon = {epsilon}, delta = 1e-5}}"
    server = f'{{kind = "server", rounds = 2, optimizer = "sgd", lr = 0.1, batch = 0, dp = {dp}}}'
    keys = (f"method.phases=[{peers}, {server}]", 'method.clusters="labels:2"', "sites.low_risk=0.5")
    return Strength(f"epsilon {epsilon:g} for rows of high risk", "epsilon", keys)


def _gate(k: int, diversity: int) -> Strength:
    keys = (f"method.gate.k={k}", f"method.gate.release_k={k}", f"method.gate.release_l={diversity}")
    return Strength(f"k = {k}, l = {diversity}" if diversity > 1 else f"k = {k}", "l" if diversity > 1 else "k", keys)


def _sum(name: str, *more: str) -> Strength:
    words = {"none": ("in clear", "none"), "masks": ("masks", "masks"), "bfv": ("encryption", "encryption")}
    return Strength(words[name][0], words[name][1], (f'method.secure.sum="{name}"', *more))


_STEPS: Final = ("train.batch=0", "train.local_epochs=1", 'train.optimizer="sgd"', "train.lr=0.5")
STRENGTHS: Final[dict[str, tuple[Strength, ...]]] = {
    "additive": (_sum("masks"), _budget(4.0), _budget(0.5)),
    "central": (Strength("rows as they are", "none"),),
    "fedavg": (
        Strength("in clear", "none"),
        _sum("masks"),
        _budget(1.0, 'method.secure.sum="masks"', *_STEPS),
    ),
    "hybrid": (_phases(8.0), _phases(2.0), _phases(0.5)),
    "oneshot": (
        _sum("masks", 'policy.pairs="open"'),
        _sum("bfv"),
        _budget(1.0, 'method.secure.sum="masks"'),
    ),
    "partial": (_gate(5, 1), _gate(5, 2), _gate(50, 2)),
    "silo": (
        Strength("k = 5", "k", ("method.anonymise.k=5",)),
        Strength("k = 5, l = 2", "l", ("method.anonymise.k=5", "method.anonymise.l=2")),
        Strength("k = 5, t = 0.2", "t", ("method.anonymise.k=5", "method.anonymise.t=0.2")),
    ),
    "syntactic": tuple(Strength(f"k = {k}", "k", (f"method.anonymise.k={k}",)) for k in (5, 20, 80)),
    "trees": (_sum("none"), _sum("masks"), Strength("masks, cells of 20", "masks", ("method.min_cell=20",))),
}
"""By method, weakest first."""


def strengths_of(text: str) -> dict[str, tuple[Strength, ...]]:
    """The strengths of some methods.

    Args:
        text: Methods, separated by commas, or "all".

    Returns:
        Their strengths, by method.

    Raises:
        ConfigError: A method has none.
    """
    names = list(STRENGTHS) if text.strip() == ALL else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in STRENGTHS:
            raise ConfigError(f"no strengths are known of a method {name!r}", hint=nearest(name, [ALL, *STRENGTHS]))
    if len(set(names)) < len(names):
        raise ConfigError("--strengths repeats a method", hint="Name every method once")
    return {name: STRENGTHS[name] for name in names}
