"""Failures that the plan caused and that show only at sites: said as such, with the key to change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

from kohort.errors import ConfigError, SiteError
from kohort.protocol.plan.approved import ModelSection, TrainSection
from kohort.runs.config import DataSection, Plan, SitesSection

__all__ = ["place_of_key", "plan_faults"]


@contextmanager
def plan_faults(plan: Plan) -> Iterator[None]:
    """Turn a failure of all sites that the plan caused into an error about the plan.

    Args:
        plan: The plan that is carried out.

    Raises:
        ConfigError: Training diverged at the sites, or the method lacks a role that the plan does not give.
    """
    try:
        yield
    except SiteError as error:
        if "absurdly large" in error.message or "not finite" in error.message:
            raise ConfigError(
                "training diverged: the updates of the sites grew beyond any bound",
                hint=f"Lower train.lr (now {plan.train.lr:g})",
            ) from error
        if "no list of quasi-identifiers" in error.message:
            hint = 'Name them: data.quasi = ["age", "sex"]'
            raise ConfigError(f"method {plan.method!r} needs quasi-identifiers", hint=hint) from error
        raise


def place_of_key(key: str) -> str | None:
    """The dotted name of a plan key, by its last part alone; None where no section has one, as "train.lr" for "lr".

    Args:
        key: The last part, as somebody may write it for an option.
    """
    if key in {"epsilon", "delta", "clip", "accountant"}:
        return f"method.dp.{key}"
    sections = {"train": TrainSection, "model": ModelSection, "sites": SitesSection, "data": DataSection}
    found = (f"{name}.{key}" for name, section in sections.items() if key in {item.name for item in fields(section)})
    return next(found, "method.name" if key == "method" else None)
