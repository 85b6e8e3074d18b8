"""What the figures add up to: does information loss predict accuracy, do the thesis's conclusions hold, and what does
the choice of protocol hide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from kohort.studies.anonymised.classifiers import CLASSIFIERS as NINE
from kohort.studies.anonymised.loss import Measured, measure_variant, row
from kohort.studies.anonymised.paper import CLASSIFIERS, PARTITIONS
from kohort.studies.anonymised.protocols import PROTOCOLS, Found
from kohort.studies.anonymised.tables import VARIANTS, Case, Variant, k_variants

__all__ = ["PRINTED", "conclusions", "extra_variants", "protocol_notes", "rank_correlation"]

PRINTED: Final = ("k3-exact", "k3", "l2", "t0.2")
"""The variants of the classifier tables."""
EXTRA_K: Final = (6, 10, 15)
TELLING: Final = 0.02
"""A difference in accuracy between the protocols that is worth a note."""

Losses = Mapping[str, Mapping[str, Measured]]


def extra_variants(case: Case) -> list[Variant]:
    """Settings beyond the printed classifier tables, for the rank correlation."""
    others = [variant for variant in case.variants if variant.key not in PRINTED]
    return [*others, *(k_variants(k)[0] for k in EXTRA_K)]


def rank_correlation(
    cases: Sequence[Case], losses: Losses, scores: Mapping[str, Found], *, classifiers: Sequence[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Spearman's rho of loss and accuracy over the thesis's settings and over all of ours; and the points behind it."""
    rows, points = [], []
    for case in cases:
        found = scores[case.name]
        measured = {**losses[case.name]}
        for variant in extra_variants(case):
            measured.setdefault(variant.key, measure_variant(case, variant))
        rows += _over_printed(case, measured, found, classifiers)
        for protocol, how in PROTOCOLS.items():
            pairs = [(0.0, _boosted(found, protocol, "none"))]
            pairs += [(item.loss, _boosted(found, protocol, key)) for key, item in measured.items()]
            ours = _spearman([loss for loss, _ in pairs], [accuracy for _, accuracy in pairs])
            rows.append(row(f"{case.title}, gradient boosting, {len(pairs)} settings, {how}", None, ours))
            if protocol == "raw":
                points += [{"table": case.title, "loss": loss, "accuracy": accuracy} for loss, accuracy in pairs]
    return {"name": "Rank correlation of information loss and accuracy", "source": "Section 5.3", "rows": rows}, points


def _over_printed(
    case: Case, measured: Mapping[str, Measured], found: Found, classifiers: Sequence[str]
) -> list[dict[str, Any]]:
    """No anonymisation and the printed variants, each with the mean accuracy of the classifiers."""
    printed, settings = PARTITIONS[case.name], ("none", *PRINTED)
    paper = _spearman(
        [0.0, *(printed[key][1] for key in PRINTED)],
        [fmean(CLASSIFIERS[case.name][key][name][0] for name in NINE) for key in settings],
    )
    rows = []
    for protocol, how in PROTOCOLS.items():
        means = [fmean(found[protocol, key, name, "accuracy"].mean for name in classifiers) for key in settings]
        ours = _spearman([0.0, *(measured[key].loss for key in PRINTED)], means)
        rows.append(row(f"{case.title}, mean of the classifiers, printed settings, {how}", paper, ours))
    return rows


def _boosted(found: Found, protocol: str, variant: str) -> float:
    return found[protocol, variant, "gradient boosting", "accuracy"].mean


def _spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    from scipy.stats import spearmanr

    if len(set(first)) < 2 or len(set(second)) < 2:
        return None  # a ranking of equals says nothing
    return float(spearmanr(first, second).statistic)


def conclusions(cases: Sequence[Case], losses: Losses, scores: Mapping[str, Found]) -> dict[str, Any]:
    """What the thesis concludes, and whether it holds here."""
    rows = []
    for case in cases:
        found = losses[case.name]
        ordered = [found[key].loss for key in ("k3", "l2", "t0.2")]
        rows.append(row(f"{case.title}: loss of k < l < t", "yes", _yes(ordered == sorted(set(ordered)))))
        no_worse = found["k3-exact"].loss <= found["k3"].loss
        rows.append(row(f"{case.title}: keeping exact values loses no more", "yes", _yes(no_worse)))
    if "adult" in scores:
        rows += [
            row(f"Adult, {label}: best classifier", "gradient boosting", _best(scores["adult"], protocol, key))
            for protocol, key, label in (
                ("raw", "none", "as it is"),
                *((place, key, f"{VARIANTS[key].label}, {how}") for place, how in PROTOCOLS.items() for key in PRINTED),
            )
        ]
    return {"name": "What the thesis concludes", "source": "Sections 5.1-5.4", "rows": rows}


def _best(found: Found, protocol: str, variant: str) -> str:
    """The classifier with the highest accuracy."""
    accuracies = {
        name: figure.mean
        for (place, key, name, measure), figure in found.items()
        if (place, key, measure) == (protocol, variant, "accuracy")
    }
    return max(accuracies, key=accuracies.__getitem__)


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def protocol_notes(cases: Sequence[Case], scores: Mapping[str, Found]) -> list[str]:
    """Where the two protocols tell different stories about the strongest classifier."""
    notes = []
    for case in cases:
        found = scores[case.name]
        after, raw = (_boosted(found, protocol, "k3") for protocol in ("after", "raw"))
        if after - raw > TELLING:
            notes.append(
                f"{case.title}, k = 3: gradient boosting has {after:.3f} when the table is split after anonymising and "
                f"{raw:.3f} on raw test rows. Groups made by looking at the labels of all rows carry labels of test "
                "rows into the table, and test cells are generalised like training cells; neither is so in use."
            )
    return notes
