"""Tables 1 to 3 with the baselines the paper leaves out, and three tables beyond it: low-risk rows that differ from the
others, data that is no table, and the accountants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Final

from kohort.privacy.dp.accounting import Accountant, Event, epsilon_of
from kohort.runs.config import Plan
from kohort.studies.harness.found import Found, ResultTable
from kohort.studies.harness.runs import Runs, RunSummary
from kohort.studies.hybrid import plans
from kohort.studies.hybrid.paper import HYBRID, IMPROVEMENT, NO_DP, SERVER, SHARES
from kohort.studies.hybrid.plans import DIGITS, SHIFTED, Case, Setting

__all__ = ["accounting", "accuracy_table", "comparison", "digits_table", "one_hot_table", "plans_of", "shifted_table"]

AllRuns = Runs[RunSummary]
Budgeted = Callable[[Case, Setting, float, float], Plan]
SOURCES: Final = {"dutch": "Table 1", "income": "Table 2", "covertype": "Table 3"}
BEYOND: Final = "beyond the paper"
DELTA: Final = 1e-5
PAPERS_OWN: Final[dict[str, Budgeted]] = {"FL": plans.server_only, "P2P+FL": plans.hybrid}
BASELINES: Final[dict[str, Budgeted]] = {"tuned server-only": plans.tuned, "noise added once, all rows": plans.summed}
WITHOUT_NOISE: Final[dict[str, Callable[[Case, Setting, float], Plan]]] = {
    "no DP": plans.no_dp,
    "low-risk only": plans.low_risk_only,
    "peers only, mean of clusters": plans.peers_only,
}
YOUNGEST: Final = {"below:age:6": "the youngest 14 %", "below:age:7": "the youngest 25 %"}
"""Ages are coded in groups; a share of 20 % lies between these two."""
DIGITS_EPSILON: Final = 2.0
TWO_PHASES: Final = (Event(sigma=6.0, rate=0.2, steps=100), Event(sigma=8.0, rate=0.1, steps=600))


def plans_of(case: Case, setting: Setting, shares: Sequence[float], *, baselines: bool) -> list[Plan]:
    """Every plan of one table."""
    ways = {**PAPERS_OWN, **BASELINES} if baselines else PAPERS_OWN
    chosen = [way(case, setting, share) for way in WITHOUT_NOISE.values() for share in shares]
    return chosen + [
        way(case, setting, share, epsilon) for way in ways.values() for share in shares for epsilon in case.epsilons
    ]


def accuracy_table(
    runs: AllRuns, case: Case, setting: Setting, shares: Sequence[float], *, baselines: bool
) -> ResultTable:
    """Accuracy by share of low-risk rows and budget. The improvement is over FL in every row."""
    rows = []
    for share in shares:
        for name, plan in WITHOUT_NOISE.items():
            paper = NO_DP[case.name][SHARES.index(share)] if name == "no DP" else None
            rows.append(runs.found(f"{share:.0%} low: {name}", plan(case, setting, share), paper))
    for share in shares:
        for epsilon in case.epsilons:
            rows += _cell(runs, case, setting, share, epsilon, baselines=baselines)
    void = any(one.void for one in runs.of(plans.server_only(case, setting, SHARES[-1], case.epsilons[0])))
    name = f"{case.title}, {setting.name}: alpha {setting.alpha:g}, delta {setting.delta:g}"
    note = " (above 1/(10 n) at some site: every DP claim here is void)" if void else ""
    return ResultTable(name + note, SOURCES[case.name], rows)


def _cell(runs: AllRuns, case: Case, setting: Setting, share: float, epsilon: float, *, baselines: bool) -> list[Found]:
    place, number = SHARES.index(share), case.epsilons.index(epsilon)
    label = f"{share:.0%} low, epsilon {epsilon:g}"
    paper = {"FL": SERVER[case.name][place][number], "P2P+FL": HYBRID[case.name][place][number]}
    chosen = {name: way(case, setting, share, epsilon) for name, way in {**PAPERS_OWN, **BASELINES}.items()}
    gain = runs.mean(chosen["P2P+FL"]) / runs.mean(chosen["FL"]) - 1
    rows = [runs.found(f"{label}: {name}", chosen[name], paper[name]) for name in PAPERS_OWN]
    rows.append(Found(f"{label}: improvement over FL", gain, IMPROVEMENT[case.name][place][number]))
    return rows + [runs.found(f"{label}: {name}", chosen[name]) for name in BASELINES if baselines]


def _table(runs: AllRuns, name: str, chosen: Mapping[str, Plan]) -> ResultTable:
    """A table beyond the paper: the accuracy of each plan."""
    runs.prepare(list(chosen.values()))
    return ResultTable(name, BEYOND, [runs.found(setting, plan) for setting, plan in chosen.items()])


def one_hot_table(runs: AllRuns, case: Case, setting: Setting, epsilons: Sequence[float]) -> ResultTable:
    """Accuracy at 40 % low-risk rows with codes as indicators, which suit a linear model."""
    share, ways = SHARES[-1], {**PAPERS_OWN, **BASELINES, "P2P, then tuned": plans.tuned_hybrid}
    chosen = {name: way(case, setting, share) for name, way in WITHOUT_NOISE.items()}
    chosen |= {
        f"epsilon {epsilon:g}: {name}": way(case, setting, share, epsilon)
        for epsilon in epsilons
        for name, way in ways.items()
    }
    return _table(runs, f"{case.title}, 40 % low-risk, {setting.name}", chosen)


def shifted_table(runs: AllRuns, epsilons: Sequence[float]) -> ResultTable:
    """Covariate shift: the low-risk rows are those of the youngest. Does the DP phase pay for its noise here?"""
    setting = Setting(name="shifted", alpha=5.0, delta=DELTA)
    chosen: dict[str, Plan] = {}
    for rule, who in YOUNGEST.items():
        chosen[f"{who}: no DP, high-risk rows"] = plans.no_dp(SHIFTED, setting, rule)
        chosen[f"{who}: low-risk only"] = plans.low_risk_only(SHIFTED, setting, rule)
        for epsilon in epsilons:
            chosen[f"{who}, epsilon {epsilon:g}: tuned server-only"] = plans.tuned(SHIFTED, setting, rule, epsilon)
            chosen[f"{who}, epsilon {epsilon:g}: P2P, then tuned"] = plans.tuned_hybrid(SHIFTED, setting, rule, epsilon)
    return _table(runs, "Dutch, one-hot: low-risk rows are the youngest", chosen)


def digits_table(runs: AllRuns) -> ResultTable:
    """Handwritten digits of 8 x 8 pixels, over two clusters of three sites."""
    setting, share = Setting(name="digits", alpha=5.0, delta=DELTA), 0.4
    chosen = {name: way(DIGITS, setting, share) for name, way in WITHOUT_NOISE.items()}
    ways = {
        **PAPERS_OWN,
        "tuned server-only": plans.tuned,
        "P2P, then tuned": plans.tuned_hybrid,
        "noise added once, all rows": plans.summed,
    }
    for name, way in ways.items():
        chosen[f"epsilon {DIGITS_EPSILON:g}: {name}"] = way(DIGITS, setting, share, DIGITS_EPSILON)
    return _table(runs, "Handwritten digits, 40 % low-risk", chosen)


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


def comparison(runs: AllRuns, cases: Sequence[tuple[Case, Setting, Sequence[float]]]) -> ResultTable:
    """Summary of Tables 1 to 3: mean accuracies, and in how many cells P2P+FL beats each baseline."""
    rows = []
    for case, setting, shares in cases:
        cells = [(share, epsilon) for share in shares for epsilon in case.epsilons]
        ours = {
            name: [runs.mean(way(case, setting, *cell)) for cell in cells]
            for name, way in {**PAPERS_OWN, **BASELINES}.items()
        }
        low = [runs.mean(plans.low_risk_only(case, setting, share)) for share, _ in cells]
        paper = {
            name: [printed[SHARES.index(share)][case.epsilons.index(epsilon)] for share, epsilon in cells]
            for name, printed in (("FL", SERVER[case.name]), ("P2P+FL", HYBRID[case.name]))
        }
        both, where = ours["P2P+FL"], f"{case.title}: cells where P2P+FL is above"
        rows += [Found(f"{case.title}: mean of {name}", fmean(ours[name]), fmean(paper[name])) for name in PAPERS_OWN]
        rows += [
            Found(
                f"{case.title}: cells of {len(cells)} where P2P+FL is above FL",
                _above(both, ours["FL"]),
                _above(paper["P2P+FL"], paper["FL"]),
            ),
            Found(f"{where} tuned server-only", _above(both, ours["tuned server-only"])),
            Found(f"{where} low-risk only", _above(both, low)),
        ]
    return ResultTable("P2P+FL against the baselines", "Section 4.1", rows)


def _above(these: Sequence[float], those: Sequence[float]) -> int:
    return sum(this > that for this, that in zip(these, those, strict=True))
