"""Three hospital files, clean and as they really come: they disagree in six ways."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

NAMES = ("north", "south", "west")


def clean_hospital(seed: int, rows: int = 240) -> pl.DataFrame:
    """A hospital's table in the agreed form."""
    random = np.random.default_rng(seed)
    age = random.integers(20, 90, rows)
    weight = np.round(random.normal(75, 12, rows), 1)
    smoker = random.random(rows) < 0.3
    ill = age / 90 + weight / 150 + 0.4 * smoker + random.normal(0, 0.2, rows) > 1.3
    unknown = random.random(rows) < 0.1
    return pl.DataFrame(
        {
            "age": age,
            "sex": random.choice(["F", "M"], rows),
            "weight": weight,
            "smoker": np.where(smoker, "yes", "no"),
            "ward": pl.Series(np.where(random.random(rows) < 0.5, "Intensive care", "Surgery")).zip_with(
                pl.Series(~unknown), pl.Series([None] * rows, dtype=pl.String)
            ),
            "outcome": np.where(ill, "ill", "well"),
        }
    )


def messy_hospital(name: str, clean: pl.DataFrame) -> pl.DataFrame:
    """The same rows as the hospital writes them."""
    if name == "south":
        return clean.with_columns(
            pl.format("{} years", "age").alias("age"),  # 1: ages as text
            (pl.col("weight") * 1000).round().cast(pl.Int64).alias("weight"),  # 2: grams instead of kilograms
            pl.col("smoker") == "yes",  # 3: true and false instead of yes and no
        )
    if name == "west":
        return clean.with_columns(
            pl.col("sex").replace({"F": "female", "M": "male"}),  # 4: female instead of F
            pl.col("ward").str.to_uppercase().str.replace(" ", "-").fill_null("unknown"),  # 5: spelling, and a marker
        ).rename({"sex": "Gender"})  # 6: another name
    return clean


def write_hospitals(folder: Path) -> dict[str, list[str]]:
    """Write both forms as CSV; the paths by form."""
    paths: dict[str, list[str]] = {"clean": [], "messy": []}
    for seed, name in enumerate(NAMES):
        clean = clean_hospital(seed)
        for form, table in (("clean", clean), ("messy", messy_hospital(name, clean))):
            path = folder / form / f"{name}.csv"
            path.parent.mkdir(exist_ok=True)
            table.write_csv(path)
            paths[form].append(str(path))
    return paths
