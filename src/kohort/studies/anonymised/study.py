"""Anonymisation and what can still be learned (Saleh: Comparison of the Effects of Data Privacy Preserving Methods on
Machine Learning Algorithms in IoT, Marmara University, 2022): Tables 2.2, 5.1-5.10, 7.1-7.2 and Figures 5.1-5.15,
7.1-7.6, ours beside the thesis's, on Adult, Housing and Mammographic.

KOHORT_PROCESSES sets how many classifiers are trained in parallel; the figures do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kohort.studies.anonymised.classifiers import SVM_ROWS
from kohort.studies.anonymised.conclusions import classifier_tables, conclusions, protocol_notes, rank_correlation
from kohort.studies.anonymised.loss import (
    MeasuredLoss,
    association_tables,
    education_tables,
    measure_variant,
    partition_table,
    unguarded_table,
    write_figures,
)
from kohort.studies.anonymised.membership import membership
from kohort.studies.anonymised.paper import NAMES
from kohort.studies.anonymised.protocols import score_case
from kohort.studies.anonymised.silo import chapter_seven
from kohort.studies.anonymised.silo_membership import silo_membership
from kohort.studies.anonymised.tables import CASES, AnonymisedCase, AnonymisedDepth, AnonymisedSession, case_named
from kohort.studies.harness.charts import scatter_plot
from kohort.studies.harness.found import Part
from kohort.studies.harness.parallel import process_count
from kohort.studies.harness.runs import Runs, summarise
from kohort.studies.harness.session import Session, study_result
from kohort.studies.registry import Say, Study

__all__ = ["FULL", "QUICK", "STUDY", "run_study"]

FULL = AnonymisedDepth(
    seeds=(0,), ks=(3, 6, 9, 12, 15), repeats={"mammographic": 5, "adult": 1, "housing": 1}, attacks=5,
    classifiers=NAMES, fit_rows=6_000, rounds=30, attack_rows=500,
    unscaled=("SVM", "logistic regression", "SGD", "KNN", "MLP"),
)  # fmt: skip
QUICK = AnonymisedDepth(
    quick=True, seeds=(0,), ks=(3, 9, 15), repeats={"mammographic": 3, "adult": 1, "housing": 1}, attacks=3,
    classifiers=("extra trees", "random forest", "gradient boosting", "logistic regression", "KNN"),
    fit_rows=4_000, rounds=30, attack_rows=500, unscaled=("SVM", "logistic regression", "KNN"),
)  # fmt: skip


def run_study(
    out: Path, quick: bool, say: Say, *, depth: AnonymisedDepth | None = None, names: Sequence[str] = tuple(CASES)
) -> dict[str, Any]:
    """Run the study on the named tables; figures go into `out`.

    Args:
        out: The folder.
        quick: Whether to run less of it.
        say: Takes lines about progress.
        depth: How much is run; by default what `quick` says.
        names: The tables, of `CASES`.

    Returns:
        The study's JSON object.
    """
    depth = depth or (QUICK if quick else FULL)
    session = Session(depth, out, say, Runs(depth.seeds, summarise=summarise, processes=process_count()))
    return study_result(STUDY.name, _parts(session, [case_named(name) for name in names]), _notes(depth))


def _parts(session: AnonymisedSession, cases: Sequence[AnonymisedCase]) -> Iterator[Part]:
    depth, say = session.depth, session.say
    losses: dict[str, dict[str, MeasuredLoss]] = {}
    for case in cases:
        say(f"{case.title}: partitions and information loss")
        losses[case.name] = found = {variant.key: measure_variant(case, variant) for variant in case.variants}
        if case.name == "adult":
            yield Part(education_tables(case))
        if case.name == "mammographic":
            yield Part(association_tables(case, found["k3"]))
        yield Part([partition_table(case, found.values())], write_figures(session.out, case, found, depth.ks))
    say("The optimisation step as printed")
    yield unguarded_table(cases)
    scores = {case.name: score_case(session, case) for case in cases}
    for case in cases:
        yield Part(list(classifier_tables(case, scores[case.name], depth.classifiers, depth.unscaled)))
    ranked, points = rank_correlation(cases, losses, scores, classifiers=depth.classifiers)
    figure = scatter_plot(
        session.out / "figure-loss-accuracy.svg", title="Gradient boosting, raw test rows", points=points,
        x="information loss", y="accuracy", x_format=".0%",
    )  # fmt: skip
    yield Part([ranked], [figure], protocol_notes(cases, scores))
    for case in cases:
        if case.name == "adult":
            yield chapter_seven(session, case)
            yield silo_membership(session, case)
    yield membership(session, cases)
    yield Part([conclusions(cases, losses, scores)])


def _notes(depth: AnonymisedDepth) -> list[str]:
    notes = [
        "Classifiers are scikit-learn's with their defaults, on label codes and numbers scaled to [0, 1]; the thesis "
        "seems not to scale, which is why its SVM, SGD and network stay near the most frequent class.",
        f"The SVM sees at most {SVM_ROWS:,} training rows; the network's grid is searched on part of them.",
        "Adult without fnlwgt, a sampling weight of the survey. F1, precision and recall are means over the classes.",
        "t is KL(class || table) in nats, as in the thesis. Groups of values are automatic and made from the target, "
        "so the choice of groups itself discloses something about it.",
        "In the information loss a suppressed cell carries no information. Counted as a value it would show where "
        "classes had to be large, which is where one target value is rare: with l and t the loss would even be "
        "negative.",
        "The thesis seems to split after anonymising the whole table. Raw test rows are what a model sees in use. "
        "Both are shown.",
    ]
    notes.append(f"{len(depth.classifiers)} classifiers on at most {depth.fit_rows:,} training rows.")
    return notes


STUDY = Study(
    name="anonymised",
    summary="k-anonymity, l-diversity and t-closeness for learning, then cross-silo learning on anonymised rows.",
    cites="Saleh 2022",
    run=run_study,
)
