"""Syntactic federated learning (Choudhury et al.: Anonymizing Data for Privacy-Preserving Federated Learning, ECAI
2020): Figures 3 and 4 on another table, because the paper's own are not public: F1 by k and by epsilon, and central
learning, FL, FL with differential privacy and FL with (k, k^m)-anonymity side by side.

KOHORT_PROCESSES sets how many runs are made in parallel; the figures do not depend on it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from kohort.studies.harness.found import Part
from kohort.studies.harness.parallel import process_count
from kohort.studies.harness.runs import Runs, RunSummary, summarise
from kohort.studies.harness.session import study_result
from kohort.studies.registry import Say, Study
from kohort.studies.syntactic.figures import Figures
from kohort.studies.syntactic.plans import BOUND, MERGE, K, SyntacticDepth
from kohort.studies.syntactic.settings import cross_validate
from kohort.studies.syntactic.stays import stays_part
from kohort.studies.syntactic.thresholds import run_with_thresholds

__all__ = ["FULL", "QUICK", "STUDY", "run_study"]

EPSILONS: Final = (0.01, 0.05, 0.1, 0.3, 0.9)
KS: Final = (3, 5, 10, 20, 50)
UNSEEN: Final = (20, 21, 22, 23, 24)
"""Splits that no setting of the plans was chosen on: those were 0, 1 and 2."""
RATES: Final = {"logistic": (0.2, 0.4, 0.8), "svm": (0.05, 0.1, 0.2)}
"""A perceptron's rate changes nothing but the scale of its weights."""
MERGES: Final = ((MERGE, BOUND), (MERGE, 0.35), ("paying", 0.95))
FULL = SyntacticDepth(
    seeds=UNSEEN[:2],
    rounds=10,
    noisy_rounds=120,
    ks=KS,
    other_ks=(K,),
    epsilons=EPSILONS,
    other_epsilons=(0.1, 0.9),
    rates=RATES,
    merges=MERGES,
)
QUICK = replace(
    FULL,
    quick=True,
    seeds=UNSEEN[:1],
    rounds=6,
    noisy_rounds=60,
    ks=(K, 50),
    epsilons=(0.1, 0.9),
    other_epsilons=(0.9,),
    rates={"logistic": (0.2, 0.4)},
    merges=MERGES[:1],
)


def run_study(out: Path, quick: bool, say: Say, *, depth: SyntacticDepth | None = None) -> dict[str, Any]:
    """Run the study; figures go into `out`.

    Args:
        out: The folder.
        quick: Whether to run less of it.
        say: Takes lines about progress.
        depth: How much is run; by default what `quick` says.

    Returns:
        The study's JSON object.
    """
    depth = depth or (QUICK if quick else FULL)
    say("the MIMIC-III layout on its demo")
    stays = stays_part()
    say("choosing settings by cross-validation")
    chosen = cross_validate(depth, processes=process_count())
    runs: Runs[RunSummary] = Runs(
        depth.seeds,
        summarise=summarise,
        processes=process_count(),
        group=partial(run_with_thresholds, settings=chosen.settings),
    )
    say("learning in four ways")
    runs.prepare(depth.plans())
    figures = Figures(depth, runs)
    tables = [*figures.tables(), chosen.table()]
    part = Part(tables, list(figures.charts(out)), [*_notes(depth), *figures.notes()])
    return study_result(STUDY.name, [part, stays])


def _notes(depth: SyntacticDepth) -> list[str]:
    notes = [
        "The paper's tables are LCED, which is proprietary, and MIMIC-III, which needs credentials; its figures "
        "are curves without values. Ours are on diabetes_130us: one row per patient, readmitted at all against not, "
        "age, gender and race as quasi-identifiers, up to three ICD-9 codes as items, other columns as they are.",
        f"Random splits of 70 / 30: {len(depth.seeds)}. The 70 % are five folds, by patient. What the table of "
        "settings lists is chosen in every split by the mean AUC over its five folds, each left out of learning once: "
        f"{_tuned(depth)}. Settings with one candidate are those of the example.",
        "Then a split's runs learn from four of its folds, and every learner's threshold is the one with the highest "
        "macro F1 in the fifth: at its own, a learner whose scores noise has shifted has a low F1 however well it "
        "ranks. F1 and macro F1 are of the test rows at that threshold.",
        "Ten sites, m = 2. All quasi-identifiers are kept; age groups join with their neighbours. In "
        "a row that holds a rare pair of codes one of them goes up ICD-9, to its root, before it is suppressed; the "
        "paper makes groups of items until no pair is rare.",
        "Deleting the quasi-identifiers and items leaves most of FL's F1 and AUC, because other columns tell more. So "
        "the measure is the share of these columns' own gain that is kept: without them 0 %, as they are 100 %.",
        "Central learning, FL and (k, k^m) train alike: four passes per round, and the mean of the models of the last "
        "80 % of the rounds, because a single model's threshold changes from round to round. Central learning has a "
        "tenth of the rate, because the hub makes ten times the steps of a site in a pass.",
        "Plain F1 says little here: the baseline that always predicts the positive class has 0.57, about as much as "
        "FL. Macro F1 and AUC tell the models apart. All losses but those of the perturbed regressions give both "
        "classes the same weight.",
        "Output and objective perturbation are epsilon-DP without a delta, by site, as in the work the paper "
        "cites. DP-SGD is (epsilon, 1e-5)-DP, tuned: whole sites as batches, Adam on the noisy gradients, the last "
        "models averaged, and no diagnoses, whose 900 features add more noise than information.",
        "All other settings, those of the budgets among them, were chosen before, by macro F1 and AUC on the test rows "
        "of splits 0, 1 and 2, which are not reported here; other splits share rows with them, so some of the choice "
        "may show: some "
        "30 ways to anonymise, 7 to encode labels, about 14 trainings of each learner and 5 shares of the rounds "
        "to average over; 17 trainings of DP-SGD (rounds, clip, rate, optimiser, average), mostly on split 0, for "
        "logistic regression alone and taken over by the others, and 3 penalties of the perturbed regressions. Counts "
        "such as earlier admissions are read in bins; that was chosen on validation rows in the training part of split "
        "0, by the AUC of FL on rows as they are.",
        "k and epsilon are different guarantees: an equivalence class hides a row among k rows and does not hide who "
        "took part; a budget bounds the effect of any single row. A higher F1 is not a stronger guarantee.",
    ]
    if depth.quick:
        notes.append(
            f"Quick: one split, {depth.rounds} rounds, k = {' and '.join(map(str, depth.ks))} for logistic regression "
            f"and {K} for the others, two budgets."
        )
    return notes


def _tuned(depth: SyntacticDepth) -> str:
    """What cross-validation chooses at a depth, in words."""
    named = [f"the rate of {learner}" for learner, rates in depth.rates.items() if len(rates) > 1]
    return ", ".join([*named, *(["how clusters join"] if len(depth.merges) > 1 else [])]) or "nothing"


STUDY = Study(
    name="syntactic",
    summary="Rows and item sets made (k, k^m)-anonymous before learning: utility by k, and by epsilon beside it.",
    cites="Choudhury et al. 2020",
    run=run_study,
)
