"""The method of a plan that names none, and the settings of one that says nothing about training.

An additive model, over secure sums, is the default: it can be read, the hub reads no count of few persons, and it
needs no setting. A plan that says how a network is trained gets federated averaging, which those settings are for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from kohort.crypto.sums.mask_keys import MOST_SITES
from kohort.crypto.sums.scheme import MIN_SITES
from kohort.errors import ConfigError
from kohort.methods.registry import Method, find_method
from kohort.privacy.policy import Policy
from kohort.protocol.plan.sections import LEARNED_KINDS

__all__ = [
    "ADDITIVE",
    "NETWORKS",
    "SAYS_NOTHING",
    "default_method",
    "require_budget_key",
    "trains_network",
    "with_automatic_model",
    "with_default_settings",
    "with_default_sum",
    "with_short_forms",
]

ADDITIVE, NETWORKS = "additive", "fedavg"
_NO_NETWORK = frozenset({"train.class_weights", "model.dtype"})
SAYS_NOTHING = _NO_NETWORK | {"train.rounds", "train.stop"}
"""Keys that in Python say nothing about how a network is trained: how long, and which classes count how much."""
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "data": {"encoding": "onehot"},
    "model": {"hidden": [24]},
    "train": {"rounds": 40, "local_epochs": 2, "batch": 64, "lr": 0.005},
}
"""What is good on ordinary tables; the defaults of the sections are those of a paper."""
_NOISY: Mapping[str, Mapping[str, Any]] = {
    "data": {"encoding": "onehot"},
    "model": {"kind": "logistic"},
}
"""The same for federated averaging with a budget, whose noise is spent on each of the weights in each round; how it is
trained follows from the budget (`kohort.rounds.private_defaults`)."""
_SHORT = {"dp": "epsilon", "secure": "sum"}


def default_method(raw: Mapping[str, Any]) -> tuple[str, str]:
    """The method of a plan's sections that name none.

    Args:
        raw: The sections.

    Returns:
        Its name, and the reason in words; no reason where the plan's own keys ask for it.
    """
    given = {f"{section}.{key}" for section in ("train", "model") for key in raw.get(section) or {}}
    kind = _kind(raw.get("model") or {})
    if given <= {*_NO_NETWORK, "model.kind"} and kind in LEARNED_KINDS:
        return kind, f"Method: {kind} (from model.kind)"
    if given - _NO_NETWORK:
        return NETWORKS, ""
    return ADDITIVE, "Method: additive (default). The hub reads no count below min_cell"


def with_automatic_model(raw: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """A plan's sections with the kind of model that `model.kind = "auto"` stands for.

    Forests are chosen where the policy asks for no minimum cell, neither of domains (`min_cell`) nor of totals
    (`min_sum_cell`): their totals may show single persons. Otherwise it is an additive model.

    Args:
        raw: The sections.

    Returns:
        The sections, and the reason in words; no reason where the plan names a kind.
    """
    model, policy = raw.get("model"), raw.get("policy") or {}
    if not isinstance(model, Mapping) or _kind(model) != "auto" or not isinstance(policy, Mapping):
        return raw, ""
    cells = [policy.get("min_cell", Policy.min_cell), policy.get("min_sum_cell", Policy.min_sum_cell)]
    least = max((cell for cell in cells if isinstance(cell, int)), default=Policy.min_cell)
    kind = "trees" if least <= 1 else ADDITIVE
    asks = f"asks for cells of at least {least} persons" if least > 1 else "asks for no minimum cell"
    return {**raw, "model": {**model, "kind": kind}}, f"model.kind is auto: {kind}, because the policy {asks}"


def _kind(model: Mapping[str, Any]) -> str:
    return str(model.get("kind", ""))


def with_default_sum(own: Mapping[str, Any], sites: int | None) -> dict[str, Any]:
    """An additive model's keys, with a secure sum that suits the number of sites.

    Args:
        own: The keys of `[method]` besides the name.
        sites: How many sites there will be; None when it is not known before the table is read.

    Returns:
        The keys; a single site has nothing to hide in a sum, and above 500 masks are too many. Two sites stay with
        masks and are refused when they run: each could read the other, and somebody has to say that this is meant.
    """
    if "secure" in own or sites is None or 1 < sites <= MOST_SITES:
        return dict(own)
    return {**own, "secure": {"sum": "none" if sites == 1 else "bfv"}}


def with_short_forms(own: Mapping[str, Any], data: Any = None) -> dict[str, Any]:
    """The keys of `[method]` with `dp = 1.0` and `secure = "masks"` as the sections they stand for.

    Args:
        own: The keys of `[method]`.
        data: `[data]`, if there is one. Where it names identifiers, `dp = 1.0` protects persons, not rows.

    Returns:
        A new mapping.
    """
    made = dict(own)
    for name, key in _SHORT.items():
        value = made.get(name)
        if isinstance(value, str if key == "sum" else int | float) and not isinstance(value, bool):
            made[name] = {key: value}
            if name == "dp" and isinstance(data, Mapping) and (data.get("identifiers") or data.get("person")):
                made[name]["unit"] = "person"
    if isinstance(phases := made.get("phases"), list | tuple):
        made["phases"] = [with_short_forms(one, data) if isinstance(one, Mapping) else one for one in phases]
    return made


def require_budget_key(method: Method, own: Mapping[str, Any]) -> None:
    """Refuse a budget for a method that adds no noise, and name those that do.

    Args:
        method: The method.
        own: The keys of `[method]`.

    Raises:
        ConfigError: It has no key `dp`.
    """
    if "dp" not in own or any(item.name == "dp" for item in fields(method.config)):
        return
    others = "additive, fedavg and oneshot have one" + ("; here phases have" if _has_phases(method.name) else "")
    raise ConfigError(f"method {method.name!r} has no privacy budget (method.dp)", hint=f"Drop it: {others}")


def with_default_settings(
    raw: Mapping[str, Any], *, sites: int | None, besides: frozenset[str] = _NO_NETWORK
) -> tuple[dict[str, Any], str]:
    """A plan that names a method and says nothing about training, with settings that are good on ordinary tables.

    Args:
        raw: The sections of a plan.
        sites: How many sites there will be; None when it is not known before the table is read.
        besides: Keys of `[train]` and `[model]` that say nothing about how a network is trained.

    Returns:
        The sections, and in words what was filled in; the same sections and no words where the plan gives a key of
        `[train]`, `[model]` or `data.encoding`, or the method trains no network.
    """
    method = dict(raw.get("method") or {})
    sections = {name: raw.get(name) or {} for name in ("data", "train", "model")}
    if not all(isinstance(values, Mapping) for values in sections.values()):
        return dict(raw), ""  # whoever reads the plan says what is wrong with it
    given = {f"{section}.{key}" for section in ("train", "model") for key in sections[section]} - besides
    named = str(method.get("name", ""))
    if given or "encoding" in sections["data"] or _has_phases(named) or not trains_network(named):
        return dict(raw), ""
    averages = named == NETWORKS
    noisy = averages and method.get("dp") is not None
    enough = sites is None or sites >= MIN_SITES
    if averages and enough and "secure" not in method:
        method["secure"] = {"sum": "masks" if sites is None or sites <= MOST_SITES else "bfv"}
    filled = _NOISY if noisy else _SETTINGS
    made = {**raw, "method": method}
    for section, keys in filled.items():
        made[section] = {**keys, **sections[section]}
    words = ", ".join(f"{key} {value}" for keys in filled.values() for key, value in keys.items())
    return made, f"the plan says nothing about training, so it has settings for tables: {words}"


def _has_phases(name: str) -> bool:
    """Whether a method's phases have rounds, rates and budgets of their own."""
    return any(item.name == "phases" for item in fields(find_method(name).config))


def trains_network(name: str) -> bool:
    """Whether a method trains a network by steps of a chosen size, for which categories have a column each.

    Args:
        name: The method's name.

    Returns:
        True where the method reads `train.lr`; False where its section has a key without a default.

    Raises:
        ConfigError: No method has this name.
    """
    method = find_method(name)
    try:
        return "train.lr" in method.reads(method.config()).keys
    except TypeError:  # a method of another package whose section has keys without a default
        return False
