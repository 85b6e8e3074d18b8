"""Failures that the plan caused and that show only at sites: said as such, with the key to change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

from kohort.errors import ConfigError, SiteError
from kohort.methods.registry import find_method
from kohort.protocol.plan.approved import ModelSection, TrainSection
from kohort.runs.config import DataSection, Plan, SitesSection

__all__ = ["place_of_key", "plan_faults", "require_complete", "require_training"]

_EXAMPLES = {
    "data.quasi": ("quasi-identifiers", 'data.quasi = ["age", "sex"]'),
    "data.quasi or data.items": ("quasi-identifiers or sets of items", 'data.quasi = ["age", "sex"]'),
    "sites.clusters": ("clusters of sites that trust each other", "sites.clusters = 2"),
    "sites.low_risk": ("rows of low risk", "sites.low_risk = 0.4"),
}
"""What a method may need, in words and as somebody writes it."""


def require_complete(plan: Plan) -> None:
    """Refuse a simulation that lacks what its method needs, in one line that names all of it.

    Args:
        plan: The plan that would be carried out.

    Raises:
        ConfigError: A key is missing.
    """
    missing = [key for key in sorted(find_method(plan.method).needs(plan.config)) if not _is_given(plan, key)]
    if not missing:
        return
    texts = [_EXAMPLES.get(key, (key, key)) for key in missing]
    needed, example = (" and ".join(part) for part in zip(*texts, strict=True))
    if plan.sites.split == "files":  # sites.clusters is for sites that rows are dealt out to
        example = example.replace("sites.clusters = 2", 'method.clusters = "labels:2"')
    raise ConfigError(f"method {plan.method!r} needs {needed}", hint=f"Add {example}")


def require_training(plan: Plan) -> None:
    """Refuse to train by a plan that is a pre-flight alone.

    Args:
        plan: The plan.

    Raises:
        ConfigError: It is one.
    """
    if plan.data.preflight == "only":
        how = "Run it with: kohort harmonise PLAN.toml --hub HUB"
        raise ConfigError(
            'data.preflight = "only" compares the tables of real sites and learns nothing',
            hint=f'{how}. To learn after comparing: data.preflight = "first"',
        )


def _is_given(plan: Plan, keys: str) -> bool:
    """Whether a plan has one of some keys, which are joined by "or"."""
    found = (key.partition(".") for key in keys.split(" or "))
    return any(getattr(getattr(plan, section), name) for section, _, name in found)


@contextmanager
def plan_faults(plan: Plan) -> Iterator[None]:
    """Turn a failure of all sites that the plan caused into an error about the plan.

    Args:
        plan: The plan that is carried out.

    Returns:
        A context manager for the work at the sites.

    Raises:
        ConfigError: Training diverged at the sites, or a site does not know its rows of low risk.
        SiteError: The sites failed for any other reason.
    """
    try:
        yield
    except SiteError as error:
        too_fast = plan.train.lr > 1.0 and "is not finite" in error.message
        if too_fast or "absurdly large" in error.message:
            raise ConfigError(
                "training diverged: the updates of the sites grew beyond any bound",
                hint=f"Lower train.lr (now {plan.train.lr:g})",
            ) from error
        if "which of its rows carry a low risk" in error.message:
            hint = "Set sites.low_risk to a share such as 0.4, or to a rule; a real site declares it in site.toml"
            raise ConfigError(f"method {plan.method!r} needs to know which rows carry a low risk", hint=hint) from error
        raise


def place_of_key(key: str) -> str | None:
    """The dotted name of a plan key, from its last part alone.

    Args:
        key: The last part, as somebody may write it for an option, such as "lr".

    Returns:
        The dotted name, such as "train.lr"; None where no section has such a key.
    """
    if key in {"epsilon", "delta", "clip", "accountant"}:
        return f"method.dp.{key}"
    sections = {"train": TrainSection, "model": ModelSection, "sites": SitesSection, "data": DataSection}
    found = (f"{name}.{key}" for name, section in sections.items() if key in {item.name for item in fields(section)})
    return next(found, "method.name" if key == "method" else None)
