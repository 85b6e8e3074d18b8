"""The protection of plans that are made in Python and in the demo: updates are summed securely where that is possible.

A plan file says itself what it wants: without `[method.secure]` its updates are averaged in clear.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from kohort.crypto.sums.mask_keys import MOST_SITES
from kohort.crypto.sums.scheme import MIN_SITES
from kohort.errors import ConfigError, RefusedError
from kohort.methods.registry import find_method
from kohort.runs.config import Plan, load_plan
from kohort.runs.plan.default_method import NETWORKS

__all__ = ["in_clear", "load_secured", "too_few_for_sum", "with_secure_sum"]


def with_secure_sum(raw: Mapping[str, Any], *, sites: int | None) -> dict[str, Any]:
    """The sections of a plan, with a secure sum of updates where the method can have one and nothing else is asked for.

    Args:
        raw: The sections of a plan. `method.secure` as None asks for plain averaging.
        sites: How many sites there will be; None when it is not known before the table is read.

    Returns:
        A new mapping. It has `method.secure.sum = "masks"`, or "bfv" for more sites than masks allow, if there are
        three sites or more, the method is without a sum by default, and `raw` has no `method.secure`; with a budget,
        if it says nothing of how sites train, because a sum of noisy gradients is one full step per round.
    """
    method = dict(raw["method"])
    made = {**raw, "method": method}
    if "secure" in method:
        if method["secure"] is None:
            del method["secure"]
        return made
    enough = sites is None or sites >= MIN_SITES
    if enough and _can_sum(method.get("dp"), raw.get("train") or {}) and _is_plain_by_default(str(method["name"])):
        method["secure"] = {"sum": "masks" if sites is None or sites <= MOST_SITES else "bfv"}
    return made


def load_secured(made: Mapping[str, Any], *, asked: Mapping[str, Any], plainly: str) -> Plan:
    """Validate what `with_secure_sum` made; an error about a sum that nobody asked for says how to do without it.

    Args:
        made: The sections of the plan.
        asked: The sections it was made from.
        plainly: How the caller asks for plain averaging.

    Returns:
        The plan.

    Raises:
        ConfigError: The sections are no plan, or a key needs each site's own update.
    """
    try:
        return load_plan(made)
    except ConfigError as error:
        added = "secure" in made["method"] and "secure" not in asked["method"]
        if not added or "method.secure" not in error.message:
            raise
        hint = f"{error.hint}, or give {plainly} for plain averaging, where rows can be read by a lying hub"
        raise ConfigError(error.message, hint=hint) from None


def _can_sum(dp: Any, train: Mapping[str, Any]) -> bool:
    """Whether a budget leaves it open how noise is added and how sites train."""
    if dp is None:
        return True
    keys = dp if isinstance(dp, Mapping) else {}
    gaussian = keys.get("mechanism", "dp-sgd") == "dp-sgd" and keys.get("quantile") is None
    return gaussian and not set(train) - {"rounds", "class_weights"}


def _is_plain_by_default(method: str) -> bool:
    found = {item.name: item.default for item in fields(find_method(method).config)}
    return found.get("secure", "") is None and "phases" not in found


def too_few_for_sum(sites: int) -> RefusedError:
    """The error of a plan that sums over one or two sites, each of which could read the other's numbers.

    Args:
        sites: How many take part.

    Returns:
        The error, for the caller to raise.
    """
    hint = (
        "Add a site, deal one table out to three or more (sites.count), or do without: "
        'method.secure = "none", where the hub sees each site\'s own numbers'
    )
    return RefusedError(f"a secure sum needs three sites, and {sites} take part", hint=hint)


def in_clear(plan: Plan, sites: int) -> list[str]:
    """A warning about updates that a hub could have been kept from seeing.

    Args:
        plan: The plan that ran.
        sites: How many sites took part.

    Returns:
        One sentence for federated averaging without a secure sum and without a budget; nothing otherwise.
    """
    if plan.method != NETWORKS or sites < 2 or plan.config.dp is not None:
        return []
    if plan.config.secure is not None and plan.config.secure.sum != "none":
        return []
    if sites < MIN_SITES:
        return ["updates were averaged in clear, where a lying hub can read rows: a secure sum needs three sites"]
    return ['updates were averaged in clear, where a lying hub can read rows: add [method.secure] and sum = "masks"']
