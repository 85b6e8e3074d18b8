"""Anonymisation and what is left to learn (Saleh: Comparison of the Effects of Data Privacy Preserving Methods on
Machine Learning Algorithms in IoT, Marmara University, 2022): Tables 2.2, 5.1-5.10, 7.1-7.2 and Figures 5.1-5.15,
7.1-7.6, ours beside the thesis's, on Adult, Housing and Mammographic.

KOHORT_PROCESSES sets how many classifiers are trained side by side; the figures do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kohort.studies.anonymised.charts import points_by_loss
from kohort.studies.anonymised.classifiers import CLASSIFIERS as NINE
from kohort.studies.anonymised.classifiers import SVM_ROWS
from kohort.studies.anonymised.conclusions import (
    PRINTED,
    conclusions,
    extra_variants,
    protocol_notes,
    rank_correlation,
)
from kohort.studies.anonymised.loss import (
    Measured,
    association_tables,
    education_tables,
    measure_variant,
    partition_table,
    row,
    unguarded_table,
    write_figures,
)
from kohort.studies.anonymised.paper import CLASSIFIERS
from kohort.studies.anonymised.protocols import PROTOCOLS, Effort, Found, score_case
from kohort.studies.anonymised.silo import chapter_seven
from kohort.studies.anonymised.tables import CASES, VARIANTS, Case, case_named
from kohort.studies.harness.side_by_side import processes_here
from kohort.studies.registry import Say, Study

__all__ = ["FULL", "QUICK", "STUDY", "Depth", "run_study"]

OWN_TABLE: Final = {"adult": "Table 5.8", "mammographic": "Table 5.9", "housing": "Table 5.10"}


@dataclass(frozen=True, kw_only=True)
class Depth:
    """How much of the study is run."""

    ks: tuple[int, ...]
    classifiers: tuple[str, ...]
    repeats: Mapping[str, int]
    fit_rows: int
    rounds: int
    seeds: tuple[int, ...]


FULL = Depth(
    ks=tuple(range(3, 16)),
    classifiers=tuple(NINE),
    repeats={"mammographic": 10, "adult": 3, "housing": 3},
    fit_rows=0,
    rounds=100,
    seeds=(0, 1, 2),
)
QUICK = Depth(
    ks=(3, 9, 15),
    classifiers=("extra trees", "random forest", "gradient boosting", "logistic regression", "KNN"),
    repeats={"mammographic": 3, "adult": 1, "housing": 1},
    fit_rows=4_000,
    rounds=30,
    seeds=(0,),
)


def run_study(
    out: Path, quick: bool, say: Say, *, processes: int | None = None, names: Sequence[str] = tuple(CASES)
) -> dict[str, Any]:
    """Run it all on the named tables; figures go into `out`."""
    depth = QUICK if quick else FULL
    workers = processes_here() if processes is None else processes
    tables: list[dict[str, Any]] = []
    figures: list[Path] = []
    notes = _notes(depth)
    cases = [case_named(name) for name in names]
    losses: dict[str, dict[str, Measured]] = {}
    for case in cases:
        say(f"{case.title}: partitions and information loss")
        found = {variant.key: measure_variant(case, variant) for variant in case.variants}
        losses[case.name] = found
        if case.name == "adult":
            tables += education_tables(case)
        if case.name == "mammographic":
            tables += association_tables(case, found["k3"])
        tables.append(partition_table(case, found.values()))
        figures += write_figures(out, case, found, depth.ks)
    say("The optimisation step as printed")
    unguarded, broken = unguarded_table(cases)
    tables.append(unguarded)
    notes += broken
    scores = {case.name: _score(case, depth, workers, say) for case in cases}
    tables += [table for case in cases for table in _classifier_tables(case, scores[case.name], depth)]
    notes += protocol_notes(cases, scores)
    ranked, points = rank_correlation(cases, losses, scores, classifiers=depth.classifiers)
    tables.append(ranked)
    figures.append(
        points_by_loss(out / "figure-loss-accuracy.svg", title="Gradient boosting, raw test rows", rows=points)
    )
    if "adult" in names:
        adult = next(case for case in cases if case.name == "adult")
        more, drawn, said = chapter_seven(out, adult, rounds=depth.rounds, seeds=depth.seeds, say=say)
        tables += more
        figures += drawn
        notes += said
    tables.append(conclusions(cases, losses, scores))
    return {"name": STUDY.name, "tables": tables, "figures": [path.name for path in figures], "notes": notes}


def _score(case: Case, depth: Depth, processes: int, say: Say) -> Found:
    effort = Effort(
        classifiers=depth.classifiers, repeats=depth.repeats[case.name], fit_rows=depth.fit_rows, processes=processes
    )
    say(f"{case.title}: anonymising for {len(depth.classifiers)} classifiers")
    return score_case(case, [VARIANTS[key] for key in PRINTED], effort, say, extra=extra_variants(case))


def _classifier_tables(case: Case, found: Found, depth: Depth) -> Iterable[dict[str, Any]]:
    """Tables 5.6-5.10 for one data set: as it is, then each variant under both protocols."""
    sources = {"none": "Table 5.6", "k3-exact": "Table 5.7"}
    for key in ("none", *PRINTED):
        label = "as it is" if key == "none" else VARIANTS[key].label
        for protocol, how in PROTOCOLS.items():
            if key == "none" and protocol == "after":
                continue  # nothing was anonymised: the protocols are one
            rows = []
            for classifier in depth.classifiers:
                printed = dict(zip(("accuracy", "f1"), CLASSIFIERS[case.name][key][classifier], strict=True))
                for measure in ("accuracy", "f1", "precision", "recall"):
                    figure = found[protocol, key, classifier, measure]
                    name = measure if measure == "accuracy" else f"macro {measure}"
                    rows.append(row(f"{classifier}: {name}", printed.get(measure), figure.mean, sd=figure.sd))
            name = f"{case.title}, {label}" if key == "none" else f"{case.title}, {label}, {how}"
            yield {"name": name, "source": sources.get(key, OWN_TABLE[case.name]), "rows": rows}


def _notes(depth: Depth) -> list[str]:
    notes = [
        "Classifiers are scikit-learn's with their defaults, on label codes and numbers scaled to [0, 1]; the thesis "
        "seems not to scale, which is why its SVM, SGD and network stay near the most frequent class.",
        f"The SVM sees at most {SVM_ROWS:,} training rows; the network's grid is searched on part of them.",
        "Adult without fnlwgt, which weighs the survey's sample. F1, precision and recall are means over the classes.",
        "t is KL(class || table) in nats, as in the thesis. Groups of values are automatic, made by looking at the "
        "target, so the choice itself tells something about it.",
        "In the information loss a suppressed cell tells nothing. Counted as a value it would tell where classes had "
        "to be large, which is where one target value is rare: with l and t the loss would even be negative.",
        "The thesis seems to split after anonymising the whole table; with raw test rows a model meets what it would "
        "in use. Both are shown.",
    ]
    if depth.fit_rows:
        notes.append(f"Quick: {len(depth.classifiers)} classifiers on at most {depth.fit_rows:,} training rows.")
    return notes


STUDY = Study(
    name="anonymised",
    summary="k-anonymity, l-diversity and t-closeness for learning, then cross-silo learning on anonymised rows.",
    cites="Saleh 2022",
    run=run_study,
)
