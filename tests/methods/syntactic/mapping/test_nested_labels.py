"""Classes whose item labels are nested, as those of a hierarchy are, and codes that no class names."""

from __future__ import annotations

import polars as pl
import pytest

from kohort.errors import IntegrityError
from kohort.methods.syntactic.mapping.assign import costs, generalised, map_rows
from kohort.methods.syntactic.mapping.build import mapping_of, union
from kohort.methods.syntactic.mapping.mapping import SiteMapping
from kohort.tables.codes import CodeTree

TREE = CodeTree("codes", "icd9")
MEMBERS = {"<250.x>": ("250.01", "250.02", "250.11"), "<*>": ("250.01", "250.02", "250.11", "401", "428")}


def mapping(rows: list[tuple[str, list[str]]], **options: object) -> SiteMapping:
    frame = pl.DataFrame(rows, schema={"sex": pl.String, "codes": pl.List(pl.String)}, orient="row")
    asked: dict[str, object] = {"site": "one", "schema": "s", "data_version": "1", "k": 2, "m": 2, "members": MEMBERS}
    return mapping_of(frame, quasi=["sex"], items="codes", **(asked | options))  # type: ignore[arg-type]


OWN = mapping([("f", ["250.01", "401"]), ("f", ["<250.x>", "401"]), ("m", ["<250.x>"]), ("m", ["<*>"])])


def rows(*sets: list[str], sex: str = "f") -> pl.DataFrame:
    return pl.DataFrame({"sex": [sex] * len(sets), "codes": list(sets)}, schema_overrides={"codes": pl.List(pl.String)})


def fed(frame: pl.DataFrame) -> list[list[str]]:
    return generalised(frame, OWN, map_rows(frame, OWN, tree=TREE), tree=TREE)["codes"].list.sort().to_list()


def test_an_item_goes_by_the_lowest_label_of_its_class() -> None:
    assert fed(rows(["250.01"], ["250.02"], ["250.01", "250.02"])) == [["250.01"], ["<250.x>"], ["250.01", "<250.x>"]]


def test_an_unseen_code_is_covered_by_the_label_above_it() -> None:
    found = map_rows(rows(["250.99"], ["250.99", "401"]), OWN, tree=TREE)
    assert found.violated.tolist() == [0, 0]
    assert found.legitimate.tolist() == [1, 1]
    assert fed(rows(["250.99"])) == [["<250.x>"]]


def test_an_unseen_code_without_a_published_label_is_covered_by_the_root_alone() -> None:
    women = map_rows(rows(["428"], ["V45"]), OWN, tree=TREE)
    assert women.violated.tolist() == [1, 1]
    men = map_rows(rows(["428"], ["V45"], sex="m"), OWN, tree=TREE)
    assert men.violated.tolist() == [0, 0]
    assert fed(rows(["V45", "250.99"], sex="m")) == [["<*>", "<250.x>"]]


def test_without_the_tree_an_unseen_code_is_covered_by_nothing() -> None:
    assert map_rows(rows(["250.99"]), OWN).violated.tolist() == [1]


def test_the_label_for_unseen_codes_costs_what_it_costs_others() -> None:
    frame = rows(["250.02"], ["250.99"])
    _, loss = costs(frame, OWN, [0, 0], tree=TREE)
    assert loss[0] == pytest.approx(loss[1])
    assert loss[0] > 0


def test_nested_labels_travel() -> None:
    again = SiteMapping.from_bytes(OWN.to_bytes())
    assert again.to_bytes() == OWN.to_bytes()
    assert union([again]).count == 2


def test_labels_that_overlap_without_being_nested_are_refused() -> None:
    members = {"<a>": ("1", "2"), "<b>": ("2", "3")}
    with pytest.raises(IntegrityError, match="under two labels"):
        mapping([("f", ["<a>", "<b>"]), ("f", ["<a>", "<b>"])], members=members)
