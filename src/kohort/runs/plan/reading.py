"""Which keys of a plan are read, and by whom: put together from what the method, the model and the split declare."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Final, Protocol

from kohort.methods.registry import find_method
from kohort.protocol.plan.phases import SecureSumSection
from kohort.protocol.plan.reads import unread_by_optimizers
from kohort.protocol.plan.sections import ModelSection, TrainSection
from kohort.runs.plan.sections import DEPLOYED, SitesSection

__all__ = ["at_default", "read_keys", "reasons", "unread_keys"]

_DEALT: Final = frozenset({"sites.low_risk", "sites.clusters"})
"""What real sites say themselves, in their site.toml."""


class Sections(Protocol):
    """What of a plan decides which of its keys are read."""

    @property
    def method(self) -> str:
        """The method's name."""

    @property
    def config(self) -> Any:
        """`[method]`."""

    @property
    def model(self) -> ModelSection:
        """`[model]`."""

    @property
    def train(self) -> TrainSection:
        """`[train]`."""

    @property
    def sites(self) -> SitesSection:
        """`[sites]`."""


def read_keys(plan: Sections, engine: str) -> frozenset[str]:
    """Which keys of `[sites]`, `[model]` and `[train]` are read.

    Args:
        plan: The plan.
        engine: The engine that carries it out.

    Returns:
        Dotted names, as in "train.lr".
    """
    declared = find_method(plan.method).reads(plan.config)
    by_method = declared.keys | ({"model.kind"} if declared.model_kind == plan.model.kind else set())
    by_model = {key for key in by_method if not key.startswith("model.")} | plan.model.reads()
    read = by_method & by_model - _unread_in_training(plan).keys() - (_DEALT if engine == DEPLOYED else set())
    read |= plan.sites.reads(engine)
    return read | ({"sites.alpha"} if "sites.low_risk" in read and plan.sites.skews_risk else set())


def unread_keys(plan: Sections) -> Mapping[str, str]:
    """Keys of `[method]` and `[data]` that are not read, whether or not the plan gives them.

    Args:
        plan: The plan.

    Returns:
        Why each is not read, by its dotted name.
    """
    method = find_method(plan.method)
    found = dict(method.reads(plan.config).unread)
    noisy = any(phase.dp is not None for phase in method.phases(plan.config, plan.train))
    if not noisy and plan.sites.arrive is None:  # rows that arrive go out only together with those of enough sites
        idle = set(_sums_in_clear(plan.config, "method")) - method.reads(plan.config).keys
        found |= dict.fromkeys(idle, "no sum hides anything, and no noise is in shares")
    if plan.train.reject is None or "train.reject" not in read_keys(plan, "local"):
        found["data.validation"] = "only train.reject reads it"
    return found


def reasons(plan: Sections) -> Mapping[str, str]:
    """Why keys are not read.

    Args:
        plan: The plan.

    Returns:
        The reasons in the words of an error, by dotted name; keys without an entry need no reason.
    """
    declared = find_method(plan.method).reads(plan.config)
    trained = {key: why for key, why in _unread_in_training(plan).items() if key in declared.keys}
    return {**trained, **declared.because, **unread_keys(plan)}


def at_default(config: Any, keys: Collection[str]) -> frozenset[str]:
    """Those of some keys of `[method]` that have their default.

    Args:
        config: `[method]` as it was read.
        keys: Dotted names.

    Returns:
        Their dotted names.
    """
    return frozenset(key for key in keys if key.startswith("method.") and _has_default(config, key.split(".")[1:]))


def _has_default(config: Any, path: list[str]) -> bool:
    *parents, last = path
    for name in parents:
        config = getattr(config, name, None)
    known = fields(config) if is_dataclass(config) else ()
    item = next((item for item in known if item.name in (last, f"{last}_")), None)
    if item is None or (item.default is MISSING and item.default_factory is MISSING):
        return False
    usual = item.default if item.default_factory is MISSING else item.default_factory()
    return bool(getattr(config, item.name) == usual)


def _unread_in_training(plan: Sections) -> Mapping[str, str]:
    """Keys of `[train]` that no optimizer of the plan reads."""
    method = find_method(plan.method)
    phases, summed = method.phases(plan.config, plan.train), method.secure(plan.config) is not None
    if not phases:
        return unread_by_optimizers({plan.train.optimizer})
    at_sites = {phase.train.optimizer for phase in phases if not (summed and phase.is_stepped_on_sums)}
    return unread_by_optimizers({phase.train.optimizer for phase in phases}, at_sites=at_sites)


def _sums_in_clear(section: Any, place: str) -> Iterator[str]:
    """Where a plan says how many sites may collude, and no sum hides anything."""
    for item in fields(section) if is_dataclass(section) else ():
        value, name = getattr(section, item.name), f"{place}.{item.name}"
        if isinstance(value, SecureSumSection):
            yield from [f"{name}.colluders"] if value.sum == "none" else []
        else:
            yield from _sums_in_clear(value, name)
