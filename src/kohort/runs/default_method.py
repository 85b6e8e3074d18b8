"""The method of a plan that names none.

An additive model, over secure sums, is the default: it can be read, its totals show no cell of few persons, and it
needs no setting. A plan that says how a network is trained gets federated averaging, which those settings are for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kohort.crypto.sums.mask_keys import MOST_SITES
from kohort.crypto.sums.scheme import MIN_SITES

__all__ = ["ADDITIVE", "NETWORKS", "default_method", "with_default_sum"]

ADDITIVE, NETWORKS = "additive", "fedavg"
_NO_NETWORK = frozenset({"train.class_weights", "model.dtype"})


def default_method(raw: Mapping[str, Any]) -> tuple[str, str]:
    """The method of a plan's sections that name none.

    Args:
        raw: The sections.

    Returns:
        Its name, and the reason in words; no reason where the plan's own keys ask for it.
    """
    given = {f"{section}.{key}" for section in ("train", "model") for key in raw.get(section) or {}}
    chosen = raw.get("model") or {}
    asks_for_network = given - _NO_NETWORK and not (given <= {*_NO_NETWORK, "model.kind"} and _kind(chosen) == ADDITIVE)
    if asks_for_network:
        return NETWORKS, ""
    return ADDITIVE, "method.name is not given: additive, because no key asks for a network"


def _kind(model: Mapping[str, Any]) -> str:
    return str(model.get("kind", ""))


def with_default_sum(own: Mapping[str, Any], sites: int | None) -> dict[str, Any]:
    """The keys of an additive model that nobody chose, with the sum that so many sites can have.

    Args:
        own: The keys of `[method]` besides the name.
        sites: How many sites there will be; None when it is not known before the table is read.

    Returns:
        The keys; with fewer than three sites nothing can be hidden in a sum, and above 500 masks are too many.
    """
    if "secure" in own or sites is None or MIN_SITES <= sites <= MOST_SITES:
        return dict(own)
    return {**own, "secure": {"sum": "none" if sites < MIN_SITES else "bfv"}}
