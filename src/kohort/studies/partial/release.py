"""Beyond the paper: generalised rows against raw ones, sites with random rows, other aggregators, and who counts."""

from __future__ import annotations

from collections.abc import Container, Sequence
from statistics import fmean
from typing import Any, Final

from kohort.anonymity.checker.measures import measure
from kohort.models.dense.network import Init
from kohort.runs.config import Plan
from kohort.runs.run import run
from kohort.studies.harness.lines import interval_of, row, row_of
from kohort.studies.partial.figures import Part, marks_of
from kohort.studies.partial.paper import ACCURACY, LARGEST
from kohort.studies.partial.runs import PAPER, START, TEST, TRUSTING, Found, Runs, Training, adult_plan, gate_for
from kohort.studies.registry import Say

__all__ = ["Case", "by_start", "counts", "other_aggregators", "release_plan", "releases"]

SPLITS: Final = {"interval:age": "age sites", "iid": "iid sites"}
VARIANTS: Final[dict[str, dict[str, str]]] = {
    "FedAvg": {},
    "FedAdam": {"hub": "fedadam"},
    "FedAdam at 0.01": {"hub": "fedadam:lr=0.01"},
    "FedProx": {"correction": "fedprox:0.01"},
    "FedMA": {"aggregate": "fedma"},
}
Case = tuple[str, Training, tuple[int, ...]]
"""Split, training, and the rounds to compare after."""
LENIENT: Final = {"raw": True, "trust_counts": True}
K: Final = 100
PAPERS_K: Final = round(K * (1 - TEST))
"""The paper counts the whole table for its k = 100; this is as many of the rows that sites hold."""
ABOVE: Final = LARGEST["k"] + 1
OURS: Final = "generalised"
OURS_AT_PAPERS_K: Final = f"generalised at gate k = {PAPERS_K}"
RELEASES: Final[dict[str, tuple[str | None, int]]] = {
    OURS: ("generalised", K),
    OURS_AT_PAPERS_K: ("generalised", PAPERS_K),
    "raw": ("raw", K),
    "FedAvg": (None, K),
}
"""What is sent to the hub, and at which k of the gate."""


def release_plan(
    training: Training, released: str | None, *, split: str, rounds: int, k: int = K, start: Init = START
) -> Plan:
    """`examples/partial.toml` with another release, split or training; None shares nothing: federated averaging."""
    gate = {
        "rule": "k-anonymity", "k": k, "count": "secure", "released": released, "release_k": 10, "release_l": 2,
    }  # fmt: skip
    return adult_plan(
        training,
        rounds=rounds,
        split=split,
        gate=None if released is None else gate,
        policy=LENIENT if released == "raw" else None,
        start=start,
    )


def _plans(
    training: Training, names: Container[str], *, split: str, rounds: int, start: Init = START
) -> dict[str, Plan]:
    """The plans of some of `RELEASES`."""
    return {
        name: release_plan(training, released, split=split, rounds=rounds, k=k, start=start)
        for name, (released, k) in RELEASES.items()
        if name in names
    }


def _gains(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """The difference, seed by seed."""
    return [one - other for one, other in zip(ours, theirs, strict=True)]


def releases(runs: Runs, cases: Sequence[Case], *, say: Say) -> Part:
    """Accuracy at gate k = 100 with generalised and raw rows and without a gate, and the differences by seed."""
    tables, notes = [], []
    for split, training, marks in cases:
        say(f"Generalised release: {SPLITS[split]}, {training.name}")
        plans = _plans(training, RELEASES, split=split, rounds=marks[-1])
        runs.prepare(list(plans.values()))
        found = {name: runs.of(plan) for name, plan in plans.items()}
        rows = []
        for mark in marks:
            at = {name: [item.curve[mark - 1] for item in items] for name, items in found.items()}
            rows += [row_of(f"{name}, {mark} rounds", None, values, interval=True) for name, values in at.items()]
            for name, other in ((OURS, "raw"), (OURS, "FedAvg"), (OURS_AT_PAPERS_K, "FedAvg")):
                gains = _gains(at[name], at[other])
                rows.append(row_of(f"{name} minus {other}, {mark} rounds", None, gains, interval=True))
                where = f"{SPLITS[split]}, gate k = {K}, {training.name}, {mark} rounds, {len(gains)} seeds"
                notes.append(_gain_note(gains, f"{name} minus {other}", where))
        rows += _shipped(found)
        name = f"Generalised, raw, or nothing shared at k = {K}: {SPLITS[split]}, {training.name}"
        tables.append({"name": name, "source": "beyond the paper", "rows": rows})
    tables.append(_verified())
    return Part(tables=tuple(tables), notes=tuple(notes))


def _shipped(found: dict[str, list[Found]]) -> list[dict[str, Any]]:
    rows = []
    for name in (OURS, OURS_AT_PAPERS_K, "raw"):
        items = found[name]
        rows.append(row_of(f"{name}: rows shipped, of all", None, [item.share for item in items]))
        unique = [item.unique / item.shared for item in items if item.shared]
        if unique:
            rows.append(row_of(f"{name}: shipped rows unique on the shipped columns but the target", None, unique))
    return rows


def _gain_note(gains: Sequence[float], what: str, where: str) -> str:
    interval = interval_of(gains)
    spread = "" if interval is None else f" (95 % interval {100 * interval[0]:+.2f} to {100 * interval[1]:+.2f})"
    return f"At {where}: {what} {100 * fmean(gains):+.2f} points{spread}."


def _verified() -> dict[str, Any]:
    """The checker's figures on the table the hub received, senders and batches apart."""
    received = run(release_plan(PAPER, "generalised", split="interval:age", rounds=1), seed=0).received
    rows = []
    if received is not None:
        columns = [name for name in received.columns if name != "income"]
        seen = measure(received, quasi=columns, sensitive=["income"])
        rows = [row("k on every shipped column, sender and batch", None, seen.k),
                row("l of income", None, seen.l_distinct)]  # fmt: skip
    return {"name": "What the hub received, checked", "source": "beyond the paper", "rows": rows}


def by_start(runs: Runs, *, starts: Sequence[Init], rounds: int, say: Say) -> Part:
    """How the two ends and the gain of generalised rows depend on the starting weights, which the paper leaves open."""
    say("Accuracy by starting weights")
    rows = []
    for start in starts:
        plans = _plans(PAPER, (OURS, OURS_AT_PAPERS_K, "FedAvg"), split="interval:age", rounds=rounds, start=start)
        central = adult_plan(PAPER, rounds=rounds, gate=gate_for("k", 1), policy=TRUSTING, start=start)
        runs.prepare([central, *plans.values()])
        for mark in marks_of(rounds):
            at = {name: [item.curve[mark - 1] for item in runs.of(plan)] for name, plan in plans.items()}
            ends = {"central": [item.curve[mark - 1] for item in runs.of(central)], "FedAvg": at["FedAvg"]}
            rows += [
                row_of(f"{start}, {mark} rounds: {name}", ACCURACY[name.lower()] if mark == 100 else None, values)
                for name, values in ends.items()
            ]
            for name in (OURS, OURS_AT_PAPERS_K):
                gains = _gains(at[name], at["FedAvg"])
                rows.append(row_of(f"{start}, {mark} rounds: {name} minus FedAvg", None, gains, interval=True))
    return Part(tables=({"name": "By starting weights, else the paper's setting", "source": "Figure 5", "rows": rows},))


def other_aggregators(runs: Runs, *, seeds: Sequence[int], rounds: int, mark: int, say: Say) -> Part:
    """The paper's gate under other aggregation: with k = 100 and above the largest group."""
    say("The gate with other aggregators")
    plans = {
        (name, threshold): adult_plan(
            PAPER, rounds=rounds, gate=gate_for("k", threshold), train=options, policy=TRUSTING
        )
        for name, options in VARIANTS.items()
        for threshold in (K, ABOVE)
    }
    runs.prepare(list(plans.values()), seeds=seeds)
    rows = []
    for name in VARIANTS:
        with_gate, without = (
            [item.curve[mark - 1] for item in runs.of(plans[name, threshold], seeds=seeds)] for threshold in (K, ABOVE)
        )
        rows.append(row_of(f"{name}: k = {K}", None, with_gate))
        rows.append(row_of(f"{name}: no gate", None, without))
        gains = _gains(with_gate, without)
        rows.append(row_of(f"{name}: gain", None, gains, interval=True))
    name = f"The gate with other aggregators, {mark} rounds, sites train as in the paper"
    return Part(tables=({"name": name, "source": "Section 6", "rows": rows},))


def counts(*, seed: int, say: Say) -> Part:
    """Ten sites with random rows, k = 100: what each way of counting lets through."""
    say("Counting on iid sites")
    given = {}
    rows = []
    for count in ("local", "secure", "global"):
        gate = {"rule": "k-anonymity", "k": K, "count": count, "released": "raw"}
        outcome = run(adult_plan(PAPER, rounds=1, gate=gate, split="iid", policy=LENIENT), seed=seed)
        given[count] = outcome.received
        shared = 0 if outcome.received is None else outcome.received.height
        rows.append(row(f"{count}: share of rows that pass", None, shared / sum(outcome.site_rows.values())))
    secure, clear = given["secure"], given["global"]
    same = secure is not None and clear is not None and secure.equals(clear)
    rows.append(row("secure and global let the same rows through", None, "yes" if same else "no"))
    return Part(tables=({"name": f"Who counts: ten iid sites, k = {K}", "source": "beyond the paper", "rows": rows},))
