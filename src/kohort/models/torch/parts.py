"""A flat vector as named parts: how the parameters and buffers of a foreign module lie in the one vector that travels.

Guarantee: parts follow each other without a gap, in the order they are given, each row by row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kohort.errors import ConfigError, SiteError
from kohort.models.options import FloatArray

__all__ = ["ParameterSlice", "lay_out", "listed", "require_same", "require_vector"]

_SAME_VERSION = "Install the same version of the module at the hub and at every site"
_MOST_NAMED = 8


@dataclass(frozen=True)
class ParameterSlice:
    """A parameter or a buffer and its place in the flat vector."""

    name: str
    shape: tuple[int, ...]
    begin: int
    trained: bool
    """Whether the optimiser moves it: false for buffers and for parameters that need no gradient."""

    @property
    def end(self) -> int:
        """One past its last number."""
        return self.begin + math.prod(self.shape)

    @property
    def place(self) -> slice:
        """Its numbers in the flat vector."""
        return slice(self.begin, self.end)

    def __str__(self) -> str:
        return f"{self.name} {'x'.join(map(str, self.shape)) or '1'}"


def lay_out(tensors: Iterable[tuple[str, Sequence[int], bool]]) -> tuple[ParameterSlice, ...]:
    """Parts side by side in one flat vector, without a gap.

    Args:
        tensors: Name, shape and whether it is trained, of each part in order.

    Returns:
        The parts, with the place of each.
    """
    parts: list[ParameterSlice] = []
    for name, shape, trained in tensors:
        parts.append(ParameterSlice(name, tuple(shape), parts[-1].end if parts else 0, trained))
    return tuple(parts)


def listed(parts: Sequence[ParameterSlice]) -> str:
    """Names and shapes for an error, the first few of them.

    Args:
        parts: The parts.

    Returns:
        At most eight of them, and how many more there are.
    """
    more = len(parts) - _MOST_NAMED
    return ", ".join(map(str, parts[:_MOST_NAMED])) + (f" and {more} more" if more > 0 else "")


def require_vector(weights: FloatArray, parts: Sequence[ParameterSlice], factory: str) -> None:
    """Refuse weights of another length than the parts have together.

    Args:
        weights: One vector, [parameters], or one per site, [sites, parameters].
        parts: The parts of the module, at least one.
        factory: The module's factory, for the error.

    Raises:
        SiteError: The length differs.
    """
    count = parts[-1].end
    if weights.shape[-1:] != (count,):
        raise SiteError(
            f"weights of shape {weights.shape} do not fit module {factory!r} of {count} numbers: {listed(parts)}",
            hint=_SAME_VERSION,
        )


def require_same(wanted: Sequence[tuple[str, tuple[int, ...]]], parts: Sequence[ParameterSlice], factory: str) -> None:
    """Refuse parts that are not the wanted ones, in their order.

    Args:
        wanted: Names and shapes, as they were stored.
        parts: The parts that the factory makes now.
        factory: The module's factory, for the error.

    Raises:
        ConfigError: A part is missing, new, of another shape or at another place.
    """
    found = [(part.name, part.shape) for part in parts]
    if list(wanted) == found:
        return
    other = next(
        (ours[0] for theirs, ours in zip(wanted, found, strict=False) if theirs != ours),
        max(wanted, found, key=len)[min(len(wanted), len(found)) - 1][0],
    )
    raise ConfigError(
        f"module {factory!r} has {len(found)} parts where {len(wanted)} are wanted, or differs at {other!r}: "
        f"it has {listed(parts)}",
        hint=_SAME_VERSION,
    )
