"""Local recoding of items, judged by what an attacker with up to m items of a person can match."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.reference.kkm import attacker_view
from tests.support.examples import thorough

from kohort.anonymity.checker.measures import measure
from kohort.anonymity.itemsets.kkm import KKmResult, anonymise_items
from kohort.errors import ConfigError
from kohort.tables.cells import Label, parse_cell
from kohort.tables.codes import CodeTree
from kohort.tables.hierarchy import Hierarchy

CODES = ("250.01", "250.02", "250.11", "250.40", "401", "401.9", "410", "414.01", "428", "V45", "V46.1", "E849.0")
LETTERS = Hierarchy.of(
    "codes",
    {letter: ("ABCD" if letter in "ABCD" else "EF" if letter in "EF" else "GHIJ", "*") for letter in "ABCDEFGHIJ"},
)


def table(seed: int, codes: Sequence[str] = CODES) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    height = int(random.integers(12, 60))
    popular = 1.0 / np.arange(1, len(codes) + 1)
    lists = [
        random.choice(codes, int(random.integers(0, 6)), replace=False, p=popular / popular.sum()).tolist()
        for _ in range(height)
    ]
    return pl.DataFrame(
        {
            "age": random.integers(20, 26, height),
            "sex": random.choice(["f", "m"], height),
            "who": random.integers(0, height, height),
            "codes": pl.Series(lists, dtype=pl.List(pl.String)),
        }
    )


def release(frame: pl.DataFrame, **options: Any) -> KKmResult:
    asked: dict[str, Any] = {"quasi": ["age", "sex"], "items": "codes", "item_hierarchy": "icd9", "rare": "recode"}
    return anonymise_items(frame, **(asked | options))


def covers(above: Callable[[str], Sequence[str]]) -> Callable[[str, str], bool]:
    def covered(cell: str, item: str) -> bool:
        found = parse_cell(cell)
        return found.text in above(item) if isinstance(found, Label) else found == item

    return covered


def violations(
    frame: pl.DataFrame, made: KKmResult, *, k: int, m: int, persons: str | None, above: Callable[[str], Sequence[str]]
) -> int:
    """How many attackers are left with 1 to k - 1 persons: each knows a class and up to m items of one of its rows."""
    covered = covers(above)
    who = list(range(frame.height)) if persons is None else frame[persons].to_list()
    shown, cluster = made.frame["codes"].to_list(), made.cluster.tolist()
    known = {
        (c, guess)
        for c, held in zip(cluster, frame["codes"].to_list(), strict=True)
        for size in range(m + 1)
        for guess in combinations(sorted(held), size)
    }
    broken = 0
    for c, guess in known:
        left = {
            who[row]
            for row, cells in enumerate(shown)
            if cluster[row] == c and all(any(covered(cell, item) for cell in cells) for item in guess)
        }
        broken += 0 < len(left) < k
    return broken


def drawn_groups(seed: int) -> CodeTree:
    """ICD-9 with groups of categories above them that have nothing to do with chapters, half of the labels known."""
    random, plain = np.random.default_rng(seed), CodeTree("codes", "icd9")
    labels = sorted({label for code in CODES[::2] for label in plain.chain(code)})
    numbers = random.integers(0, 4, len(labels)).tolist()
    lines = [
        (label, f"group {at + 1} of 4", f"group {at // 2 + 1} of 2") for label, at in zip(labels, numbers, strict=True)
    ]
    return CodeTree("codes", "icd9", tuple(lines))


def judged(seed: int, tree: CodeTree | None = None) -> int:
    k, m = (2, 3, 5)[seed % 3], (1, 2, 3, 4)[seed % 4]
    persons = "who" if seed % 5 < 2 else None
    frame = table(seed)
    if persons and frame[persons].n_unique() < k:
        return 0
    asked: dict[str, Any] = {} if tree is None else {"item_hierarchy": tree}
    made = release(frame, k=k, m=m, merge=("none", "paying", "all")[seed % 3], identifier=persons, **asked)
    owners = frame["who"].to_list() if persons else None
    opaque = attacker_view(made.frame.select("age", "sex").rows(), made.frame["codes"].to_list(), m, owners)
    above = (tree or CodeTree("codes", "icd9")).chain
    return violations(frame, made, k=k, m=m, persons=persons, above=above) + (opaque < k)


def test_no_attacker_is_left_with_fewer_than_k_persons() -> None:
    assert sum(judged(seed) for seed in range(500 if thorough() else 24)) == 0


def test_nor_where_learned_groups_stand_above_the_labels() -> None:
    assert sum(judged(seed, drawn_groups(seed)) for seed in range(500 if thorough() else 24)) == 0


def judged_alone(seed: int) -> int:
    """The same where nobody knows more than items: all rows of the table are candidates."""
    k, m = (2, 3, 5)[seed % 3], (1, 2, 3, 4)[seed % 4]
    persons = "who" if seed % 5 < 2 else None
    frame = table(seed)
    if persons and frame[persons].n_unique() < k:
        return 0
    made = release(frame, quasi=[], k=k, m=m, identifier=persons)
    assert made.cluster.max() == 0
    assert made.frame.columns == [name for name in frame.columns if name != persons]
    return violations(frame, made, k=k, m=m, persons=persons, above=CodeTree("codes", "icd9").chain)


def test_items_alone_are_hidden_in_the_whole_table() -> None:
    assert sum(judged_alone(seed) for seed in range(500 if thorough() else 24)) == 0
    frame = table(1)
    # One large class spares items that small classes lose.
    assert release(frame, quasi=[], k=3).item_loss < release(frame, k=3).item_loss
    made = release(frame, quasi=[], k=3)
    assert (made.cells, made.relational_loss, len(made.classes)) == ((), 0.0, 1)
    groups = anonymise_items(frame, quasi=[], items="codes", k=3, rare="generalise")
    assert measure(groups.frame.with_columns(one=pl.lit(1)), quasi=["one"], items=["codes"], m=2).km >= 3


def test_the_attack_finds_a_release_that_shows_too_much() -> None:
    """The brute force itself: rows released as they are leave some attacker with one person."""
    frame = table(3)
    made = release(frame, k=2, m=2)
    raw = type("Raw", (), {"frame": frame, "cluster": made.cluster})
    assert violations(frame, raw, k=2, m=2, persons=None, above=CodeTree("codes", "icd9").chain) > 0  # type: ignore[arg-type]


def test_cells_say_nothing_untrue_and_suppressed_items_are_counted() -> None:
    for seed in range(8):
        frame = table(seed)
        made = release(frame, k=3, m=2)
        covered = covers(CodeTree("codes", "icd9").chain)
        lost = 0
        for held, cells in zip(frame["codes"].to_list(), made.frame["codes"].to_list(), strict=True):
            assert all(any(covered(cell, item) for item in held) for cell in cells)
            lost += sum(not any(covered(cell, item) for cell in cells) for item in held)
        assert lost == made.suppressed_items


def test_items_go_up_in_the_rows_that_need_it_and_stay_in_the_others() -> None:
    """Three rows hold 250.01 beside 401; 250.02 is held once and becomes diabetes, together with two of 250.11."""
    lists = [["250.01", "401"]] * 3 + [["250.02"], ["250.11"], ["250.11"]]
    frame = pl.DataFrame({"age": [30] * 6, "codes": lists})
    made = release(frame, quasi=["age"], k=3, m=2)
    assert made.frame["codes"].to_list() == [["250.01", "401"]] * 3 + [["<250.x>"]] * 3
    assert made.suppressed_items == 0


def test_an_item_goes_to_the_root_before_it_is_suppressed() -> None:
    frame = pl.DataFrame({"age": [30] * 4, "codes": [["A"], ["E"], ["H"], []]})
    made = release(frame, quasi=["age"], k=3, m=1, item_hierarchy=LETTERS)
    assert made.frame["codes"].to_list() == [["<*>"]] * 3 + [[]]
    few = release(frame[:3].vstack(frame[3:]), quasi=["age"], k=4, m=1, item_hierarchy=LETTERS)
    assert few.frame["codes"].to_list() == [[]] * 4
    assert few.suppressed_items == 3


def test_a_class_depends_on_its_own_rows_alone() -> None:
    frame = table(7)
    whole = release(frame, quasi=["sex"], k=2, m=2, merge="none")
    alone = release(frame.filter(pl.col("sex") == "f"), quasi=["sex"], k=2, m=2, merge="none")
    chosen = (frame["sex"] == "f").to_list()
    assert (
        pl.Series(whole.frame["codes"].to_list()).filter(pl.Series(chosen)).to_list() == alone.frame["codes"].to_list()
    )


def test_important_items_keep_their_place_longer() -> None:
    lists = [["250.01", "401.1"], ["250.02", "401.1"], ["250.01", "401.9"], ["250.02", "401.9"]] * 2
    frame = pl.DataFrame({"age": [30] * 8, "codes": lists})
    for precious, expected in (("250.01", "250"), ("401.1", "401")):
        weights = {item: 1.0 if item[:3] == precious[:3] else 0.01 for item in ("250.01", "250.02", "401.1", "401.9")}
        made = release(frame, quasi=["age"], k=3, m=2, item_weights=weights)
        exact = {cell for cells in made.frame["codes"].to_list() for cell in cells if not cell.startswith("<")}
        assert {cell[:3] for cell in exact} == {expected}


def test_recoding_needs_a_hierarchy_and_classes_of_their_own() -> None:
    with pytest.raises(ConfigError, match="without a hierarchy"):
        release(table(0), k=2, item_hierarchy="none")
    with pytest.raises(ConfigError, match="alike in the whole table"):
        release(table(0), k=2, groups="table-wide")
    with pytest.raises(ConfigError, match="m is 5"):
        release(table(0), k=2, m=5)


def test_items_of_several_columns_are_not_recoded() -> None:
    """Counted over both columns a label hides k persons; the column it stands in tells them apart."""
    frame = pl.DataFrame({"age": [30] * 6, "one": [["250.0"]] * 6, "two": [["401.1"]] * 6})
    with pytest.raises(ConfigError, match="several columns cannot be recoded"):
        anonymise_items(frame, quasi=["age"], items=["one", "two"], item_hierarchy="icd9", rare="recode", k=2, m=1)


def test_a_code_system_that_most_codes_are_not_of_is_refused_and_a_few_others_are_noted() -> None:
    newer = ["E11.9", "I10", "K21.0", "J45.9"]
    frame = pl.DataFrame({"age": [30] * 8, "codes": [newer] * 8})
    options = {"quasi": ["age"], "items": "codes", "k": 2}
    with pytest.raises(
        ConfigError, match=r"4 of 4 different codes of column 'codes' \(100%\) are no icd9 codes.*icd10"
    ):
        anonymise_items(frame, item_hierarchy="icd9", **options)
    assert anonymise_items(frame, item_hierarchy="icd10", **options).report.notes == ()
    mixed = pl.DataFrame({"age": [30] * 8, "codes": [["250.01", "401.9", "home-made"]] * 8})
    for tree in ("icd9", CodeTree("codes", "icd9")):
        (note,) = anonymise_items(mixed, item_hierarchy=tree, **options).report.notes
        assert note.startswith("1 of 3 different codes of column 'codes' (33%) are not in the icd9 hierarchy")
        assert "home-made" not in note
    declared = CodeTree("codes", (("250.01", "sugar"), ("401.9", "pressure")))
    (note,) = anonymise_items(mixed, item_hierarchy=declared, **options).report.notes
    assert "declared hierarchy" in note
