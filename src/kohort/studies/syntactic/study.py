"""Syntactic federated learning (Choudhury et al.: Anonymizing Data for Privacy-Preserving Federated Learning, ECAI
2020): Figures 3 and 4 on another table, because the paper's own are not public: F1 by k and by epsilon, and central
learning, FL, FL with differential privacy and FL with (k, k^m)-anonymity side by side.

KOHORT_PROCESSES sets how many runs are made in parallel; the figures do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from kohort.runs.config import Plan
from kohort.studies.harness.charts import line_chart, point, range_chart
from kohort.studies.harness.found import Found, Part, ResultTable
from kohort.studies.harness.parallel import process_count
from kohort.studies.harness.runs import Runs, RunSummary, summarise
from kohort.studies.harness.session import Depth, study_result
from kohort.studies.registry import Say, Study
from kohort.studies.syntactic.plans import (
    CENTRAL,
    FL,
    LEARNERS,
    SITES,
    federated,
    noisy,
    perturbed,
    quasi_only,
    syntactic,
)

__all__ = ["FULL", "QUICK", "STUDY", "SyntacticDepth", "positive_share", "run_study"]

K: Final = 10
AMPLE: Final = 0.3
LEAST_MACRO, LEAST_ABOVE, POINT = 0.97, 0.90, 0.01
METRICS: Final = {"F1": "f1", "macro F1": "f1_macro", "AUC": "auc"}
COMPARED: Final = ("macro F1", "AUC")
FIRST, *_ = LEARNERS


@dataclass(frozen=True, kw_only=True)
class SyntacticDepth(Depth):
    """How much of the study is run."""

    rounds: int
    noisy_rounds: int
    """Of DP-SGD with an epsilon of `AMPLE` or more; with a smaller one more steps add more noise than they learn."""
    ks: tuple[int, ...]
    other_ks: tuple[int, ...]
    """For the learners after the first."""
    epsilons: tuple[float, ...]
    other_epsilons: tuple[float, ...]
    """For the learners after the first."""

    def plain(self, learner: str, method: str) -> Plan:
        """Central learning or FL."""
        return federated(learner, {"name": method}, rounds=self.rounds)

    def anonymous(self, learner: str, k: int = K) -> Plan:
        """FL on (k, k^m)-anonymous rows."""
        return syntactic(learner, k, rounds=self.rounds)

    def by_k(self, learner: str) -> dict[float, Plan]:
        """The (k, k^m)-anonymous plans of a learner."""
        return {k: self.anonymous(learner, k) for k in (self.ks if learner == FIRST else self.other_ks)}

    def by_epsilon(self) -> dict[str, dict[float, Plan]]:
        """The plans under a budget: every learner with DP-SGD, and logistic regression with two perturbations."""
        made = {
            f"{learner}, DP-SGD": {
                epsilon: noisy(learner, epsilon, rounds=self.noisy_rounds_of(epsilon))
                for epsilon in (self.epsilons if learner == FIRST else self.other_epsilons)
            }
            for learner in LEARNERS
        }
        for mechanism in ("output", "objective"):
            made[f"logistic, {mechanism} perturbation"] = {
                epsilon: perturbed(mechanism, epsilon) for epsilon in self.epsilons
            }
        return made

    def noisy_rounds_of(self, epsilon: float) -> int:
        """Steps of DP-SGD."""
        return self.noisy_rounds if epsilon >= AMPLE else max(self.noisy_rounds // 8, 1)

    def private(self, learner: str) -> list[Plan]:
        """Every plan of a learner under a budget."""
        return [
            plan for name, plans in self.by_epsilon().items() if name.startswith(learner) for plan in plans.values()
        ]

    def quasi(self) -> dict[str, Plan]:
        """Plans that learn from quasi-identifiers and items alone."""
        return {
            "FL": federated("logistic", {"name": FL}, rounds=self.rounds, data=quasi_only()),
            f"(k, k^m), k = {K}": syntactic("logistic", K, rounds=self.rounds, data=quasi_only()),
        }

    def four_ways(self, learner: str) -> dict[str, Sequence[Plan]]:
        """The plans of Figure 4."""
        return {
            "central": [self.plain(learner, CENTRAL)],
            "FL": [self.plain(learner, FL)],
            "FL, epsilon-DP": self.private(learner),
            "FL, (k, k^m)": list(self.by_k(learner).values()),
        }

    def plans(self) -> list[Plan]:
        """Every plan of the study."""
        ways = [plan for learner in LEARNERS for plans in self.four_ways(learner).values() for plan in plans]
        return [*ways, *self.quasi().values()]


EPSILONS: Final = (0.01, 0.05, 0.1, 0.3, 0.9)
KS: Final = (3, 5, 10, 20, 50)
UNSEEN: Final = (10, 11, 12, 13, 14)
"""Splits that no setting was chosen on: those were 0, 1 and 2."""
FULL = SyntacticDepth(
    seeds=UNSEEN,
    rounds=30,
    noisy_rounds=240,
    ks=KS,
    other_ks=KS,
    epsilons=EPSILONS,
    other_epsilons=EPSILONS,
)
QUICK = SyntacticDepth(
    quick=True,
    seeds=UNSEEN[:1],
    rounds=20,
    noisy_rounds=240,
    ks=(K, 50),
    other_ks=(K,),
    epsilons=(0.1, 0.9),
    other_epsilons=(0.9,),
)


def run_study(out: Path, quick: bool, say: Say, *, depth: SyntacticDepth | None = None) -> dict[str, Any]:
    """Run the study; figures go into `out`."""
    depth = depth or (QUICK if quick else FULL)
    runs = Runs(depth.seeds, summarise=summarise, processes=process_count())
    say("learning in four ways")
    runs.prepare(depth.plans())
    figures = Figures(depth, runs)
    part = Part(list(figures.tables()), list(figures.charts(out)), [*_notes(depth), *figures.notes()])
    return study_result(STUDY.name, [part])


def positive_share(found: RunSummary) -> float:
    """Share of the test rows in the positive class."""
    (no, no_as_yes), (yes_as_no, yes) = found.metrics["confusion"]
    return float((yes_as_no + yes) / (no + no_as_yes + yes_as_no + yes))


@dataclass(frozen=True)
class Figures:
    """The tables and charts at one depth, from runs that were made before."""

    depth: SyntacticDepth
    runs: Runs[RunSummary]

    def values(self, plan: Plan, metric: str) -> list[float]:
        """A metric of a plan, one value per seed."""
        return self.runs.values(plan, lambda one: float(one.metrics[METRICS[metric]]))

    def mean(self, plan: Plan, metric: str) -> float:
        """The mean over the seeds."""
        return fmean(self.values(plan, metric))

    def rows(self, setting: str, plan: Plan) -> list[Found]:
        """All metrics of a plan."""
        return [Found.mean(f"{setting}: {metric}", self.values(plan, metric)) for metric in METRICS]

    def charts(self, out: Path) -> Iterator[Path]:
        """Figures 3 and 4."""
        by_k = {learner: self.depth.by_k(learner) for learner in LEARNERS}
        for letter, curves, title in (
            ("k", by_k, "Utility by k, (k, k^2)-anonymous rows at ten sites"),
            ("epsilon", self.depth.by_epsilon(), "Utility by epsilon, noise at ten sites"),
        ):
            points = [
                point(metric, name, value, self.mean(plan, metric))
                for name, plans in curves.items()
                for metric in COMPARED
                for value, plan in plans.items()
            ]
            yield line_chart(out / f"figure-3-{letter}.svg", title=title, points=points, x=letter, dots=True, log=True)
        ways = []
        for learner in LEARNERS:
            for way, plans in self.depth.four_ways(learner).items():
                means = [self.mean(plan, "macro F1") for plan in plans]
                ways.append({"panel": learner, "bar": way, "low": min(means), "high": max(means)})
        title = "Four ways to learn: lowest and highest macro F1"
        yield range_chart(out / "figure-4.svg", title=title, rows=ways, x="macro F1")

    def tables(self) -> Iterator[ResultTable]:
        """All tables."""
        by_k = [
            row
            for learner in LEARNERS
            for k, plan in self.depth.by_k(learner).items()
            for row in self.rows(f"{learner}, k = {k:g}", plan)
        ]
        by_epsilon = [
            row
            for name, plans in self.depth.by_epsilon().items()
            for epsilon, plan in plans.items()
            for row in self.rows(f"{name}, epsilon = {epsilon:g}", plan)
        ]
        yield ResultTable("Utility by k", "Figures 3 (c) and (d)", by_k)
        yield ResultTable("Utility by epsilon", "Figures 3 (a) and (b)", by_epsilon)
        yield ResultTable("Four ways to learn", "Figure 4", list(self._four()))
        costs = [row for learner in LEARNERS for row in self._costs(learner)]
        yield ResultTable(f"Cost of k = {K}", "Section 4.3", costs)
        yield ResultTable("Baselines to compare with", "not in the paper", self._baselines())
        classes = [row for k, plan in self.depth.by_k("logistic").items() for row in self._classes(k, plan)]
        yield ResultTable("Effect of the equivalence classes on rows", "Section 3.6", classes)

    def _four(self) -> Iterator[Found]:
        for learner in LEARNERS:
            for way, plans in self.depth.four_ways(learner).items():
                if len(plans) == 1:
                    yield from self.rows(f"{learner}, {way}", plans[0])
                    continue
                for metric in METRICS:
                    means = [self.mean(plan, metric) for plan in plans]
                    yield Found(f"{learner}, {way}: lowest {metric}", min(means))
                    yield Found(f"{learner}, {way}: highest {metric}", max(means))

    def _costs(self, learner: str) -> list[Found]:
        """The paper's conclusions for one learner."""
        depth = self.depth
        ours, plain, central = (
            {metric: self.mean(plan, metric) for metric in COMPARED}
            for plan in (depth.anonymous(learner), depth.plain(learner, FL), depth.plain(learner, CENTRAL))
        )
        best = {metric: max(self.mean(plan, metric) for plan in depth.private(learner)) for metric in COMPARED}
        macro = ours["macro F1"] / plain["macro F1"]
        above = self._above_chance(depth.anonymous(learner)) / self._above_chance(depth.plain(learner, FL))
        behind = max(central[metric] - plain[metric] for metric in COMPARED)
        beaten = all(ours[metric] > best[metric] for metric in COMPARED)
        return [
            Found(f"{learner}: macro F1 at k = {K}, share of FL's", macro),
            Found(f"{learner}: at least {LEAST_MACRO:.0%} of it", macro >= LEAST_MACRO),
            Found(f"{learner}: (AUC - 0.5) at k = {K}, share of FL's", above),
            Found(f"{learner}: at least {LEAST_ABOVE:.0%} of it", above >= LEAST_ABOVE),
            Found(f"{learner}: FL behind central, macro F1 or AUC, whichever is more", behind),
            Found(f"{learner}: within a point", behind <= POINT, True),
            Found(f"{learner}: best macro F1 under a budget", best["macro F1"]),
            Found(f"{learner}: best AUC under a budget", best["AUC"]),
            Found(f"{learner}: k = {K} is better than every budget in both", beaten, True),
        ]

    def _above_chance(self, plan: Plan) -> float:
        return fmean(value - 0.5 for value in self.values(plan, "AUC"))

    def _baselines(self) -> list[Found]:
        """The classifier that always predicts the positive class, and quasi-identifiers and items alone."""
        shares = self.runs.values(self.depth.plain("logistic", FL), positive_share)
        always = [2 * share / (1 + share) for share in shares]
        name = "baseline (always the positive class)"
        rows = [
            Found.mean(f"{name}: F1", always),
            Found.mean(f"{name}: macro F1", [value / 2 for value in always]),
            Found(f"{name}: AUC", 0.5),
        ]
        for way, plan in self.depth.quasi().items():
            rows += self.rows(f"logistic, quasi-identifiers and items alone, {way}", plan)
        return rows

    def _classes(self, k: float, plan: Plan) -> list[Found]:
        facts: list[Mapping[str, Any]] = [one.facts for one in self.runs.of(plan)]

        def mean(what: str, read: Callable[[Mapping[str, Any]], float]) -> Found:
            return Found.mean(f"k = {k:g}: {what}", [read(one) for one in facts])

        return [
            mean(f"classes of {SITES} sites", lambda one: one["classes"]),
            mean("test rows without a legitimate class", lambda one: one["test_rows_without_class"] / one["test_rows"]),
            mean(
                "training rows mapped to the class they were trained in, among their own site's classes",
                lambda one: one["same_class_own"],
            ),
            mean("the same among all classes", lambda one: one["same_class"]),
            Found(
                f"k = {k:g}: training rows mapped to a class of higher cost", sum(one["dearer_class"] for one in facts)
            ),
            mean("items suppressed", lambda one: one["suppressed_items"] / one["items"]),
        ]

    def notes(self) -> list[str]:
        """Which budgets do better than k = 10."""
        wins = [
            f"{name} at epsilon = {epsilon:g}"
            for name, plans in self.depth.by_epsilon().items()
            for epsilon, plan in plans.items()
            if self.mean(plan, "AUC") > self.mean(self.depth.anonymous(name.partition(",")[0]), "AUC")
        ]
        if wins:
            return [f"A budget does better than k = {K} by AUC here: {', '.join(wins)}."]
        return [f"No budget does better than k = {K} by AUC here."]


def _notes(depth: SyntacticDepth) -> list[str]:
    notes = [
        "The paper's tables are LCED, which is proprietary, and MIMIC-III, which needs credentials; its figures "
        "are curves without values. Ours are on diabetes_130us: one row per patient, readmitted at all against not, "
        "age, gender and race as quasi-identifiers, up to three ICD-9 codes as items, other columns as they are.",
        f"Random splits of 70 / 30: {len(depth.seeds)}; the paper cross-validates within the 70 %. Ten sites, m = "
        "2, delta = 0.95. Sites rank their quasi-identifiers with a random forest and keep the first. A row that "
        "holds a rare pair of items loses one of them; the paper makes groups of items until no pair is rare: on "
        "the splits that settings were chosen on, that cost almost twice the AUC.",
        "Central learning, FL and (k, k^m) train alike: four passes per round, and the mean of the models of the last "
        "80 % of the rounds, because a single model's threshold changes from round to round. Central learning has a "
        "tenth of the rate, because the hub makes ten times the steps of a site in a pass.",
        "Plain F1 says little here: the baseline that always predicts the positive class has 0.57, about as much as "
        "FL. Macro F1 and AUC tell the models apart. All losses but those of the perturbed regressions give both "
        "classes the same weight.",
        "Output and objective perturbation are epsilon-DP without a delta, by site, as in the work the paper "
        "cites. DP-SGD is (epsilon, 1e-5)-DP, tuned: whole sites as batches, Adam on the noisy gradients, the last "
        "models averaged, and no diagnoses, whose 900 features cost more noise than they tell.",
        "Settings were chosen by macro F1 and AUC on the test rows of splits 0, 1 and 2, which are not reported "
        "here; other splits of the same table share rows with them, so some of the choice may show. Tried: some "
        "20 ways to anonymise, 5 to encode labels, about 14 trainings of each learner and 5 shares of the rounds "
        "to average over; 17 trainings of DP-SGD (rounds, clip, rate, optimiser, average), mostly on split 0, for "
        "logistic regression alone and taken over by the others, and 3 penalties of the perturbed regressions.",
        "k and epsilon are different guarantees: an equivalence class hides a row among k rows and does not hide who "
        "took part; a budget bounds the effect of any single row. A higher F1 is not a stronger guarantee.",
    ]
    if depth.quick:
        notes.append(
            f"Quick: one split, {depth.rounds} rounds, k = {' and '.join(map(str, depth.ks))} for logistic regression "
            f"and {K} for the others, two budgets."
        )
    return notes


STUDY = Study(
    name="syntactic",
    summary="Rows and item sets made (k, k^m)-anonymous before learning: utility by k, and by epsilon beside it.",
    cites="Choudhury et al. 2020",
    run=run_study,
)
