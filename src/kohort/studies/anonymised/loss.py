"""Chapters 2 and 5.1: automatic groups, partitions and information loss, and what the optimisation step breaks.

Information loss is 1 - sum of associations after / sum before over the quasi-identifiers, association being the entropy
coefficient I(column; target) / H(target) in which a suppressed cell tells nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kohort.anonymity.checker.measures import measure
from kohort.anonymity.loss import association, entropy_loss
from kohort.studies.anonymised.charts import association_bars, lines_by_k
from kohort.studies.anonymised.paper import ASSOCIATION, EDUCATION, EDUCATION_GROUPS, PARTITIONS
from kohort.studies.anonymised.release import education_groups, release, told_by_column
from kohort.studies.anonymised.tables import VARIANTS, Case, Variant, k_variants

__all__ = [
    "Measured",
    "association_tables",
    "education_tables",
    "measure_variant",
    "partition_table",
    "row",
    "unguarded_table",
    "write_figures",
]

# The first figure of each table: loss by k, then the associations for none, k, l and t.
FIRST_FIGURE: Final = {"mammographic": 1, "adult": 6, "housing": 11}
SOURCES: Final = {"mammographic": "Table 5.3", "adult": "Table 5.4", "housing": "Table 5.5"}
SHOWN: Final = ("k3", "l2", "t0.2")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one way to anonymise did to a table."""

    variant: Variant
    partitions: int
    loss: float
    counted_loss: float
    """The same with the suppression mark counted as a value like any other."""
    associations: dict[str, float]
    k: int
    """Rows of the smallest class, by the checker."""
    rows_below: int
    """Rows in classes smaller than the k that was asked."""


def row(setting: str, paper: Any, ours: Any, *, sd: float | None = None) -> dict[str, Any]:
    """One line of a table, with the difference where there is one."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (paper, ours))
    return {"setting": setting, "paper": paper, "ours": ours, "sd": sd, "delta": ours - paper if numbers else None}


def measure_variant(case: Case, variant: Variant) -> Measured:
    """Anonymise the whole table and measure what came out."""
    made = release(case.frame, case, variant)
    before = association(case.frame, columns=case.quasi, target=case.target)
    after = told_by_column(made, case)
    found = measure(made.frame, quasi=case.quasi)
    return Measured(
        variant=variant,
        partitions=made.partitions,
        loss=1.0 - sum(after.values()) / sum(before.values()),
        counted_loss=entropy_loss(case.frame, made.frame, quasi=case.quasi, target=case.target),
        associations=after,
        k=found.k,
        rows_below=sum(size * count for size, count in found.histogram if size < variant.k),
    )


def education_tables(adult: Case) -> list[dict[str, Any]]:
    """Table 2.2 and the groups it leads to at rho = 10."""
    counted = adult.frame.group_by("education", adult.target).len()
    shares: dict[str, tuple[str, float]] = {}
    for value, part in counted.group_by("education"):
        top = part.sort("len", descending=True).row(0, named=True)
        shares[str(value[0])] = (top[adult.target], top["len"] / int(part["len"].sum()))
    rows = [
        row(f"{value}: share of {shares[value][0]}", share, shares[value][1]) for value, (_, share) in EDUCATION.items()
    ]
    groups = education_groups(adult, rho=10)
    grouped = [
        row(f"group of {len(group)}: {', '.join(sorted(group))}", "yes", "yes" if group in groups else "no")
        for group in EDUCATION_GROUPS
    ]
    grouped.append(row("groups", len(EDUCATION_GROUPS), len(groups)))
    return [
        {"name": "Education and its most frequent income", "source": "Table 2.2", "rows": rows},
        {"name": "Education groups at rho = 10", "source": "Section 2.5", "rows": grouped},
    ]


def association_tables(case: Case, plain: Measured) -> list[dict[str, Any]]:
    """Tables 5.1 and 5.2: Mammographic before and after."""
    before = association(case.frame, columns=case.quasi, target=case.target)
    return [
        {
            "name": f"{case.title}: association with the target, {when}",
            "source": source,
            "rows": [row(name, ASSOCIATION[key][name], found[name]) for name in case.quasi],
        }
        for when, source, key, found in (
            ("before", "Table 5.1", "none", before),
            ("k = 3", "Table 5.2", "k3", plain.associations),
        )
    ]


def partition_table(case: Case, found: Iterable[Measured]) -> dict[str, Any]:
    """Partitions and loss of one table beside the thesis's."""
    rows = []
    for item in found:
        partitions, loss = PARTITIONS[case.name].get(item.variant.key, (None, None))
        rows.append(row(f"{item.variant.label}: partitions", partitions, item.partitions))
        rows.append(row(f"{item.variant.label}: information loss", loss, item.loss))
        rows.append(row(f"{item.variant.label}: loss, suppression counted as a value", None, item.counted_loss))
        rows.append(row(f"{item.variant.label}: k of the release, by the checker", None, item.k))
    return {"name": f"{case.title}: partitions and information loss", "source": SOURCES[case.name], "rows": rows}


def unguarded_table(cases: Sequence[Case]) -> tuple[dict[str, Any], list[str]]:
    """The optimisation step as printed, which leaves remainders of fewer than k rows."""
    rows, notes = [], []
    asked = Variant(key="k3-thesis", label="optimised k as printed (k = 3)", keep_exact="thesis")
    for case in cases:
        item = measure_variant(case, asked)
        paper = PARTITIONS[case.name]["k3-exact"][1]
        rows.append(row(f"{case.title}: information loss", paper, item.loss))
        rows.append(row(f"{case.title}: k of the release, by the checker", 3, item.k))
        rows.append(row(f"{case.title}: rows in classes below k", 0, item.rows_below))
        if item.k < asked.k:
            notes.append(
                f"{case.title}: the optimisation step as printed is not 3-anonymous: {item.rows_below:,} rows are in "
                f"classes of fewer, the smallest of {item.k}. Tables 5.3-5.5 and 5.7 show the guarded step."
            )
    return {"name": "The optimisation step as printed", "source": "Section 2.3, Tables 5.3-5.5", "rows": rows}, notes


def write_figures(out: Path, case: Case, found: dict[str, Measured], ks: Sequence[int]) -> list[Path]:
    """The five figures of one table: loss and partitions by k, then association by column for none, k, l and t."""
    first = FIRST_FIGURE[case.name]
    by_k = []
    for k in ks:
        for variant, name in zip(k_variants(k), ("k-anonymity", "with exact values kept"), strict=True):
            item = found.get(variant.key) or measure_variant(case, variant)
            by_k.append({"variant": name, "k": k, "loss": item.loss, "partitions": item.partitions})
    title = f"{case.title}: information loss and partitions by k"
    files = [lines_by_k(out / f"figure-5-{first:02}.svg", title=title, rows=by_k)]
    shown = {"as it is": association(case.frame, columns=case.quasi, target=case.target)}
    shown |= {VARIANTS[key].label: found[key].associations for key in SHOWN}
    top = max(value for values in shown.values() for value in values.values())
    for place, (label, values) in enumerate(shown.items(), start=first + 1):
        title = f"{case.title}: association by column, {label}"
        files.append(association_bars(out / f"figure-5-{place:02}.svg", title=title, values=values, top=top))
    return files
