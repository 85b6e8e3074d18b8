"""The runs the checks look at, each carried out once and shared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from kohort.errors import ConfigError
from kohort.runs.config import Plan
from kohort.runs.run import Progress, run
from kohort.testing.federation import RecordedRun, carry_out, listening, plan_of, tables

__all__ = ["SEED", "VARIANTS", "MethodRuns"]

SEED = 5
VARIANTS: Mapping[str, Mapping[str, object]] = {
    "plain": {},
    "fraction": {"fraction": 0.5},
    "stop": {"rounds": 6, "stop": {"metric": "loss", "patience": 2, "min_delta": 0.5}},
    "keep": {"state": "keep", "fraction": 0.75, "optimizer": "adam"},
}
"""Keys of `[train]` a method is run with: all sites, a part of them, early stopping, optimizers that keep state."""


class MethodRuns:
    """A registered method, and its runs over the small federation of `kohort.testing`.

    Args:
        method: The method's name.
        folder: An empty folder for the runs' files.
    """

    def __init__(self, method: str, folder: Path) -> None:
        self.method = method
        self.folder = folder
        self._runs: dict[tuple[str, int, bool], RecordedRun] = {}

    def get(self, variant: str = "plain", *, seed: int = SEED, many: bool = True) -> RecordedRun:
        """The run of this variant, seed and grouping; carried out when it is first asked for.

        Args:
            variant: One of `VARIANTS`.
            seed: The run's seed.
            many: Whether sites are asked many at once, or one by one.

        Returns:
            The finished run.

        Raises:
            ConfigError: The method does not take the variant's keys.
        """
        key = (variant, seed, many)
        if key not in self._runs:
            self._runs[key] = self.repeat(variant, seed=seed, many=many)
        return self._runs[key]

    def repeat(self, variant: str = "plain", *, seed: int = SEED, many: bool = True) -> RecordedRun:
        """Carry a run out anew, whether or not there was one.

        Args:
            variant: One of `VARIANTS`.
            seed: The run's seed.
            many: Whether sites are asked many at once, or one by one.

        Returns:
            The finished run, in a folder of its own.
        """
        plan = plan_of(self.method, train=VARIANTS[variant])
        return carry_out(plan, self.new_folder(variant), seed=seed, many=many)

    def resumed(self, *, stop_before: int) -> RecordedRun:
        """Interrupt the plain run twice, before a request and after a round, and resume it each time.

        Args:
            stop_before: The request before which it is interrupted, counted from 0.

        Returns:
            The resumed run. `carried` holds what was carried after it went on for the last time.

        Raises:
            ValueError: The run has no such request.
        """
        plan, folder = plan_of(self.method), self.new_folder("resumed")
        if _attempt(plan, folder, stop_before=stop_before) is not None:
            raise ValueError(f"the run of {self.method!r} has no request {stop_before}")
        return _attempt(plan, folder, watch=_stop_between_rounds) or carry_out(plan, folder, seed=SEED, resume=True)

    def applies(self, variant: str) -> bool:
        """Whether the method takes a variant's keys.

        Args:
            variant: One of `VARIANTS`.

        Returns:
            False when the method refuses the plan as a configuration it does not have.
        """
        try:
            self.get(variant)
        except ConfigError:
            return False
        return True

    def new_folder(self, name: str) -> Path:
        """A path for one more run's files.

        Args:
            name: What the run is.

        Returns:
            A path below `folder` that does not exist yet.
        """
        number = len(list(self.folder.iterdir())) if self.folder.is_dir() else 0
        return self.folder / f"{number:02d}-{name}"


def _stop_between_rounds(progress: Progress) -> None:
    if progress.round < progress.rounds:
        raise KeyboardInterrupt


def _attempt(
    plan: Plan,
    folder: Path,
    *,
    stop_before: int | None = None,
    watch: Callable[[Progress], None] = lambda _: None,
) -> RecordedRun | None:
    """Begin or resume a run; None when it was interrupted before its end."""
    with listening(stop_before=stop_before) as carried:
        try:
            outcome = run(plan, out=folder, seed=SEED, tables=tables(), resume=True, watch=watch)
        except KeyboardInterrupt:
            return None
    return RecordedRun(outcome, carried, folder, SEED)
