"""Corrections of local training against drift: FedProx and SCAFFOLD.

FedProx (Li et al., MLSys 2020) pulls local weights to the hub's by mu / 2 |w - w_hub|^2. SCAFFOLD (Karimireddy et al.,
ICML 2020, option II) shifts every local gradient by c - c_i, where c_i estimates the site's own gradient; the change of
c_i travels with the weights, so it is a disclosure of its own and the ledger names the task that sends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kohort.errors import ConfigError, nearest
from kohort.protocol.plan.options import bind, named

__all__ = ["Correction", "find_correction"]


@dataclass(frozen=True)
class Correction:
    """What changes at the sites: the pull of FedProx, the control variates of SCAFFOLD, or nothing."""

    prox: float = 0.0
    scaffold: bool = False


def _none() -> Correction:
    return Correction()


def _fedprox(*, mu: float = 0.01) -> Correction:
    if not mu > 0:
        raise ConfigError(f"mu = {mu:g} is not positive", hint="FedProx uses mu such as 0.001 to 1")
    return Correction(prox=mu)


def _scaffold() -> Correction:
    return Correction(scaffold=True)


_CORRECTIONS = {"none": _none, "fedprox": _fedprox, "scaffold": _scaffold}


def find_correction(spec: str | Mapping[str, Any]) -> Correction:
    """The correction that a plan names in `train.correction`.

    Args:
        spec: A name with options, as text or as a table.

    Returns:
        The correction.

    Raises:
        ConfigError: The name or an option is unknown.
    """
    name, options = named(spec)
    if name not in _CORRECTIONS:
        raise ConfigError(f"unknown correction {name!r} in train.correction", hint=nearest(name, _CORRECTIONS))
    made: Correction = bind(_CORRECTIONS[name], options, f"train.correction {name!r}")()
    return made
