"""Which of several runs to take: a recommendation out of their own figures, with the rule that made it.

The rule: leave out runs that let rows or numbers of single sites leave, and those on which a membership attack was
better than guessing; of the rest take the best score. Where a bound on every attack is needed, take the best with a
budget. Nothing here knows what the officer of a site may accept.
"""

from __future__ import annotations

from collections.abc import Sequence

from kohort.report import words
from kohort.report.runs import Run
from kohort.report.verdict import verdict_on

__all__ = ["recommendation"]


def recommendation(runs: Sequence[Run]) -> tuple[str, ...]:
    """What the figures of several runs say about which to take.

    Args:
        runs: Finished runs of one task.

    Returns:
        A few sentences; none for fewer than two measured runs.
    """
    measured = [run for run in runs if run.score is not None]
    if len(measured) < 2 or len({run.is_classifier for run in measured}) > 1:
        return ()
    best = max(measured, key=_score)
    closed = [run for run in measured if _is_closed(run)]
    safe = [run for run in closed if not _shows_members(run)]
    lines = []
    if safe:
        chosen = max(safe, key=_score)
        lines.append(
            f"Of the runs in which no row and no number of a single site left, {chosen.label} has the best "
            f"{_measure(chosen)}: {words.measure(chosen.score)}{_attacked(chosen)}."
        )
        if chosen is not best:
            lines.append(f"{best.label} has {words.measure(best.score)}; {verdict_on(best).headline.lower()}.")
    else:
        lines.append(
            "In every run rows or numbers of single sites left: take one only among parties that may see them."
        )
    private = [run for run in measured if run.epsilon is not None and "no guarantee" not in _scope(run)]
    if private:
        chosen = max(private, key=_score)
        lines.append(
            f"Where every attack must be bounded, take a budget: {chosen.label} has {words.measure(chosen.score)} "
            f"with epsilon {chosen.epsilon or 0:.3g}."
        )
    else:
        lines.append(
            "No run has a budget over all rows: where every attack must be bounded, add method.dp to the plan."
        )
    lines.append("Scores are those of this table's test rows: choose on rows of your own that you do not report on.")
    return tuple(lines)


def _is_closed(run: Run) -> bool:
    """Whether neither rows, generalised or not, nor numbers of a single site left."""
    return verdict_on(run).tone == "guarded" and not any(item.holds_rows for item in run.disclosed)


def _score(run: Run) -> float:
    return run.score if run.score is not None else float("-inf")


def _scope(run: Run) -> str:
    return str((run.dp or {}).get("scope") or "")


def _measure(run: Run) -> str:
    return "accuracy" if run.is_classifier else "R²"


def _shows_members(run: Run) -> bool:
    return any(one.family == "membership" and one.verdict == "better than guessing" for one in run.attacked)


def _attacked(run: Run) -> str:
    return "" if run.membership is None else f", and membership inference reaches {run.membership:.3f} (a guess: 0.5)"
