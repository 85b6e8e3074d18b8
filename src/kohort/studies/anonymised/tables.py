"""The three tables of the thesis, the settings it anonymises them with, and how much of the study is run.

Adult: all 48,842 rows, missing values kept as values. Housing: ocean_proximity in three values, the two coasts and the
bay and the island merged. Mammographic: the 830 rows without a missing value. The sensitive column is the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.studies.harness.runs import RunSummary
from kohort.studies.harness.session import Depth, Session
from kohort.tables.blocks import CategoryBlock
from kohort.tables.datasets.catalogue import load_dataset
from kohort.tables.encoder import Encoder, learn_domain
from kohort.tables.schema import Schema

__all__ = [
    "CASES",
    "PRINTED",
    "QUASI_OF_ADULT",
    "VARIANTS",
    "AnonymisedCase",
    "AnonymisedDepth",
    "AnonymisedSession",
    "AnonymisedVariant",
    "case_named",
    "extra_variants",
    "k_variants",
]  # fmt: skip

KeepExact = Literal["no", "yes", "thesis"]


@dataclass(frozen=True, kw_only=True)
class AnonymisedVariant:
    """One way to anonymise. `t` is a bound on KL(class || table) in nats, as in the thesis."""

    key: str
    label: str
    k: int = 3
    l: int = 0  # noqa: E741 - the thesis's own letter
    t: float = 0.0
    keep_exact: KeepExact = "no"


VARIANTS = {
    variant.key: variant
    for variant in (
        AnonymisedVariant(key="k3-exact", label="optimised k (k = 3)", keep_exact="yes"),
        AnonymisedVariant(key="k3", label="k-anonymity (k = 3)"),
        AnonymisedVariant(key="l2", label="l-diversity (k = 3, l = 2)", l=2),
        AnonymisedVariant(key="l3", label="l-diversity (k = 3, l = 3)", l=3),
        AnonymisedVariant(key="t0.2", label="t-closeness (t = 0.2)", t=0.2),
        AnonymisedVariant(key="t0.3", label="t-closeness (t = 0.3)", t=0.3),
        AnonymisedVariant(key="t0.4", label="t-closeness (t = 0.4)", t=0.4),
    )
}


PRINTED: Final = ("k3-exact", "k3", "l2", "t0.2")
"""The variants of the classifier tables."""
EXTRA_K: Final = (9, 15)
QUASI_OF_ADULT: Final = (
    "age", "workclass", "education", "education_num", "marital_status", "occupation", "relationship", "race", "sex",
    "native_country",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AnonymisedDepth(Depth):
    """How much of the study is run. The seeds are those of chapter 7."""

    ks: tuple[int, ...]
    classifiers: tuple[str, ...]
    repeats: Mapping[str, int]
    """Number of splits, by table."""
    fit_rows: int
    """The largest number of training rows of a classifier; 0 for all."""
    rounds: int
    unscaled: tuple[str, ...]
    """Classifiers that are also trained on codes and numbers as they are."""
    attacks: int
    """Repeats of the membership attack."""
    attack_rows: int


AnonymisedSession = Session[AnonymisedDepth, RunSummary]


def k_variants(k: int) -> tuple[AnonymisedVariant, AnonymisedVariant]:
    """Plain and optimised k-anonymity for one k of Figures 5.1, 5.6 and 5.11.

    Args:
        k: The smallest number of rows in a class.

    Returns:
        The variant without and with the optimisation step that keeps exact values.
    """
    return (
        AnonymisedVariant(key=f"k{k}", label=f"k-anonymity (k = {k})", k=k),
        AnonymisedVariant(key=f"k{k}-exact", label=f"optimised k (k = {k})", k=k, keep_exact="yes"),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class AnonymisedCase:
    """One table, what its columns are, and the settings the thesis prints for it."""

    name: str
    title: str
    frame: pl.DataFrame
    quasi: tuple[str, ...]
    target: str
    variants: tuple[AnonymisedVariant, ...]

    @property
    def schema(self) -> Schema:
        """Quasi-identifiers, the target, which is the sensitive column too, and everything else a feature."""
        return Schema.of(
            target=self.target,
            quasi=self.quasi,
            sensitive=[self.target],
            features="rest",
            kinds={self.target: "category"},
        ).resolve(self.frame.columns)

    def encoder(self) -> Encoder:
        """Label codes and numbers on the unit interval, over the values of the whole table."""
        schema = self.schema
        return Encoder(schema, learn_domain(self.frame, schema, missing="category"), encoding="label", dtype="float64")

    def unscaled(self, x: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Encoded rows with codes and numbers as they are, not on the unit interval."""
        ends = []
        for block in self.encoder().blocks:
            if isinstance(block, CategoryBlock):
                ends.append((0.0, block.size - 1.0))
            else:
                ends.append(block.domain.bounds or (0.0, 1.0))
            ends += [(0.0, 1.0)] * (len(block.features) - 1)
        low, high = np.array(ends).T
        return np.asarray(low + x * (high - low))


def _adult() -> AnonymisedCase:
    frame = load_dataset("adult").frame.drop("fnlwgt")  # a sampling weight of the survey, not a personal attribute
    return AnonymisedCase(
        name="adult", title="Adult", frame=frame, quasi=QUASI_OF_ADULT, target="income", variants=_without_l3()
    )


def _housing() -> AnonymisedCase:
    near = pl.col("ocean_proximity")
    merged = pl.when(near.is_in(["<1H OCEAN", "INLAND"])).then(near).otherwise(pl.lit("NEAR OCEAN"))
    return AnonymisedCase(
        name="housing", title="Housing", target="ocean_proximity", variants=tuple(VARIANTS.values()),
        frame=load_dataset("california_housing").frame.with_columns(merged.alias("ocean_proximity")),
        quasi=("latitude", "longitude", "housing_median_age", "median_house_value", "median_income"),
    )  # fmt: skip


def _mammographic() -> AnonymisedCase:
    return AnonymisedCase(
        name="mammographic", title="Mammographic", frame=load_dataset("mammographic").frame.drop_nulls(),
        quasi=("bi_rads", "age", "shape", "margin", "density"), target="severity", variants=_without_l3(),
    )  # fmt: skip


def _without_l3() -> tuple[AnonymisedVariant, ...]:
    return tuple(variant for variant in VARIANTS.values() if variant.key != "l3")


CASES = {"mammographic": _mammographic, "adult": _adult, "housing": _housing}


def case_named(name: str) -> AnonymisedCase:
    """The case of this name, its table read.

    Args:
        name: A key of `CASES`.

    Returns:
        The table with its quasi-identifiers, its target and the variants that the thesis prints.
    """
    return CASES[name]()


def extra_variants(case: AnonymisedCase) -> list[AnonymisedVariant]:
    """Settings beyond the printed classifier tables, for the rank correlation.

    Args:
        case: The table.

    Returns:
        Its variants that the thesis prints no classifiers for, and k = 9 and 15.
    """
    others = [variant for variant in case.variants if variant.key not in PRINTED]
    return [*others, *(k_variants(k)[0] for k in EXTRA_K)]
