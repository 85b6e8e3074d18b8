"""Tables 1 to 3: the paper's three columns, the baselines it leaves out, and what they say together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, Final

from kohort.runs.config import Plan
from kohort.studies.harness.lines import row, row_of
from kohort.studies.hybrid.paper import HYBRID, IMPROVEMENT, NO_DP, SERVER, SHARES
from kohort.studies.hybrid.plans import (
    Case,
    Setting,
    hybrid,
    low_risk_only,
    no_dp,
    peers_only,
    server_only,
    summed,
    tuned,
    tuned_hybrid,
)
from kohort.studies.hybrid.runs import Runs
from kohort.studies.registry import Say

__all__ = ["accuracy_table", "conclusions", "one_hot_table", "plans_of", "prepare"]

SOURCES: Final = {"dutch": "Table 1", "income": "Table 2", "covertype": "Table 3"}
Budgeted = Callable[[Case, Setting, float, float], Plan]
PAPERS_OWN: Final[dict[str, Budgeted]] = {"FL": server_only, "P2P+FL": hybrid}
BASELINES: Final[dict[str, Budgeted]] = {"tuned server-only": tuned, "noise added once, all rows": summed}
WITHOUT_NOISE: Final[dict[str, Callable[[Case, Setting, float], Plan]]] = {
    "no DP": no_dp,
    "low-risk only": low_risk_only,
    "peers only, mean of clusters": peers_only,
}


def plans_of(case: Case, setting: Setting, shares: Sequence[float], *, baselines: bool) -> list[Plan]:
    """Every plan of one table."""
    ways = {**PAPERS_OWN, **BASELINES} if baselines else PAPERS_OWN
    plans = [way(case, setting, share) for way in WITHOUT_NOISE.values() for share in shares]
    plans += [
        way(case, setting, share, epsilon) for way in ways.values() for share in shares for epsilon in case.epsilons
    ]
    return plans


def prepare(runs: Runs, case: Case, setting: Setting, shares: Sequence[float], *, baselines: bool, say: Say) -> None:
    """Make all runs of one table, side by side."""
    plans = plans_of(case, setting, shares, baselines=baselines)
    say(f"{case.title}, {setting.name}: {len(plans)} plans, {len(runs.seeds)} seed(s)")
    runs.prepare(plans, limit=case.rows)


def accuracy_table(
    runs: Runs, case: Case, setting: Setting, shares: Sequence[float], *, baselines: bool
) -> dict[str, Any]:
    """Accuracy by share of low-risk rows and budget; the improvement is over FL, in every line."""
    rows = []
    for share in shares:
        place = SHARES.index(share)
        for name, way in WITHOUT_NOISE.items():
            paper = NO_DP[case.name][place] if name == "no DP" else None
            rows.append(row_of(f"{share:.0%} low: {name}", paper, _accuracies(runs, case, way(case, setting, share))))
    for share in shares:
        for number, epsilon in enumerate(case.epsilons):
            rows += _cell(runs, case, setting, share, epsilon, number, baselines=baselines)
    name = f"{case.title}, {setting.name}: alpha {setting.alpha:g}, delta {setting.delta:g}{_void(runs, case, setting)}"
    return {"name": name, "source": SOURCES[case.name], "rows": rows}


def _cell(
    runs: Runs, case: Case, setting: Setting, share: float, epsilon: float, number: int, *, baselines: bool
) -> list[dict[str, Any]]:
    place, label = SHARES.index(share), f"{share:.0%} low, epsilon {epsilon:g}"
    paper = {"FL": SERVER[case.name][place][number], "P2P+FL": HYBRID[case.name][place][number]}
    found = {name: _accuracies(runs, case, way(case, setting, share, epsilon)) for name, way in PAPERS_OWN.items()}
    rows = [row_of(f"{label}: {name}", paper[name], values) for name, values in found.items()]
    gain = fmean(found["P2P+FL"]) / fmean(found["FL"]) - 1
    rows.append(row(f"{label}: improvement over FL", IMPROVEMENT[case.name][place][number], gain))
    if baselines:
        rows += [
            row_of(f"{label}: {name}", None, _accuracies(runs, case, way(case, setting, share, epsilon)))
            for name, way in BASELINES.items()
        ]
    return rows


def _accuracies(runs: Runs, case: Case, plan: Plan) -> list[float]:
    return runs.accuracies(plan, limit=case.rows)


def _void(runs: Runs, case: Case, setting: Setting) -> str:
    share, epsilon = SHARES[-1], case.epsilons[0]
    void = any(found.void for found in runs.of(server_only(case, setting, share, epsilon), limit=case.rows))
    return " (above 1/(10 n) at some site: every DP claim here is void)" if void else ""


def one_hot_table(runs: Runs, case: Case, setting: Setting, epsilons: Sequence[float]) -> dict[str, Any]:
    """The same at 40 % with codes as indicators, which a linear model can use."""
    share, ways = SHARES[-1], {**PAPERS_OWN, **BASELINES, "P2P, then tuned": tuned_hybrid}
    plans = [way(case, setting, share) for way in WITHOUT_NOISE.values()]
    plans += [way(case, setting, share, epsilon) for way in ways.values() for epsilon in epsilons]
    runs.prepare(plans, limit=case.rows)
    rows = [
        row_of(name, None, _accuracies(runs, case, way(case, setting, share))) for name, way in WITHOUT_NOISE.items()
    ]
    for epsilon in epsilons:
        rows += [
            row_of(f"epsilon {epsilon:g}: {name}", None, _accuracies(runs, case, way(case, setting, share, epsilon)))
            for name, way in ways.items()
        ]
    return {"name": f"{case.title}, 40 % low-risk, {setting.name}", "source": "beyond the paper", "rows": rows}


def conclusions(runs: Runs, cases: Sequence[tuple[Case, Setting, Sequence[float]]]) -> dict[str, Any]:
    """What the tables say when the baselines stand beside them."""
    rows = []
    for case, setting, shares in cases:
        cells = [(share, epsilon) for share in shares for epsilon in case.epsilons]
        ours = {
            name: [runs.mean(way(case, setting, *cell), limit=case.rows) for cell in cells]
            for name, way in {**PAPERS_OWN, **BASELINES}.items()
        }
        low = [runs.mean(low_risk_only(case, setting, share), limit=case.rows) for share, _ in cells]
        paper = {
            name: [printed[SHARES.index(share)][case.epsilons.index(epsilon)] for share, epsilon in cells]
            for name, printed in (("FL", SERVER[case.name]), ("P2P+FL", HYBRID[case.name]))
        }
        rows += [
            row(f"{case.title}: mean of {name}", fmean(paper[name]), fmean(ours[name])) for name in ("FL", "P2P+FL")
        ]
        rows += [
            row(
                f"{case.title}: cells of {len(cells)} where P2P+FL is above FL",
                _above(paper["P2P+FL"], paper["FL"]),
                _above(ours["P2P+FL"], ours["FL"]),
            ),
            row(
                f"{case.title}: cells where P2P+FL is above tuned server-only",
                None,
                _above(ours["P2P+FL"], ours["tuned server-only"]),
            ),
            row(f"{case.title}: cells where P2P+FL is above low-risk only", None, _above(ours["P2P+FL"], low)),
        ]
    return {"name": "What the tables say", "source": "Section 4.1", "rows": rows}


def _above(these: Sequence[float], those: Sequence[float]) -> int:
    return sum(this > that for this, that in zip(these, those, strict=True))
