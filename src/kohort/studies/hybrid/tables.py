"""Tables 1 to 3, every column tuned alike; the paper's conclusions with intervals; a grid beside the tuned server; low-
risk rows that differ from the others; and the accountants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final

from kohort.privacy.dp.accounting import Accountant, Event, epsilon_of
from kohort.studies.harness.found import Found, ResultTable
from kohort.studies.harness.runs import Runs, RunSummary
from kohort.studies.hybrid.paper import HYBRID as PAPER_HYBRID
from kohort.studies.hybrid.paper import IMPROVEMENT, NO_DP, SERVER, SHARES
from kohort.studies.hybrid.plans import (
    CLIPS,
    FL,
    HYBRID,
    HYBRID_STEPS,
    LOW_RISK,
    NO_DP_COLUMN,
    ONCE,
    PEERS_ONLY,
    SHIFTED,
    STEP_FACTORS,
    STEPS,
    HybridCase,
    HybridCell,
    HybridChoice,
    HybridColumn,
    HybridSetting,
)
from kohort.studies.hybrid.tuning import Tuned

__all__ = [
    "accounting",
    "accuracy_table",
    "cells_of",
    "conclusions",
    "doors_table",
    "grid_table",
    "settings_table",
    "shifted_table",
]

AllRuns = Runs[RunSummary]
SOURCES: Final = {"dutch": "Table 1", "income": "Table 2", "covertype": "Table 3"}
BEYOND: Final = "beyond the paper"
DELTA: Final = 1e-5
WITHOUT_NOISE: Final = (NO_DP_COLUMN, LOW_RISK, PEERS_ONLY)
PAPERS_OWN: Final = (FL, HYBRID)
BASELINES: Final = (STEPS, ONCE)
YOUNGEST: Final = {"below:age:6": "the youngest 14 %", "below:age:7": "the youngest 25 %"}
"""Ages are coded in groups; a share of 20 % lies between these two."""
GRID: Final = tuple(
    HybridChoice(reach, clip, steps) for steps in STEP_FACTORS for reach in (1.0, 2.0, 4.0, 8.0, 16.0) for clip in CLIPS
)
"""60 settings."""
TWO_PHASES: Final = (Event(sigma=6.0, rate=0.2, steps=100), Event(sigma=8.0, rate=0.1, steps=600))


def cells_of(
    case: HybridCase, setting: HybridSetting, shares: Sequence[float], epsilons: Sequence[float], *, baselines: bool
) -> list[tuple[HybridColumn, HybridCell]]:
    """Every column of every cell of one table.

    Args:
        case: The table.
        setting: How rows are split over the sites, and the delta.
        shares: Shares of low-risk rows.
        epsilons: Budgets of the columns with noise.
        baselines: Add the columns that the paper leaves out.

    Returns:
        Pairs of a column and a cell; columns without noise have one cell per share.
    """
    noisy = (*PAPERS_OWN, *BASELINES) if baselines else PAPERS_OWN
    bare = [HybridCell(case=case, setting=setting, low=share) for share in shares]
    private = [replace(cell, epsilon=epsilon) for cell in bare for epsilon in epsilons]
    return [(column, cell) for column in WITHOUT_NOISE for cell in bare] + [
        (column, cell) for column in noisy for cell in private
    ]


def accuracy_table(
    runs: AllRuns,
    tuned: Tuned,
    case: HybridCase,
    setting: HybridSetting,
    shares: Sequence[float],
    epsilons: Sequence[float],
    *,
    baselines: bool,
) -> ResultTable:
    """Accuracy on test rows by share of low-risk rows and budget. The improvement is over FL in every row.

    Args:
        runs: The runs; those that were not made before are made now.
        tuned: The tuned settings of every column and cell.
        case: The table.
        setting: How rows are split over the sites, and the delta.
        shares: Shares of low-risk rows.
        epsilons: Budgets of the columns with noise.
        baselines: Add the columns that the paper leaves out.

    Returns:
        The table; its title says so where delta is too large for any claim.
    """
    rows = []
    wanted = cells_of(case, setting, shares, epsilons, baselines=baselines)
    runs.prepare([tuned.plan(column, cell) for column, cell in wanted])
    for column, cell in wanted:
        if not column.private:
            paper = NO_DP[case.name][SHARES.index(float(cell.low))] if column is NO_DP_COLUMN else None
            rows.append(runs.found(f"{float(cell.low):.0%} low: {column.name}", tuned.plan(column, cell), paper))
    for share in shares:
        for epsilon in epsilons:
            rows += _cell(
                runs, tuned, HybridCell(case=case, setting=setting, low=share, epsilon=epsilon), baselines=baselines
            )
    void = any(one.void for one in runs.of(tuned.plan(*wanted[-1])))
    name = f"{case.title}, {setting.name}: alpha {setting.alpha:g}, delta {setting.delta:g}"
    note = " (above 1/(10 n) at some site: every DP claim here is void)" if void else ""
    return ResultTable(name + note, SOURCES[case.name], rows)


def _cell(runs: AllRuns, tuned: Tuned, cell: HybridCell, *, baselines: bool) -> list[Found]:
    case, epsilon = cell.case, float(cell.epsilon or 0.0)
    place, number = SHARES.index(float(cell.low)), case.epsilons.index(epsilon)
    label = f"{float(cell.low):.0%} low, epsilon {epsilon:g}"
    paper = {FL.name: SERVER[case.name][place][number], HYBRID.name: PAPER_HYBRID[case.name][place][number]}
    gain = runs.mean(tuned.plan(HYBRID, cell)) / runs.mean(tuned.plan(FL, cell)) - 1
    rows = [runs.found(f"{label}: {one.name}", tuned.plan(one, cell), paper[one.name]) for one in PAPERS_OWN]
    rows.append(Found(f"{label}: improvement over FL", gain, IMPROVEMENT[case.name][place][number]))
    return rows + [runs.found(f"{label}: {one.name}", tuned.plan(one, cell)) for one in BASELINES if baselines]


def settings_table(tuned: Tuned, case: HybridCase | None = None) -> ResultTable:
    """What tuning chose, for every column and cell of a table, or of all of them.

    Args:
        tuned: What tuning chose.
        case: The table; None shows all.

    Returns:
        One row per column and cell.
    """
    rows = []
    for (name, cell), chosen in tuned.chosen.items():
        if case is not None and cell.case is not case:
            continue
        budget = "" if cell.epsilon is None else f", epsilon {cell.epsilon:g}"
        low = cell.low if isinstance(cell.low, str) else f"{cell.low:.0%}"
        rows.append(Found(f"{cell.case.title}, {cell.setting.name}, {low} low{budget}: {name}", str(chosen)))
    return ResultTable("Settings chosen on validation rows", BEYOND, rows)


def conclusions(
    runs: AllRuns,
    tuned: Tuned,
    case: HybridCase,
    setting: HybridSetting,
    shares: Sequence[float],
    epsilons: Sequence[float],
) -> ResultTable:
    """The paper's conclusions on one table: means over the seeds, with 95 % intervals.

    Args:
        runs: The runs; those that were not made before are made now.
        tuned: The tuned settings of every column and cell.
        case: The table.
        setting: How rows are split over the sites, and the delta.
        shares: Shares of low-risk rows, over which gains are averaged.
        epsilons: Budgets from the smallest to the largest.

    Returns:
        One row per conclusion: the gain, and whether it holds, the opposite holds, or neither is shown.
    """

    def values(column: HybridColumn, share: float, epsilon: float | None) -> list[float]:
        return runs.accuracies(tuned.plan(column, HybridCell(case=case, setting=setting, low=share, epsilon=epsilon)))

    def gains(epsilon: float, other: HybridColumn, ours: HybridColumn = HYBRID) -> list[float]:
        each = [
            _minus(values(ours, share, epsilon), values(other, share, epsilon if other.private else None))
            for share in shares
        ]
        return [fmean(of_seed) for of_seed in zip(*each, strict=True)]

    least, most = epsilons[0], epsilons[-1]
    rows = [_tested(f"gain of P2P+FL over FL at epsilon {epsilon:g}", gains(epsilon, FL)) for epsilon in epsilons]
    shrinks = _minus(gains(least, FL), gains(most, FL))
    rows.append(_tested(f"the gain shrinks as epsilon grows: {least:g} less {most:g}", shrinks))
    for other in (STEPS, ONCE, LOW_RISK):
        both = [fmean(pair) for pair in zip(*(gains(epsilon, other) for epsilon in epsilons), strict=True)]
        rows.append(_tested(f"gain of P2P+FL over {other.name}, mean over epsilon", both))
    return ResultTable(f"{case.title}: the paper's conclusions, mean over the shares", "Section 4.1", rows)


def _minus(these: Iterable[float], those: Iterable[float]) -> list[float]:
    return [this - that for this, that in zip(these, those, strict=True)]


def _tested(setting: str, values: Sequence[float]) -> Found:
    """A difference with its interval, and whether that leaves out 0."""
    found = Found.mean(setting, values, interval=True)
    if found.interval is None:
        return replace(found, setting=f"{setting} (one seed: not tested)")
    low, high = found.interval
    said = "holds" if low > 0 else "the opposite holds" if high < 0 else "not shown"
    return replace(found, setting=f"{setting}: {said}")


def shifted_table(runs: AllRuns, tuned: Tuned, epsilons: Sequence[float], rules: Sequence[str]) -> ResultTable:
    """Covariate shift: the rows of low risk are those of the youngest. Is the DP phase worth its noise there?

    Args:
        runs: The runs; those that were not made before are made now.
        tuned: Tunes the columns of this table, too.
        epsilons: The budgets.
        rules: Which rows are of low risk; keys of `YOUNGEST`.

    Returns:
        Accuracies, and the hybrid's gain over either of its phases alone.
    """
    setting, rows = HybridSetting(name="shifted", alpha=5.0, delta=DELTA), []
    ways = (STEPS, HYBRID_STEPS)
    bare = {rule: HybridCell(case=SHIFTED, setting=setting, low=rule) for rule in rules}
    noisy = {(rule, epsilon): replace(bare[rule], epsilon=epsilon) for rule in rules for epsilon in epsilons}
    wanted = [(LOW_RISK, cell) for cell in bare.values()]
    wanted += [(column, cell) for cell in noisy.values() for column in ways]
    tuned.tune(wanted)
    runs.prepare([tuned.plan(*one) for one in wanted])
    for rule in rules:
        who, alone = YOUNGEST[rule], tuned.plan(LOW_RISK, bare[rule])
        rows.append(runs.found(f"{who}: {LOW_RISK.name}", alone))
        for epsilon in epsilons:
            plans = [tuned.plan(column, noisy[rule, epsilon]) for column in ways]
            label = f"{who}, epsilon {epsilon:g}"
            rows += [runs.found(f"{label}: {one.name}", plan) for one, plan in zip(ways, plans, strict=True)]
            server, both = (runs.accuracies(plan) for plan in plans)
            rows.append(_tested(f"{label}: the hybrid wins over the server", _minus(both, server)))
            low = runs.accuracies(alone)
            rows.append(_tested(f"{label}: the hybrid wins over low-risk only", _minus(both, low)))
    return ResultTable("Dutch, one-hot: low-risk rows are the youngest", BEYOND, rows)


def doors_table(doors: AllRuns, kernels: AllRuns, tuned: Tuned, cell: HybridCell) -> ResultTable:
    """Compare runs through doors and ledgers, as `kohort run` makes them, with runs by kernels alone.

    Args:
        doors: Runs through doors and ledgers.
        kernels: Runs by kernels alone, on the same rows.
        tuned: The tuned settings of every column.
        cell: The cell to run; columns without noise run without its budget.

    Returns:
        The difference in accuracy of every column, for the first seed. It is not 0 where noise is drawn, because the
        two draw other noise.
    """
    columns, seed = (*WITHOUT_NOISE, *PAPERS_OWN, *BASELINES), doors.seeds[:1]
    plans = {one: tuned.plan(one, cell if one.private else replace(cell, epsilon=None)) for one in columns}
    doors.prepare(list(plans.values()))
    rows = []
    for one, plan in plans.items():
        (through,), (alone,) = doors.accuracies(plan, seeds=seed), kernels.accuracies(plan, seeds=seed)
        noise = " (other noise)" if one.private else ""
        rows.append(Found(f"{one.name}: {through:.4f} through doors, less kernels{noise}", through - alone))
    label = f"{cell.case.title}, {float(cell.low):.0%} low, epsilon {cell.epsilon:g}, seed {seed[0]}"
    return ResultTable(f"Through doors and ledgers: {label}", BEYOND, rows)


def grid_table(runs: AllRuns, tuned: Tuned, cell: HybridCell) -> ResultTable:
    """The tuned server beside the best of a grid of 60 settings, both chosen on validation rows.

    Args:
        runs: The runs; those that were not made before are made now.
        tuned: The tuned settings; scores the grid on validation rows.
        cell: The cell to compare in.

    Returns:
        Accuracy on test rows of both, and how far the grid's best is ahead on validation rows.
    """
    scores = tuned.score(STEPS, cell, GRID)
    best = GRID[max(range(len(GRID)), key=scores.__getitem__)]
    ours = tuned.chosen[STEPS.name, cell]
    found = {"tuned by the procedure": ours, "best of 60 on validation rows": best}
    rows = [runs.found(f"{name}: {one}", tuned.plan_with(STEPS, cell, one)) for name, one in found.items()]
    validation = tuned.score(STEPS, cell, [ours])[0]
    rows.append(Found("validation accuracy: best of 60 less the procedure's", max(scores) - validation))
    label = f"{cell.case.title}, {float(cell.low):.0%} low, epsilon {cell.epsilon:g}"
    return ResultTable(f"Tuned server beside a grid: {label}", BEYOND, rows)


def accounting() -> ResultTable:
    """Epsilon of the same noise by the PLD account, the RDP account, and the sum over phases the paper suggests."""
    kinds: tuple[tuple[Accountant, str], ...] = (
        ("pld", "PLD"), ("rdp", "RDP"), ("basic", "RDP per phase, then summed"),
    )  # fmt: skip
    rows = [
        Found(f"{what}: {label}", epsilon_of(events, DELTA, accountant=kind))
        for what, events, shown in (
            ("sigma 8, rate 0.1, 600 steps", TWO_PHASES[1:], kinds[:2]),
            ("sigma 6, rate 0.2, 100 steps, then the same", TWO_PHASES, kinds),
        )
        for kind, label in shown
    ]
    return ResultTable("Epsilon at delta 1e-5 by accountant", "Section 3", rows)
