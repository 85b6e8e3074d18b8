"""The state a site keeps between the requests of one run.

Each group of tasks declares its state as one dataclass, a subclass of `TaskState`, and asks for it by type:
`site.state(TrainingState).control`. A state that must survive a crash says which arrays hold it; engines and site
servers checkpoint and restore all states of a site through the same two calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from numpy.typing import NDArray

__all__ = ["SiteStates", "StateArrays", "TaskState"]

StateArrays = dict[str, NDArray[Any]]
"""Arrays by name: what a checkpoint stores of a state."""


class TaskState:
    """Base class of the state that a group of tasks keeps at a site between requests. It never leaves the site.

    A subclass is a dataclass whose fields all have defaults: the state before the first request.
    """

    NAME: ClassVar[str] = ""
    """Prefix of its arrays in a checkpoint; empty when a restart rebuilds the state by replaying requests."""

    def checkpoint(self) -> StateArrays:
        """The arrays that hold this state.

        Returns:
            Arrays by name; none when nothing needs to be stored.
        """
        return {}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `checkpoint` returned.

        Args:
            arrays: The stored arrays; they are copied.
        """
        del arrays


T = TypeVar("T", bound=TaskState)


class SiteStates:
    """The states of one site, one per type."""

    def __init__(self) -> None:
        self._states: dict[type[TaskState], TaskState] = {}
        self._restored: dict[str, StateArrays] = {}

    def get(self, kind: type[T]) -> T:
        """The site's state of this type, created or restored at its first use.

        Args:
            kind: The state's class.

        Returns:
            The one state of that class at this site.
        """
        found = self._states.get(kind)
        if found is None:
            found = self._states[kind] = kind()
            if kind.NAME in self._restored:
                found.restore(self._restored.pop(kind.NAME))
        assert isinstance(found, kind)  # noqa: S101 - the key is the type
        return found

    def checkpoint(self) -> StateArrays:
        """Everything a checkpoint must hold so that a restarted site answers the next request in the same way.

        Returns:
            The arrays of all states, named STATE.ARRAY.
        """
        arrays = {
            f"{state.NAME}.{name}": array
            for state in self._states.values()
            for name, array in state.checkpoint().items()
        }
        waiting = {f"{state}.{name}": array for state, kept in self._restored.items() for name, array in kept.items()}
        return {**waiting, **arrays}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """The inverse of `checkpoint`: states that exist take their arrays now, the others when they are first used.

        Args:
            arrays: What `checkpoint` returned.
        """
        by_state: dict[str, StateArrays] = {}
        for name, array in arrays.items():
            state, _, own = name.partition(".")
            by_state.setdefault(state, {})[own] = array
        for known in self._states.values():
            if known.NAME in by_state:
                known.restore(by_state.pop(known.NAME))
        self._restored.update(by_state)
