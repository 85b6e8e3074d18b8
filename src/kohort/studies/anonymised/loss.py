"""Chapters 2 and 5.1: automatic groups, partitions and information loss, and the optimisation step as printed.

Three losses. `none`: 1 - sum of associations after / sum before over the quasi-identifiers, association being the
entropy coefficient I(column; target) / H(target), in which a suppressed cell carries no information. `value`: the same
with the suppression mark counted as a value like any other, which seems to be the thesis's. `ncp`: the normalised
certainty penalty, which knows no target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from kohort.anonymity.checker.measures import measure
from kohort.anonymity.loss import association, ncp
from kohort.studies.anonymised.paper import ASSOCIATION, EDUCATION, EDUCATION_GROUPS, PARTITIONS
from kohort.studies.anonymised.release import association_by_column, education_groups, whole_release
from kohort.studies.anonymised.tables import VARIANTS, AnonymisedCase, AnonymisedVariant, k_variants
from kohort.studies.harness.charts import labelled_bars, line_chart, point
from kohort.studies.harness.found import Found, Part, ResultTable

__all__ = ["METRICS", "MeasuredLoss", "association_tables", "draw_associations", "education_tables", "measure_variant",
           "partition_table", "unguarded_table", "write_figures"]  # fmt: skip

# The first figure of each table: loss by k, then the associations for none, k, l and t.
FIRST_FIGURE: Final = {"mammographic": 1, "adult": 6, "housing": 11}
SOURCES: Final = {"mammographic": "Table 5.3", "adult": "Table 5.4", "housing": "Table 5.5"}
SHOWN: Final = ("k3", "l2", "t0.2")
METRICS: Final = {
    "none": "information loss, suppression tells nothing", "value": "information loss, suppression is a value",
    "ncp": "NCP",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MeasuredLoss:
    """What one way to anonymise did to a table."""

    variant: AnonymisedVariant
    partitions: int
    losses: dict[str, float]
    """By metric."""
    associations: dict[str, float]
    k: int
    """Rows of the smallest class, by the checker."""
    rows_below: int
    """Rows in classes smaller than the k that was asked."""

    @property
    def loss(self) -> float:
        """Information loss in which a suppressed cell carries no information."""
        return self.losses["none"]


@cache
def measure_variant(case: AnonymisedCase, variant: AnonymisedVariant) -> MeasuredLoss:
    """Anonymise the whole table and measure the result.

    Args:
        case: The table.
        variant: How to anonymise it.

    Returns:
        Partitions, losses by the three metrics, associations by column, and k by the checker. The same arguments are
        measured once.
    """
    made = whole_release(case, variant)
    before = sum(association(case.frame, columns=case.quasi, target=case.target).values())
    after, counted = (association_by_column(made, case, counted=how) for how in (False, True))
    penalty = ncp(case.frame, made.frame, quasi=case.quasi, hierarchies=made.hierarchies)
    found = measure(made.frame, quasi=case.quasi)
    return MeasuredLoss(
        variant=variant,
        partitions=made.partitions,
        losses={
            "none": 1.0 - sum(after.values()) / before,
            "value": 1.0 - sum(counted.values()) / before,
            "ncp": penalty,
        },
        associations=after,
        k=found.k,
        rows_below=sum(size * count for size, count in found.histogram if size < variant.k),
    )


def education_tables(adult: AnonymisedCase) -> list[ResultTable]:
    """Table 2.2 and the groups it leads to at rho = 10.

    Args:
        adult: Adult.

    Returns:
        Both tables.
    """
    counted = adult.frame.group_by("education", adult.target).len()
    rows = []
    for value, (_, printed) in EDUCATION.items():
        part = counted.filter(education=value).sort("len", descending=True)
        share = part["len"][0] / int(part["len"].sum())
        rows.append(Found(f"{value}: share of {part[adult.target][0]}", share, printed))
    groups = education_groups(adult, rho=10)
    grouped = [
        Found(f"group of {len(group)}: {', '.join(sorted(group))}", group in groups, True) for group in EDUCATION_GROUPS
    ]
    grouped.append(Found("groups", len(groups), len(EDUCATION_GROUPS)))
    return [
        ResultTable("Education and its most frequent income", "Table 2.2", rows),
        ResultTable("Education groups at rho = 10", "Section 2.5", grouped),
    ]


def association_tables(case: AnonymisedCase, plain: MeasuredLoss) -> list[ResultTable]:
    """Tables 5.1 and 5.2: Mammographic before and after.

    Args:
        case: Mammographic.
        plain: What 3-anonymity did to it.

    Returns:
        Both tables: one row per quasi-identifier.
    """
    before, tables = association(case.frame, columns=case.quasi, target=case.target), []
    shown = (("before", "Table 5.1", "none", before), ("k = 3", "Table 5.2", "k3", plain.associations))
    for when, source, key, found in shown:
        rows = [Found(name, found[name], ASSOCIATION[key][name]) for name in case.quasi]
        tables.append(ResultTable(f"{case.title}: association with the target, {when}", source, rows))
    return tables


def partition_table(case: AnonymisedCase, found: Iterable[MeasuredLoss]) -> ResultTable:
    """Partitions and loss of one table beside the thesis's.

    Args:
        case: The table.
        found: What each variant did to it.

    Returns:
        Five rows per variant. The thesis's figures stand beside ours where it prints them.
    """
    rows = []
    for one in found:
        label = one.variant.label
        partitions, loss = PARTITIONS[case.name].get(one.variant.key, (None, None))
        rows += [
            Found(f"{label}: partitions", one.partitions, partitions),
            Found(f"{label}: information loss", one.loss, loss),
            Found(f"{label}: loss, suppression counted as a value", one.losses["value"], loss),
            Found(f"{label}: NCP", one.losses["ncp"]),
            Found(f"{label}: k of the release, by the checker", one.k),
        ]
    return ResultTable(f"{case.title}: partitions and information loss", SOURCES[case.name], rows)


def unguarded_table(cases: Sequence[AnonymisedCase]) -> Part:
    """The optimisation step as printed, which leaves remainders of fewer than k rows.

    Args:
        cases: The tables.

    Returns:
        The table, and a note for each case whose release is not 3-anonymous.
    """
    rows, notes = [], []
    asked = AnonymisedVariant(key="k3-thesis", label="optimised k as printed (k = 3)", keep_exact="thesis")
    for case in cases:
        one = measure_variant(case, asked)
        rows += [
            Found(f"{case.title}: information loss", one.loss, PARTITIONS[case.name]["k3-exact"][1]),
            Found(f"{case.title}: k of the release, by the checker", one.k, 3),
            Found(f"{case.title}: rows in classes below k", one.rows_below, 0),
        ]
        if one.k < asked.k:
            notes.append(
                f"{case.title}: the optimisation step as printed is not 3-anonymous: {one.rows_below:,} rows are in "
                f"classes of fewer than 3 rows, the smallest of {one.k}. Tables 5.3-5.5 and 5.7 show the guarded step."
            )
    return Part([ResultTable("The optimisation step as printed", "Section 2.3, Tables 5.3-5.5", rows)], notes=notes)


def write_figures(out: Path, case: AnonymisedCase, found: Mapping[str, MeasuredLoss], ks: Sequence[int]) -> list[Path]:
    """The five figures of one table: loss and partitions by k, then association by column for none, k, l and t.

    Args:
        out: The folder to write to.
        case: The table.
        found: What each variant did to it, by key of the variant.
        ks: The values of k on the horizontal axis.

    Returns:
        The files, in the order of the thesis's figures.
    """
    first = FIRST_FIGURE[case.name]
    points = []
    for k in ks:
        for variant, name in zip(k_variants(k), ("k-anonymity", "with exact values kept"), strict=True):
            one = measure_variant(case, variant)
            points.append(point("information loss", name, k, one.loss))
            points.append(point("partitions", name, k, one.partitions))
    by_k = line_chart(
        out / f"figure-5-{first:02}.svg", title=f"{case.title}: information loss and partitions by k", points=points,
        x="k", y_format={"information loss": ".0%", "partitions": "d"}, dots=True, zero=True,
    )  # fmt: skip
    shown = {"as it is": association(case.frame, columns=case.quasi, target=case.target)}
    shown |= {VARIANTS[key].label: found[key].associations for key in SHOWN}
    paths = [out / f"figure-5-{first + place:02}.svg" for place in range(1, len(shown) + 1)]
    return [by_k, *draw_associations(paths, case.title, shown)]


def draw_associations(paths: Sequence[Path], title: str, shown: Mapping[str, Mapping[str, float]]) -> list[Path]:
    """Bars of the association of each column with the target, one file per way the table is shown, on one scale.

    Args:
        paths: The SVG files to write, as many as there are entries in `shown`.
        title: What the table is called.
        shown: The association by column, for each way the table is shown.

    Returns:
        The files.
    """
    top, drawn = max(value for values in shown.values() for value in values.values()), []
    for path, (label, values) in zip(paths, shown.items(), strict=True):
        name = f"{title}: association by column, {label}"
        drawn.append(labelled_bars(path, title=name, values=values, x="association with the target", top=top))
    return drawn
