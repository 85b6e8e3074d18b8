"""Which of several runs to take: a recommendation out of their own figures, with the rule that made it.

The rule: leave out runs that let rows or numbers of single sites leave, and those on which a membership attack was
better than guessing; of the rest take the best score. Where the hub reads its totals, name the best run in which sites
alone do. Where a bound on every attack is needed, take the best with a budget. Nothing here knows what the officer of a
site may accept.
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
        lines += _sealed_instead(chosen, safe)
        if chosen is not best:
            lines.append(f"{best.label} has {words.measure(best.score)}; {_why_not(best)}.")
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


def _why_not(best: Run) -> str:
    """Why the run with the best score is not the one to take."""
    if _is_closed(best):
        return "a membership attack on it is better than guessing"
    return verdict_on(best).headline.lower()


def _sealed_instead(chosen: Run, safe: Sequence[Run]) -> list[str]:
    """The best run in which sites alone read totals, where the hub reads those of the chosen one."""
    if chosen.epsilon is not None or _hides_totals(chosen):
        return []
    said = f"The hub reads the totals of {chosen.label}, and a cell of them may be over few persons."
    others = [run for run in safe if _hides_totals(run)]
    if not others:
        return [said]
    found = max(others, key=_score)
    return [f"{said} Of {found.label}, sites alone read the totals; it has {words.measure(found.score)}."]


def _hides_totals(run: Run) -> bool:
    """Whether no total of several sites can be read by the hub."""
    return all(item.shown_as for item in run.disclosed if item.kind == "secure-sum")


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
    if run.membership is None:
        return ""
    said = f", and membership inference reaches {run.membership:.3f} (a guess: 0.5)"
    return said if len(run.attacked) > 1 else f"{said}; kohort audit tries stronger attacks"
