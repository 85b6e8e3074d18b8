"""`[costs]` of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt

__all__ = ["CostSection"]


@dataclass(frozen=True, kw_only=True)
class CostSection:
    """`[costs]`: the rates that turn bytes and seconds into transfer time and energy."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    bytes_per_second: Annotated[float, Gt(0)] = 500_000.0
    """Link of each site; sites transfer side by side."""
    watts: Annotated[float, Gt(0)] = 65.0
