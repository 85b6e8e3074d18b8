"""Figures 3 and 4, the tables behind them, the cost of k = 10, and baselines to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from kohort.runs.config import Plan
from kohort.studies.harness.charts import line_chart, point, range_chart
from kohort.studies.harness.found import Found, ResultTable
from kohort.studies.harness.runs import Runs, RunSummary
from kohort.studies.syntactic.plans import CENTRAL, FL, LEARNERS, SITES, K, SyntacticDepth
from kohort.studies.syntactic.thresholds import AS_TRAINED

__all__ = ["Figures", "positive_share"]

LEAST_MACRO, LEAST_ABOVE, POINT = 0.97, 0.90, 0.01
METRICS: Final = {"F1": "f1", "macro F1": "f1_macro", "AUC": "auc"}
COMPARED: Final = ("macro F1", "AUC")


def positive_share(found: RunSummary) -> float:
    """Share of the test rows in the positive class.

    Args:
        found: A run with two classes.

    Returns:
        From 0 to 1.
    """
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
        title = "Ways to learn: lowest and highest macro F1"
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
        kept = [row for learner in LEARNERS for row in self._kept(learner)]
        yield ResultTable("What the anonymised columns keep of their own gain", "not in the paper", kept)
        costs = [row for learner in LEARNERS for row in self._costs(learner)]
        yield ResultTable(f"Cost of k = {K}", "Section 4.3", costs)
        cuts = [row for learner in LEARNERS for row in self._cuts(learner)]
        yield ResultTable("Macro F1 at the learner's own threshold and at the chosen one", "not in the paper", cuts)
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

    def _kept(self, learner: str) -> Iterator[Found]:
        """AUC without quasi-identifiers and items (0 %), with them as they are (100 %), and what each k keeps."""
        deleted, plain = (
            self.values(plan, "AUC") for plan in (self.depth.deleted(learner), self.depth.plain(learner, FL))
        )
        yield Found.mean(f"{learner}: AUC of FL without quasi-identifiers and items", deleted)
        yield Found.mean(f"{learner}: AUC of FL", plain)
        for k, plan in self.depth.by_k(learner).items():
            ours = self.values(plan, "AUC")
            shares = [(one - low) / (high - low) for one, low, high in zip(ours, deleted, plain, strict=True)]
            yield Found.mean(f"{learner}, k = {k:g}: share of the columns' own gain kept", shares)

    def _cuts(self, learner: str) -> Iterator[Found]:
        """Macro F1 at both thresholds: FL, (k, k^m), and DP-SGD at the largest epsilon."""
        by_epsilon = self.depth.by_epsilon()[f"{learner}, DP-SGD"]
        largest = max(by_epsilon)
        shown = {
            "FL": self.depth.plain(learner, FL),
            f"k = {K}": self.depth.anonymous(learner),
            f"DP-SGD, epsilon = {largest:g}": by_epsilon[largest],
        }
        for name, plan in shown.items():
            own = self.runs.values(plan, lambda one: float(one.metrics[f"f1_macro{AS_TRAINED}"]))
            chosen = self.values(plan, "macro F1")
            yield Found.mean(f"{learner}, {name}: at its own threshold", own)
            yield Found.mean(f"{learner}, {name}: at the threshold of the validation rows", chosen)

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
            Found(
                f"k = {k:g}: training rows mapped to a class of higher cost", sum(one["dearer_class"] for one in facts)
            ),
            mean("items suppressed", lambda one: one["suppressed_items"] / one["items"]),
            *(Found.mean(f"k = {k:g}: NCP of {name}", [one["ncp"][name] for one in facts]) for name in facts[0]["ncp"]),
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
