"""Progress of a run: a live bar on a terminal, plain lines elsewhere; and stopping between two rounds."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Final

from kohort.cli.common import say, stderr
from kohort.interrupts import DeferredSignals

if TYPE_CHECKING:
    from kohort.runs.run import Progress

__all__ = ["between_rounds", "round_bar"]

QUIET_SECONDS: Final = 20.0
"""After so long without a line, plain output says that the run goes on."""


@contextmanager
def round_bar(title: str, *, quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Show the progress of a run.

    Args:
        title: What the bar or line starts with.
        quiet: Print nothing when stderr is not a terminal.

    Yields:
        A function to give to `run` as `watch`. On a terminal it moves a bar; elsewhere it prints about ten lines.
    """
    if not sys.stderr.isatty():
        if quiet:
            yield _silent
            return
        with _heartbeat(title, _plain_lines(title)) as watch_lines:
            yield watch_lines
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[score]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    with RichProgress(*columns, console=stderr(), transient=True) as bar:
        task = bar.add_task(title, total=None, score="")

        def watch(progress: Progress) -> None:
            bar.update(task, total=progress.rounds, completed=progress.round, score=_score(progress))

        yield watch


@contextmanager
def between_rounds(watch: Callable[[Progress], None]) -> Iterator[Callable[[Progress], None]]:
    """Delay the first Ctrl-C until the current round is finished and saved; a second one stops at once.

    Args:
        watch: Called after every round.

    Yields:
        A function to give to `run` in place of `watch`.

    Raises:
        KeyboardInterrupt: After the round in which Ctrl-C was pressed; at once before the first round.
    """
    asked = False
    begun = False

    def remember(number: int, frame: object) -> None:
        nonlocal asked
        del number, frame
        if asked or not begun:
            raise KeyboardInterrupt
        asked = True
        say("stopping after this round; press Ctrl-C again to stop at once")

    def checked(progress: Progress) -> None:
        nonlocal begun
        begun = True
        watch(progress)
        if asked:
            raise KeyboardInterrupt

    former = signal.signal(signal.SIGINT, DeferredSignals(remember))
    try:
        yield checked
    except KeyboardInterrupt:
        say("interrupted; continue with --resume")
        raise
    finally:
        signal.signal(signal.SIGINT, former)


@contextmanager
def _heartbeat(title: str, show: Callable[[Progress], None]) -> Iterator[Callable[[Progress], None]]:
    """Say every now and then that a run is alive, where its rounds say nothing for long."""
    began, rounds, ended = monotonic(), [0], Event()

    def watch(progress: Progress) -> None:
        rounds[0] = progress.round
        show(progress)

    def beat() -> None:
        while not ended.wait(QUIET_SECONDS):
            at = f"round {rounds[0] + 1}" if rounds[0] else "setting up, or in the first round"
            say(f"{title}: {at}, {monotonic() - began:.0f} s")

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()


def _silent(progress: Progress) -> None:
    del progress


def _score(progress: Progress) -> str:
    return "" if progress.accuracy is None else f"{progress.measure} {progress.accuracy:.4f}"


def _plain_lines(title: str) -> Callable[[Progress], None]:
    def watch(progress: Progress) -> None:
        if progress.round % max(1, progress.rounds // 10) == 0 or progress.round == progress.rounds:
            parts = (f"round {progress.round}/{progress.rounds}", _score(progress), f"{progress.seconds:.1f} s")
            say(f"{title}: {', '.join(part for part in parts if part)}")

    return watch
