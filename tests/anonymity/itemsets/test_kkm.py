"""(k, k^m)-anonymity: every release is judged by the definition itself, the compiled loop by its slow form."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.kkm import attacker_view, generalise_slowly
from tests.support.examples import examples, thorough

from kohort.anonymity.checker.measures import measure
from kohort.anonymity.itemsets.generalise import generalise
from kohort.anonymity.itemsets.hierarchy import halves, item_tree
from kohort.anonymity.itemsets.items import item_weights, read_items
from kohort.anonymity.itemsets.kkm import KKmResult, anonymise_items
from kohort.errors import ConfigError, DataError, RefusedError
from kohort.tables.codes import icd9
from kohort.tables.hierarchy import Hierarchy

CODES = ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L"]


def drawn(seed: int, *, rows: int | None = None) -> pl.DataFrame:
    """A small table: a number, two categories with nulls, up to six items per row, some rows without any."""
    random = np.random.default_rng(seed)
    height = int(random.integers(10, 70)) if rows is None else rows
    known = CODES[: int(random.integers(2, len(CODES) + 1))]
    popular = 1.0 / np.arange(1, len(known) + 1)
    lists = [
        random.choice(
            known, min(int(random.integers(0, 7)), len(known)), replace=False, p=popular / popular.sum()
        ).tolist()
        for _ in range(height)
    ]
    return pl.DataFrame(
        {
            "age": random.integers(20, int(random.integers(22, 60)), height),
            "sex": random.choice(["m", "f"], height),
            "town": [None if random.random() < 0.1 else str(random.integers(0, 4)) for _ in range(height)],
            "codes": pl.Series(lists, dtype=pl.List(pl.String)),
        }
    )


def view(made: KKmResult, m: int, quasi: tuple[str, ...] = ("age", "sex", "town")) -> int:
    return attacker_view(made.frame.select(quasi).rows(), made.frame["codes"].to_list(), m)


@pytest.mark.parametrize("block", range(10 if thorough() else 4))
def test_no_attacker_is_left_with_fewer_than_k(block: int) -> None:
    """120 tables, or 300: thirty a block, every way to group items, every k and m in turn."""
    for number in range(block * 30, block * 30 + 30):
        table = drawn(number)
        k = (2, 5, 10)[number % 3]
        m = (1, 2, 3)[number // 3 % 3]
        made = anonymise_items(
            table,
            quasi=["age", "sex", "town"],
            items="codes",
            k=k,
            m=m,
            item_hierarchy=("none", "auto")[number // 9 % 2],
            groups=("per-cluster", "table-wide")[number // 18 % 2],  # type: ignore[arg-type]
            merge=("paying", "all", "none")[number % 4 % 3],  # type: ignore[arg-type]
            delta=(0.95, 0.2)[number % 2],
        )
        assert view(made, m) >= k, number
        assert (made.report.km or 0) >= k
        _covers_every_row(table, made)


def _covers_every_row(before: pl.DataFrame, made: KKmResult) -> None:
    """Nothing is made up: each released item stands for an item of its row; what is gone is counted."""
    meaning = {group.text: set(group.members) for group in made.groups}
    gone = 0
    for had, shown in zip(before["codes"].to_list(), made.frame["codes"].to_list(), strict=True):
        assert all(meaning[text] & set(had) for text in shown)
        gone += len(set(had) - set().union(*(meaning[text] for text in shown)))
    assert gone == made.suppressed_items == made.loss.suppressed
    assert made.loss.added == 0


def test_the_brute_force_view_is_the_checkers() -> None:
    for seed in range(40):
        table = drawn(seed, rows=25)
        found = measure(table, quasi=["sex"], items="codes", m=3)
        assert found.km == attacker_view(table["sex"].to_list(), table["codes"].to_list(), 3)


def test_a_release_with_k_minus_one_is_caught() -> None:
    """The view must be able to see a fault: made for k - 1, judged for k."""
    caught = 0
    for seed in range(20):
        made = anonymise_items(drawn(seed, rows=40), quasi=["sex"], items="codes", k=4, m=2)
        caught += attacker_view(made.frame["sex"].to_list(), made.frame["codes"].to_list(), 2) < 5
    assert caught > 10


tables = st.lists(
    st.tuples(st.lists(st.integers(0, 7), max_size=5, unique=True).map(sorted), st.integers(0, 2), st.integers(0, 30)),
    min_size=1,
    max_size=24,
)


@examples(60, 250)
@given(
    rows=tables,
    k=st.integers(1, 5),
    m=st.integers(1, 3),
    tree=st.booleans(),
    wide=st.booleans(),
    alike=st.booleans(),
)
def test_the_compiled_loop_takes_the_steps_of_the_slow_one(
    rows: list[tuple[list[int], int, int]], k: int, m: int, tree: bool, wide: bool, alike: bool
) -> None:
    """Node by node, with persons that have several rows of a class and with everyone in one row."""
    ordered = sorted((c, person if alike else place, row) for place, (row, c, person) in enumerate(rows))
    numbers = {c: number for number, c in enumerate(dict.fromkeys(c for c, _, _ in ordered))}
    classes = [numbers[c] for c, _, _ in ordered]
    names = [str(code) for code in range(8)]
    nodes = item_tree(names, halves("codes", names) if tree else None)
    table = pl.DataFrame(
        {"codes": pl.Series([[names[i] for i in row] for _, _, row in ordered], dtype=pl.List(pl.String))}
    )
    # All items must be known to the table, whether they occur or not.
    everything = pl.concat([table, pl.DataFrame({"codes": [names]})])
    sets = read_items(everything, ["codes"])
    persons = [person for _, person, _ in ordered]
    found = generalise(
        sets,
        nodes,
        order=np.arange(len(ordered)),
        classes=np.array(classes),
        persons=np.array(persons),
        k=k,
        m=m,
        weights=item_weights(nodes, None),
        table_wide=wide,
    )
    slow: list[int] = []
    for scope in [set(classes)] if wide else [{c} for c in sorted(set(classes))]:
        inside = [place for place, c in enumerate(classes) if c in scope]
        result = generalise_slowly(
            [ordered[place][2] for place in inside],
            [classes[place] for place in inside],
            [persons[place] for place in inside],
            parent=nodes.parent.tolist(),
            sizes=nodes.size.tolist(),
            domain=8,
            k=k,
            m=m,
            tree=tree,
        )
        slow += [node for row in result for node in row]
    assert found.node.tolist() == slow


def test_persons_are_counted_and_not_rows() -> None:
    """Three persons with ten rows each are not ten people."""
    random = np.random.default_rng(3)
    rows = 300
    table = drawn(5, rows=rows).with_columns(person=pl.Series(random.integers(0, 60, rows)))
    made = anonymise_items(table, quasi=["age", "sex"], items="codes", k=6, m=2, identifier="person")
    assert "person" not in made.frame.columns
    seen = attacker_view(
        made.frame.select("age", "sex").rows(), made.frame["codes"].to_list(), 2, table["person"].to_list()
    )
    assert seen >= 6
    assert min(made.report.k, made.report.km or 0) >= 6
    few = table.with_columns(person=pl.Series(np.arange(rows) % 3))
    with pytest.raises(RefusedError, match="3 persons"):
        anonymise_items(few, quasi=["age"], items="codes", k=4, identifier="person")


def test_the_checker_counts_persons_like_the_brute_force() -> None:
    random = np.random.default_rng(8)
    for seed in range(20):
        table = drawn(seed, rows=40).with_columns(person=pl.Series(random.integers(0, 15, 40)))
        for m in (1, 2, 3):
            found = measure(table, quasi=["sex"], items="codes", m=m, persons="person")
            persons = table["person"].to_list()
            assert found.km == attacker_view(table["sex"].to_list(), table["codes"].to_list(), m, persons)


def test_both_forms_of_items_give_one_release() -> None:
    lists = drawn(11, rows=60).with_columns(who=pl.Series(range(60)))
    texts = lists.with_columns(pl.col("codes").list.join("; "))
    bars = lists.with_columns(pl.col("codes").list.join("|"))
    asked: dict[str, Any] = {"quasi": ["age", "sex"], "items": "codes", "k": 3}
    expected = anonymise_items(lists, **asked).frame["codes"].to_list()
    for other in (texts, bars):
        assert anonymise_items(other, **asked).frame["codes"].to_list() == expected


def test_empty_sets_stay_empty_and_long_m_is_no_problem() -> None:
    table = pl.DataFrame(
        {"age": [1, 1, 1, 1], "codes": [[], [], ["A"], None]}, schema_overrides={"codes": pl.List(pl.String)}
    )
    made = anonymise_items(table, quasi=["age"], items="codes", k=2, m=3)
    assert made.frame["codes"].to_list() == [[], [], [], []]
    assert (made.suppressed_items, made.item_loss) == (1, 1.0)
    none = table.with_columns(codes=pl.Series([[]] * 4, dtype=pl.List(pl.String)))
    assert anonymise_items(none, quasi=["age"], items="codes", k=4).item_loss == 0.0


def test_k_above_the_rows_is_refused_and_suppression_is_limited() -> None:
    table = drawn(2, rows=20)
    with pytest.raises(RefusedError, match="20 rows cannot be 21-anonymous") as refused:
        anonymise_items(table, quasi=["age"], items="codes", k=21)
    assert refused.value.exit_code == 4
    alone = pl.DataFrame({"age": [1, 2, 3], "codes": [["A"], ["B"], ["C"]]})
    with pytest.raises(RefusedError, match="would be suppressed"):
        anonymise_items(alone, quasi=["age"], items="codes", k=3, suppression_limit=0.5)


def test_delta_bounds_the_relational_loss_of_merging() -> None:
    table = drawn(4, rows=400)
    asked: dict[str, Any] = {"quasi": ["age", "sex", "town"], "items": "codes", "k": 3}
    formed = anonymise_items(table, merge="none", **asked)
    unmoved = anonymise_items(table, delta=0.0, merge="all", **asked)
    assert (unmoved.merges, unmoved.relational_loss) == (0, formed.relational_loss)
    half = anonymise_items(table, delta=0.5, merge="all", **asked)
    assert formed.relational_loss < half.relational_loss <= 0.5 + 1e-9
    assert half.merges > 0
    assert half.item_loss < formed.item_loss


def test_merging_that_pays_lowers_the_sum_of_both_losses() -> None:
    better = 0
    for seed in range(12):
        table = drawn(seed, rows=150)
        asked: dict[str, Any] = {"quasi": ["age", "sex", "town"], "items": "codes", "k": 5}
        apart = anonymise_items(table, merge="none", **asked)
        joined = anonymise_items(table, merge="paying", **asked)
        before, after = (made.relational_loss + made.item_loss for made in (apart, joined))
        assert after <= before + 1e-9
        better += after < before - 1e-9
    assert better > 3


def test_an_item_that_a_given_hierarchy_lacks_is_an_error_that_shows_none() -> None:
    table = pl.DataFrame({"age": [1, 2, 3], "codes": [["A"], ["B"], ["secret"]]})
    known = Hierarchy.of("codes", {"A": ("AB", "*"), "B": ("AB", "*")})
    with pytest.raises(DataError, match="lacks 1 value") as found:
        anonymise_items(table, quasi=["age"], items="codes", k=2, item_hierarchy=known)
    assert "secret" not in str(found.value)


def test_a_given_hierarchy_is_climbed() -> None:
    others = [str(number) for number in range(8)]
    known = Hierarchy.of("codes", {"A": ("AB", "*"), "B": ("AB", "*")} | dict.fromkeys(others, ("rest", "*")))
    table = pl.DataFrame({"age": [1] * 4, "codes": [[first, *others] for first in "ABAB"]})
    made = anonymise_items(table, quasi=["age"], items="codes", k=3, item_hierarchy=known)
    assert made.frame["codes"].to_list() == [[*others, "<AB>"]] * 4
    assert made.item_loss == pytest.approx(4 * (2 / 10) / 36)
    assert {group.text: group.members for group in made.classes[0].items}["<AB>"] == ("A", "B")


def test_icd9_codes_go_to_category_tens_and_chapter() -> None:
    tree = icd9("codes", ["250.01", "25002", "38", "V45", "E849.0", "E8490", "nonsense", "0389"])
    assert tree.ancestor("250.01", 1) == tree.ancestor("25002", 1) == "250.x"
    assert tree.ancestor("250.01", 2) == "250-259"
    assert tree.ancestor("38", 1) == tree.ancestor("0389", 1) == "038.x"
    assert tree.ancestor("38", 3).startswith("infectious")
    assert tree.ancestor("V45", 3) == "supplementary classification (V)"
    assert tree.ancestor("E849.0", 1) == tree.ancestor("E8490", 1)
    assert tree.ancestor("nonsense", 3) == "no ICD-9 code"


def test_a_node_is_suppressed_rather_than_a_tree_raised_to_its_root() -> None:
    """One rare item must not cost all the others their meaning."""
    table = pl.DataFrame({"age": [1] * 40, "codes": [["A", "B"]] * 39 + [["A", "Z"]]})
    made = anonymise_items(table, quasi=["age"], items="codes", k=5, item_hierarchy="auto")
    assert made.suppressed_items == 1
    assert made.item_loss == pytest.approx(1 / 80)


def test_weights_choose_what_is_lost() -> None:
    table = pl.DataFrame({"age": [1] * 20, "codes": [["A", "B"]] * 10 + [["A", "C"]] * 3 + [["D", "B"]] * 7})
    made = anonymise_items(
        table, quasi=["age"], items="codes", k=8, item_weights={"A": 0.0, "B": 1.0, "C": 0.0, "D": 0.0}
    )
    assert sum("B" in row for row in made.frame["codes"].to_list()) == 17


def test_several_columns_are_one_set() -> None:
    table = drawn(6, rows=80).with_columns(
        more=pl.Series([["x"] if i % 3 else ["y", "A"] for i in range(80)], dtype=pl.List(pl.String))
    )
    made = anonymise_items(table, quasi=["sex"], items=["codes", "more"], k=4, m=2)
    both = [a + b for a, b in zip(made.frame["codes"].to_list(), made.frame["more"].to_list(), strict=True)]
    assert attacker_view(made.frame["sex"].to_list(), both, 2) >= 4


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"m": 0}, "m is 0"),
        ({"m": 4}, "m is 4"),
        ({"delta": 1.5}, "delta is 1.5"),
        ({"items": []}, "no items column"),
        ({"items": "age"}, "also an items column"),
        ({"item_hierarchy": "icd11"}, "unknown item hierarchy"),
        ({"groups": "everywhere"}, "unknown groups"),
        ({"weights": {"size": 1.0}}, "no quasi-identifier"),
        ({"weights": {"age": 2.0}}, "not between 0 and 1"),
        ({"item_weights": {"A": -1.0}}, "item weight"),
    ],
)
def test_bad_requests_say_what_is_wrong(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        anonymise_items(drawn(1), **({"quasi": ["age"], "items": "codes", "k": 2} | asked))


def test_numbers_are_no_items() -> None:
    with pytest.raises(DataError, match="holds no item sets"):
        anonymise_items(drawn(1), quasi=["sex"], items="age", k=2)


def test_the_same_table_gives_the_same_release() -> None:
    table = drawn(9, rows=200)
    first, second = (anonymise_items(table, quasi=["age", "sex"], items="codes", k=4) for _ in range(2))
    assert first.frame.equals(second.frame)


def test_many_distinct_rows_are_clustered_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from kohort.anonymity.itemsets import clusters as kkm_clusters

    monkeypatch.setattr(kkm_clusters, "LARGEST_BLOCK", 40)
    random = np.random.default_rng(1)
    table = pl.DataFrame(
        {
            "age": random.normal(50, 15, 600),
            "sex": random.choice(["m", "f"], 600),
            "codes": [[str(random.integers(0, 5))] for _ in range(600)],
        }
    )
    made = anonymise_items(table, quasi=["age", "sex"], items="codes", k=5, m=1, merge="none")
    assert attacker_view(made.frame.select("age", "sex").rows(), made.frame["codes"].to_list(), 1) >= 5
    assert made.report.classes > 20
