"""Several columns of items are one set that an attacker may know any m of; tables of items alone run, too."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.methods.syntactic.test_syntactic import CODES, SIZES, plan
from tests.methods.syntactic.test_syntactic import tables as one_column

from kohort.errors import ConfigError
from kohort.methods.syntactic.item_columns import apart, joined
from kohort.methods.syntactic.mapped_encoder import MappedEncoder
from kohort.methods.syntactic.method import AnonymiseSection, anonymise_rows
from kohort.models.files import load_model
from kohort.runs.config import Plan, load_plan, only_read
from kohort.runs.run import run
from kohort.tables.schema import Schema

LINES = [[code, f"group {int(code) // 3}", "*"] for code in CODES]
MORE = ["A", "B", "C", "003"]  # the last is a text of the other column, too


def tables() -> dict[str, pl.DataFrame]:
    random = np.random.default_rng(8)
    found = {}
    for name, frame in one_column().items():
        flags = [
            sorted(random.choice(MORE, random.integers(0, 3), replace=False).tolist()) for _ in range(frame.height)
        ]
        found[name] = frame.with_columns(flags=pl.Series(flags, dtype=pl.List(pl.String)))
    return found


def two(*, data: dict[str, Any] | None = None, **anonymise: Any) -> Plan:
    own = {"items": ["codes", "flags"], "hierarchies": {"codes": LINES}, **(data or {})}
    return plan(anonymise={"suppression_limit": 1.0, **anonymise}, data=own)


def schema(quasi: tuple[str, ...] = ("age", "ward")) -> Schema:
    declared = Schema.of(
        target="outcome",
        quasi=quasi,
        items=["codes", "flags"],
        identifiers=["person"],
        features=["dose", *({"age", "ward"} - {*quasi})],
        hierarchies={"codes": tuple(map(tuple, LINES))},
    )
    return declared.resolve(["age", "ward", "dose", "codes", "flags", "outcome", "person"])


def smallest(released: pl.DataFrame, quasi: list[str], m: int) -> int:
    """By brute force, over cells with their columns: how many rows of a class show the rarest combination."""
    counts: Counter[Any] = Counter()
    for row in released.iter_rows(named=True):
        shown = sorted({(name, cell) for name in ("codes", "flags") for cell in row[name]})
        for size in range(m + 1):
            for held in combinations(shown, size):
                counts[(tuple(row[name] for name in quasi), held)] += 1
    return min(counts.values())


@pytest.mark.parametrize("m", [1, 2, 4])
@pytest.mark.parametrize("quasi", [("age", "ward"), ()])
def test_what_is_released_in_any_column_is_shared_by_k(m: int, quasi: tuple[str, ...]) -> None:
    frame, roles = tables()["b"], schema(quasi)
    config = AnonymiseSection(k=4, m=m, suppression_limit=1.0)
    codes = pl.Series((frame["outcome"] == "ill").cast(pl.Float64))
    made = anonymise_rows(joined(frame, roles), roles, config, k=4, codes=codes)
    released = apart(made.released, roles)
    assert "codes + flags" not in released.columns
    assert smallest(released, list(quasi), m) >= 4
    assert smallest(frame.with_columns(pl.col(quasi or ("age",)).cast(pl.String)), list(quasi), m) < 4 or not quasi
    shown = {cell for cells in released["codes"] for cell in cells}
    assert shown <= {*CODES, *(f"<{line[1]}>" for line in LINES), "<*>"}
    assert {cell for cells in released["flags"] for cell in cells} <= {*MORE, "<*>"}
    assert shown & set(CODES), "items that are frequent enough stay as they are"


def test_no_cell_moves_to_another_column_and_none_is_invented() -> None:
    frame, roles = tables()["b"], schema()
    whole = apart(joined(frame, roles), roles)
    assert whole.select("codes", "flags").equals(frame.select("codes", "flags"))


@pytest.mark.parametrize("data", [{}, {"quasi": [], "features": ["dose", "age", "ward"]}])
def test_a_run_over_two_columns_predicts_through_its_classes(data: dict[str, Any], tmp_path: Path) -> None:
    outcome = run(two(data=data), seed=1, tables=tables(), out=tmp_path / "run")
    encoder = outcome.model.encoder
    assert isinstance(encoder, MappedEncoder)
    assert outcome.facts["dearer_class"] == 0
    assert list(outcome.facts["ncp"]) == [*(["age", "ward"] if not data else []), "codes, flags"]
    rows = pl.concat(tables().values())
    np.testing.assert_array_equal(load_model(tmp_path / "run").predict_proba(rows), outcome.predict_proba(rows))
    read = outcome.model.read_as(rows)
    assert {series.name for series in read} == {"class_site", "class", "class_legitimate", "class_cost"}
    if data:  # one class per site, of all its rows
        assert outcome.facts["classes"] == len(SIZES)
    # A text that occurs in both columns means two things.
    one, other = (rows.head(1).with_columns(codes=pl.Series([codes]), flags=pl.Series([flags]))
                  for codes, flags in ((["003"], ["A"]), (["001"], ["003"])))  # fmt: skip
    assert not np.array_equal(encoder.transform(one), encoder.transform(other))


def test_sites_learn_a_model_over_sums_from_two_columns() -> None:
    raw = two().to_mapping()
    own = {"name": "syntactic", "anonymise": {"k": 4, "suppression_limit": 1.0}, "additive": {"rounds": 5}}
    wanted = load_plan(only_read({**raw, "model": {"kind": "additive"}, "method": own}))
    assert run(wanted, seed=1, tables=tables()).metrics["accuracy"] > 0.5


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: two(item_hierarchy="auto"), "cannot stand above several columns"),
        (lambda: two(data={"quasi": [], "features": ["dose", "age", "ward"]}, importance={"method": "forest"}), "rank"),
    ],
)
def test_what_cannot_be_is_refused_before_any_site_is_asked(made: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        run(made(), seed=1, tables=tables())
