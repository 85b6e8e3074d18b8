"""The classifier tables, the rank correlation of information loss and accuracy, and whether the thesis's conclusions
hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from kohort.studies.anonymised.loss import METRICS, MeasuredLoss, measure_variant
from kohort.studies.anonymised.paper import CLASSIFIERS, NAMES, PARTITIONS
from kohort.studies.anonymised.protocols import NOT_ANONYMISED, PROTOCOLS, UNSCALED, UNSCALED_KEYS, Scores
from kohort.studies.anonymised.tables import PRINTED, VARIANTS, AnonymisedCase, extra_variants
from kohort.studies.harness.charts import point
from kohort.studies.harness.found import Found, ResultTable

__all__ = ["classifier_tables", "conclusions", "protocol_notes", "rank_correlation"]

WORTH_A_NOTE: Final = 0.02
"""The difference in accuracy between the protocols from which on there is a note."""
BOOSTING: Final = "gradient boosting"
SOURCES: Final = {NOT_ANONYMISED: "Table 5.6", "k3-exact": "Table 5.7"}
OWN_TABLE: Final = {"adult": "Table 5.8", "mammographic": "Table 5.9", "housing": "Table 5.10"}

Losses = Mapping[str, Mapping[str, MeasuredLoss]]
"""By table and variant."""


def classifier_tables(
    case: AnonymisedCase, scores: Scores, classifiers: Sequence[str], unscaled: Sequence[str]
) -> Iterator[ResultTable]:
    """Tables 5.6-5.10 for one data set: as it is, each variant under both protocols, then two on unscaled rows.

    Args:
        case: The table.
        scores: Its scores by protocol, variant and classifier.
        classifiers: The classifiers to show.
        unscaled: Those to show on unscaled rows.

    Returns:
        One table per protocol and variant; accuracy and F1 stand beside the thesis's.
    """
    places = [("raw", NOT_ANONYMISED, "as it is", classifiers)]
    for key in PRINTED:
        places += [(place, key, f"{VARIANTS[key].label}, {how}", classifiers) for place, how in PROTOCOLS.items()]
    places += [(UNSCALED, NOT_ANONYMISED, "as it is, unscaled", unscaled)]
    places += [(UNSCALED, key, f"{VARIANTS[key].label}, unscaled", unscaled) for key in UNSCALED_KEYS[1:]]
    for protocol, key, label, names in places:
        rows = []
        for name in names:
            printed = dict(zip(("accuracy", "f1"), CLASSIFIERS[case.name][key][name], strict=True))
            for measure in ("accuracy", "f1", "precision", "recall"):
                setting = f"{name}: {measure if measure == 'accuracy' else f'macro {measure}'}"
                rows.append(scores.row(setting, (protocol, key, name), measure, printed.get(measure)))
        yield ResultTable(f"{case.title}, {label}", SOURCES.get(key, OWN_TABLE[case.name]), rows)


def rank_correlation(
    cases: Sequence[AnonymisedCase], losses: Losses, scores: Mapping[str, Scores], *, classifiers: Sequence[str]
) -> tuple[ResultTable, list[dict[str, Any]]]:
    """Spearman's rho of information loss and accuracy, over the thesis's settings and over all of ours.

    Args:
        cases: The tables.
        losses: What each variant did to each table, by name of the table and key of the variant.
        scores: The scores by name of the table.
        classifiers: The classifiers whose mean accuracy is compared with the thesis's.

    Returns:
        The correlations, None where all losses or all accuracies are equal; and the points for a scatter plot.
    """
    rows: list[Found] = []
    points = []
    for case in cases:
        found = scores[case.name]
        measured = {**losses[case.name], **{one.key: measure_variant(case, one) for one in extra_variants(case)}}
        rows += _over_printed(case, measured, found, classifiers)
        known = {NOT_ANONYMISED: 0.0, **{key: one.loss for key, one in measured.items()}}
        for protocol, how in PROTOCOLS.items():
            boosted = [found.accuracy(protocol, key, BOOSTING) for key in known]
            rho = _spearman(list(known.values()), boosted)
            rows.append(Found(f"{case.title}, gradient boosting, {len(known)} settings, {how}", rho))
            if protocol == "raw":
                points += [point("", case.title, *pair) for pair in zip(known.values(), boosted, strict=True)]
    return ResultTable("Rank correlation of information loss and accuracy", "Section 5.3", rows), points


def _over_printed(
    case: AnonymisedCase, measured: Mapping[str, MeasuredLoss], found: Scores, classifiers: Sequence[str]
) -> Iterator[Found]:
    """No anonymisation and the printed variants, each with the mean accuracy of the classifiers."""
    printed, settings = PARTITIONS[case.name], (NOT_ANONYMISED, *PRINTED)
    paper = _spearman(
        [0.0, *(printed[key][1] for key in PRINTED)],
        [fmean(CLASSIFIERS[case.name][key][name][0] for name in NAMES) for key in settings],
    )
    for protocol, how in PROTOCOLS.items():
        means = [fmean(found.accuracy(protocol, key, name) for name in classifiers) for key in settings]
        ours = _spearman([0.0, *(measured[key].loss for key in PRINTED)], means)
        yield Found(f"{case.title}, mean of the classifiers, printed settings, {how}", ours, paper)


def _spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    from scipy.stats import spearmanr

    if len(set(first)) < 2 or len(set(second)) < 2:
        return None  # equal values have no ranks to compare
    return float(spearmanr(first, second).statistic)


def conclusions(cases: Sequence[AnonymisedCase], losses: Losses, scores: Mapping[str, Scores]) -> ResultTable:
    """The thesis's conclusions, and whether they hold here.

    Args:
        cases: The tables.
        losses: What each variant did to each table, by name of the table and key of the variant.
        scores: The scores by name of the table.

    Returns:
        One row per conclusion, "yes" where it holds.
    """
    rows = []
    for case in cases:
        found = losses[case.name]
        for metric, name in METRICS.items():
            ordered = [found[key].losses[metric] for key in ("k3", "l2", "t0.2")]
            rows.append(Found(f"{case.title}: k < l < t by {name}", ordered == sorted(set(ordered)), True))
            no_worse = found["k3-exact"].losses[metric] <= found["k3"].losses[metric]
            rows.append(Found(f"{case.title}: keeping exact values loses no more by {name}", no_worse, True))
    if "adult" in scores:
        places = [("raw", NOT_ANONYMISED, "as it is")]
        places += [(place, key, f"{VARIANTS[key].label}, {how}") for place, how in PROTOCOLS.items() for key in PRINTED]
        for protocol, key, label in places:
            rows.append(
                Found(f"Adult, {label}: best classifier by accuracy", scores["adult"].best(protocol, key), BOOSTING)
            )
    return ResultTable("The thesis's conclusions, by metric", "Sections 5.1-5.4", rows)


def protocol_notes(cases: Sequence[AnonymisedCase], scores: Mapping[str, Scores]) -> list[str]:
    """Where the accuracy of gradient boosting depends on the protocol.

    Args:
        cases: The tables.
        scores: The scores by name of the table.

    Returns:
        A note for each table where gradient boosting gains more than `WORTH_A_NOTE` if the table is split after it was
        anonymised.
    """
    notes = []
    for case in cases:
        after, raw = (scores[case.name].accuracy(protocol, "k3", BOOSTING) for protocol in ("after", "raw"))
        if after - raw > WORTH_A_NOTE:
            notes.append(
                f"{case.title}, k = 3: gradient boosting has {after:.3f} when the table is split after anonymising and "
                f"{raw:.3f} on raw test rows. Groups made from the labels of all rows carry labels of test rows into "
                "the table, and test cells are generalised like training cells; neither is the case in use."
            )
    return notes
