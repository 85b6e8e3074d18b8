"""The first page of a report, for a data protection officer: what left, how it is bounded, what is not protected.

Every sentence is derived from the ledger's figures of a run, never from what its plan intended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kohort.report import words
from kohort.report.runs import DisclosureRow, Run

__all__ = ["RunVerdict", "verdict_on"]

_NUMBERS = ("aggregate", "domain")
_SMALL_CELLS = ("cells", "pairs")


@dataclass(frozen=True, kw_only=True)
class RunVerdict:
    """What an officer reads first about one run.

    Attributes:
        run: The run.
        tone: "open", "partial" or "guarded": the colour of the least protected release.
        headline: The weakest thing that left, in a few words.
        budget: Epsilon and its unit, or that there is none.
        conditions: What the budget depends on; empty without one.
        sentences: Who learned what, what left, and how it is bounded.
        unprotected: What this run does not protect, and what a reader must know of it.
    """

    run: Run
    tone: str
    headline: str
    budget: str
    conditions: str
    sentences: tuple[str, ...]
    unprotected: tuple[str, ...]


def verdict_on(run: Run) -> RunVerdict:
    """Judge a finished run by what its ledger says.

    Args:
        run: The run.

    Returns:
        The verdict, in words.
    """
    private = [item for item in run.disclosed if item.kind != "public"]
    return RunVerdict(
        run=run,
        tone=_tone(private),
        headline=_headline(private),
        budget=_budget(run),
        conditions=run.budget,
        sentences=(_who(run), _what_left(private), _bounded(run, private)),
        unprotected=tuple(_unprotected(run, private)),
    )


def _tone(private: Sequence[DisclosureRow]) -> str:
    tones = {words.kind_named(item.kind).tone for item in private}
    return next((tone for tone in ("open", "partial", "guarded") if tone in tones), "guarded")


def _budget(run: Run) -> str:
    if run.epsilon is None:
        return "No privacy budget: nothing bounds what the model tells of one row"
    whom, scope = (run.dp or {}).get("whom") or run.unit or "row", _scope(run)
    of = f" ({scope})" if scope and scope != "all rows" else ""
    return f"Epsilon {run.epsilon:.4g}, delta {run.delta or 0:.3g}, for each {whom}{of}"


def _scope(run: Run) -> str:
    return str((run.dp or {}).get("scope") or "")


def _headline(private: Sequence[DisclosureRow]) -> str:
    kinds = {item.kind for item in private if item.held != "counts"}
    read = "splits" if _tells_splits(private) else "their counts"
    sealed = f"The hub reads bins, {read} and the model; sites alone read totals"
    for found, text in (
        ({"raw"}, "Raw rows left the sites"),
        ({"k-anonymous", "k-km"}, _of_rows_left(private)),
        (set(_NUMBERS), "Numbers of single sites left them"),
        (set(_SMALL_CELLS), "Only totals can be read, some over few persons"),
        ({"dp"}, "Noisy results left the sites"),
        ({"secure-sum", "encrypted"}, sealed if _is_sealed(private) else "Only totals over several sites can be read"),
    ):
        if kinds & found:
            return text
    return "Nothing but public facts left the sites" if not kinds else "See what left below"


def _of_rows_left(private: Sequence[DisclosureRow]) -> str:
    """Which parts of anonymised rows left, and whether numbers of single sites did beside them."""
    what = "Classes of generalised rows" if _only_classes(private) else "Generalised rows"
    beside = " and numbers of single sites" if any(item.kind in _NUMBERS for item in private) else ""
    return f"{what}{beside} left the sites"


def _only_classes(private: Sequence[DisclosureRow]) -> bool:
    return all(item.held == "classes" for item in private if item.holds_rows)


def _tells_splits(private: Sequence[DisclosureRow]) -> bool:
    """Whether sites told the hub how trees split."""
    return any(item.shown_as == words.DISCLOSED_SPLITS for item in private)


def _is_sealed(private: Sequence[DisclosureRow]) -> bool:
    """Whether sites alone read every total."""
    sums = [item for item in private if item.kind == "secure-sum"]
    return bool(sums) and all(item.shown_as for item in sums)


def _who(run: Run) -> str:
    held = f" with {words.count(run.rows)} rows" if run.rows else ""
    absent = len(run.refused) + len(run.dropped) or run.absent
    said = f"{words.count(run.sites)} sites{held} learned one model by {run.method}"
    return f"{said}; {words.count(absent)} took no part or dropped out." if absent else f"{said}."


def _what_left(private: Sequence[DisclosureRow]) -> str:
    if not private:
        return "No release was computed from rows."
    readable = [
        item for item in private if item.kind != "encrypted" and item.shown_as != words.SEALED_TOTALS
    ] or private
    of_rows = [item for item in readable if item.rows] or readable
    least = words.kinds_in_order({item.kind for item in of_rows})[0].name
    worst = [item for item in of_rows if item.kind == least]
    rows, to = max(item.rows for item in worst), ", ".join(dict.fromkeys(item.recipient for item in worst))
    label = worst[0].label
    behind = f" from {words.count(rows)} rows" if rows else ""
    size = words.size(sum(item.size for item in private))
    return f"The least protected release: {label}{behind}, to {to}. All that left but public facts is {size}."


def _bounded(run: Run, private: Sequence[DisclosureRow]) -> str:
    exact = {item.kind for item in private} - {"dp", "encrypted"}
    whom = str((run.dp or {}).get("whom") or run.unit or "row")
    if run.epsilon is not None and (exact or "no guarantee" in _scope(run)):
        return f"Noise bounds what results under the budget tell of one {whom}; what else left has no noise."
    if run.epsilon is not None:
        return f"Noise bounds what any result tells of one {whom}."
    if any(item.kind == "raw" for item in private):
        return "Rows that left cannot be called back, and their recipient reads every value."
    if any(item.holds_rows for item in private):
        if _only_classes(private):
            return "Classes that left cannot be called back, and each tells what its rows have in common."
        return "Rows that left cannot be called back; a generalised row still tells what its class has in common."
    if _is_sealed(private):
        counts = "the bins, how many persons each holds, and the model, whose values are rounded"
        has = "the bins, how trees split, and the model" if _tells_splits(private) else counts
        return f"Shares of single sites reveal nothing. Sites read the totals, which are exact; the hub has {has}."
    if any(item.kind == "secure-sum" for item in private):
        return (
            "Shares of single sites reveal nothing; the totals, and the model made of them, are exact, and a cell of a "
            "total may be over few persons: kohort plan explain says how few."
        )
    return "What left is exact: no noise was added."


def _membership(run: Run) -> str:
    if run.membership is None:
        return "Who took part may be inferred from the model; kohort audit measures how well."
    return f"Who took part may be inferred from the model; the audit reaches {run.membership:.3f}, a guess 0.5."


def _unprotected(run: Run, private: Sequence[DisclosureRow]) -> list[str]:
    kinds = {item.kind for item in private}
    found = []
    if run.epsilon is None:
        found.append(_membership(run))
    elif run.dp and "no guarantee" in str(run.dp.get("scope", "")):
        found.append(f"What the budget covers: {run.dp['scope']}.")
    found += [words.kind_named(name).sentence for name in ("raw", *_NUMBERS, *_SMALL_CELLS) if name in kinds]
    if any(item.holds_rows and item.kind != "raw" for item in private):
        found.append(words.NOT_PROTECTED)
    if "secure-sum" in kinds:
        found.append(words.COLLUSION)
    if any(item.shown_as == words.SEALED_TOTALS for item in private):
        found.append(words.SEALED)
    return [*found, *_unproven(run)]


def _unproven(run: Run) -> list[str]:
    """What neither a machine of its own nor a known signer vouches for."""
    found = []
    if run.engine == "local":
        found.append("Hub and sites ran in one process: a simulation protects nobody by itself.")
    if run.ledger is None:
        found.append("There was no ledger to verify beside this run.")
    elif not run.ledger.signed_by:
        found.append("The ledger is consistent, but its signer is not known here.")
    return found
