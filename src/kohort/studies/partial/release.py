"""Beyond the paper: generalised rows against raw ones, sites with random rows, other aggregators, and ways to count."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from statistics import fmean
from typing import Final

from kohort.anonymity.checker.measures import measure
from kohort.models.dense.network import Init
from kohort.runs.config import Plan
from kohort.runs.run import run
from kohort.studies.harness.found import Found, Part, ResultTable, confidence_interval
from kohort.studies.partial.paper import ACCURACY
from kohort.studies.partial.plans import (
    ABOVE,
    GATE_K,
    LENIENT,
    PAPER,
    START,
    TEST,
    PartialRun,
    PartialSession,
    PartialTraining,
    adult_plan,
    marks_of,
    paper_gate,
    release_plan,
)

__all__ = ["by_start", "counts", "other_aggregators", "releases"]

SPLITS: Final = {"interval:age": "age sites", "iid": "iid sites"}
AGGREGATORS: Final[dict[str, dict[str, str]]] = {
    "FedAvg": {},
    "FedAdam": {"hub": "fedadam"},
    "FedAdam at 0.01": {"hub": "fedadam:lr=0.01"},
    "FedProx": {"correction": "fedprox:0.01"},
}
BEYOND: Final = "beyond the paper"
PAPERS_K: Final = round(GATE_K * (1 - TEST))
"""The paper counts the whole table for its k = 100; this is as many of the rows that sites hold."""
OURS: Final = "generalised"
OURS_AT_PAPERS_K: Final = f"generalised at gate k = {PAPERS_K}"
RELEASES: Final[dict[str, tuple[str | None, int]]] = {
    OURS: ("generalised", GATE_K),
    OURS_AT_PAPERS_K: ("generalised", PAPERS_K),
    "raw": ("raw", GATE_K),
    "FedAvg": (None, GATE_K),
}
"""What is sent to the hub, and at which k of the gate."""


def _plans(
    training: PartialTraining, names: Container[str], *, split: str, rounds: int, start: Init = START
) -> dict[str, Plan]:
    """The plans of some of `RELEASES`."""
    return {
        name: release_plan(training, released, split=split, rounds=rounds, k=k, start=start)
        for name, (released, k) in RELEASES.items()
        if name in names
    }


def _gains(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """The differences, seed by seed."""
    return [one - other for one, other in zip(ours, theirs, strict=True)]


def releases(session: PartialSession) -> Part:
    """Accuracy at gate k = 100 with generalised and raw rows and without a gate, and the differences by seed.

    Args:
        session: The running study; its depth lists splits, settings and rounds.

    Returns:
        One table per split and setting, one on what the checker finds, and a note on every difference.
    """
    runs, tables, notes = session.runs, [], []
    for split, training, marks in session.depth.releases:
        session.say(f"Generalised release: {SPLITS[split]}, {training.name}")
        plans = _plans(training, RELEASES, split=split, rounds=marks[-1])
        runs.prepare(list(plans.values()))
        rows = []
        for mark in marks:
            at = {name: runs.accuracies(plan, after=mark) for name, plan in plans.items()}
            rows += [Found.mean(f"{name}, {mark} rounds", values, interval=True) for name, values in at.items()]
            for name, other in ((OURS, "raw"), (OURS, "FedAvg"), (OURS_AT_PAPERS_K, "FedAvg")):
                gains = _gains(at[name], at[other])
                rows.append(Found.mean(f"{name} minus {other}, {mark} rounds", gains, interval=True))
                where = f"{SPLITS[split]}, gate k = {GATE_K}, {training.name}, {mark} rounds, {len(gains)} seeds"
                notes.append(_gain_note(gains, f"{name} minus {other}", where))
        rows += _shipped({name: runs.of(plan) for name, plan in plans.items()})
        name = f"Generalised, raw, or nothing shared at k = {GATE_K}: {SPLITS[split]}, {training.name}"
        tables.append(ResultTable(name, BEYOND, rows))
    return Part([*tables, _verified()], notes=notes)


def _shipped(found: Mapping[str, list[PartialRun]]) -> list[Found]:
    rows = []
    for name in (OURS, OURS_AT_PAPERS_K, "raw"):
        rows.append(Found.mean(f"{name}: rows shipped, of all", [one.share for one in found[name]]))
        unique = [one.unique / one.shared for one in found[name] if one.shared]
        if unique:
            rows.append(Found.mean(f"{name}: shipped rows unique on the shipped columns but the target", unique))
    return rows


def _gain_note(gains: Sequence[float], what: str, where: str) -> str:
    interval = confidence_interval(gains)
    spread = "" if interval is None else f" (95 % interval {100 * interval[0]:+.2f} to {100 * interval[1]:+.2f})"
    return f"At {where}: {what} {100 * fmean(gains):+.2f} points{spread}."


def _verified() -> ResultTable:
    """The checker's figures on the table the hub received, by sender and batch."""
    received = run(release_plan(PAPER, "generalised", split="interval:age", rounds=1), seed=0).received
    rows = []
    if received is not None:
        columns = [name for name in received.columns if name != "income"]
        seen = measure(received, quasi=columns, sensitive=["income"])
        rows = [Found("k on every shipped column, sender and batch", seen.k), Found("l of income", seen.l_distinct)]
    return ResultTable("What the hub received, checked", BEYOND, rows)


def by_start(session: PartialSession) -> Part:
    """Central learning, FedAvg and the gain of generalised rows by initialisation, which the paper does not print.

    Args:
        session: The running study; its depth says which initialisations.

    Returns:
        One table.
    """
    session.say("Accuracy by starting weights")
    runs, rounds = session.runs, session.depth.rounds
    rows = []
    for start in session.depth.starts:
        plans = _plans(PAPER, (OURS, OURS_AT_PAPERS_K, "FedAvg"), split="interval:age", rounds=rounds, start=start)
        central = paper_gate(PAPER, "k", 1, rounds=rounds, start=start)
        runs.prepare([central, *plans.values()])
        for mark in marks_of(rounds):
            for name, plan in (("central", central), ("FedAvg", plans["FedAvg"])):
                printed = ACCURACY[name.lower()] if mark == 100 else None
                rows.append(runs.found(f"{start}, {mark} rounds: {name}", plan, printed, after=mark))
            at = {name: runs.accuracies(plan, after=mark) for name, plan in plans.items()}
            for name in (OURS, OURS_AT_PAPERS_K):
                gains = _gains(at[name], at["FedAvg"])
                rows.append(Found.mean(f"{start}, {mark} rounds: {name} minus FedAvg", gains, interval=True))
    return Part([ResultTable("By starting weights, else the paper's setting", "Figure 5", rows)])


def other_aggregators(session: PartialSession) -> Part:
    """The paper's gate with other aggregation rules: at k = 100 and above the largest group.

    Args:
        session: The running study.

    Returns:
        One table: accuracy of each aggregator with and without the gate, and the gain.
    """
    session.say("The gate with other aggregators")
    runs, depth = session.runs, session.depth
    mark = min(60, depth.rounds)
    plans = {
        (name, threshold): paper_gate(PAPER, "k", threshold, rounds=depth.rounds, train=options)
        for name, options in AGGREGATORS.items()
        for threshold in (GATE_K, ABOVE)
    }
    runs.prepare(list(plans.values()), seeds=depth.variant_seeds)
    rows = []
    for name in AGGREGATORS:
        with_gate, without = (
            runs.accuracies(plans[name, threshold], after=mark, seeds=depth.variant_seeds)
            for threshold in (GATE_K, ABOVE)
        )
        rows.append(Found.mean(f"{name}: k = {GATE_K}", with_gate))
        rows.append(Found.mean(f"{name}: no gate", without))
        rows.append(Found.mean(f"{name}: gain", _gains(with_gate, without), interval=True))
    name = f"The gate with other aggregators, {mark} rounds, sites train as in the paper"
    return Part([ResultTable(name, "Section 6", rows)])


def counts(session: PartialSession) -> Part:
    """Ten sites with random rows, k = 100: the share of rows that passes with each way of counting groups.

    Args:
        session: The running study.

    Returns:
        One table, with whether the secure count lets the same rows through as the count in clear.
    """
    session.say("Counting on iid sites")
    received, rows = {}, []
    for count in ("local", "secure", "global"):
        gate = {"rule": "k-anonymity", "k": GATE_K, "count": count, "released": "raw"}
        outcome = run(adult_plan(PAPER, rounds=1, gate=gate, split="iid", policy=LENIENT), seed=session.depth.seeds[0])
        received[count] = outcome.received
        shared = 0 if outcome.received is None else outcome.received.height
        rows.append(Found(f"{count}: share of rows that pass", shared / sum(outcome.site_rows.values())))
    secure, clear = received["secure"], received["global"]
    same = secure is not None and clear is not None and secure.equals(clear)
    rows.append(Found("secure and global let the same rows through", same))
    return Part([ResultTable(f"Rows that pass by way of counting: ten iid sites, k = {GATE_K}", BEYOND, rows)])
