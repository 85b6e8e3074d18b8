"""Mappings: what a site shares, the hub's union, and the class of a new row, held to the obvious reference."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.mapping import map_rows_slowly
from tests.support.examples import examples

from kohort.errors import ConfigError, DataError, IntegrityError
from kohort.methods.syntactic.mapping.assign import costs, generalised, map_rows
from kohort.methods.syntactic.mapping.build import mapping_of, union
from kohort.methods.syntactic.mapping.mapping import ItemGroups, SiteMapping
from kohort.tables.cells import Interval, ValueSet, format_cell
from kohort.tables.domain import ColumnDomain, Domain
from kohort.tables.hierarchy import Hierarchy

WARDS = ("east", "north", "south", "west")
SIDES = {"ward": Hierarchy.of("ward", {ward: ["a" if ward < "o" else "b", "*"] for ward in WARDS})}
ITEMS = tuple("ABCDEFGH")


def make(rows: list[tuple[Any, ...]], *, site: str = "one", **options: Any) -> SiteMapping:
    released = pl.DataFrame(
        rows, schema={"age": pl.String, "ward": pl.String, "codes": pl.List(pl.String)}, orient="row"
    )
    given = {"schema": "s", "data_version": "1", "k": 1, "m": 2, "quasi": ["age", "ward"], "items": "codes"} | options
    return mapping_of(released, site=site, hierarchies=SIDES, **given)  # type: ignore[arg-type]


def people(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"age": pl.Float64, "ward": pl.String, "codes": pl.List(pl.String)}, orient="row")


ages = st.one_of(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()).map(
        lambda ends: format_cell(Interval(min(ends[:2]), max(ends[:2]), ends[2]))
    ),
    st.integers(0, 9).map(str),
    st.sampled_from(["*", "{1, 4}", r"{2, \N}"]),
    st.none(),
)
wards = st.one_of(
    st.sets(st.sampled_from([*WARDS, None]), min_size=1).map(lambda some: format_cell(ValueSet(tuple(some)))),
    st.sampled_from([*WARDS, "*", "<a>", "<b>", None]),
)


@st.composite
def labels(draw: st.DrawFn) -> list[str]:
    """Some items, each under one label."""
    chosen = draw(st.permutations(ITEMS))[: draw(st.integers(0, 6))]
    groups: list[list[str]] = []
    for item in chosen:
        at = draw(st.integers(0, len(groups)))
        groups[at : at + 1] = [[*(groups[at] if at < len(groups) else []), item]]
    return [group[0] if len(group) == 1 else str(format_cell(ValueSet(tuple(group)))) for group in groups]


classes = st.lists(st.tuples(ages, wards, labels()), min_size=1, max_size=12)
new_rows = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(-1, 10).map(float)),
        st.sampled_from([*WARDS, "elsewhere", None]),
        st.lists(st.sampled_from([*ITEMS, "Z"]), max_size=5, unique=True),
    ),
    min_size=1,
    max_size=8,
)


@examples(20, 60)
@given(first=classes, second=classes, rows=new_rows, prefer=st.integers(-1, 3), weighted=st.booleans())
def test_rows_are_mapped_as_by_the_reference(
    first: list[Any], second: list[Any], rows: list[Any], prefer: int, weighted: bool
) -> None:
    numbers = Domain(columns={"age": ColumnDomain(kind="number", bounds=(0.0, 9.0))})
    joint = union(
        [
            make(rows_of, site=site, classes=range(len(rows_of)), domain=numbers)
            for site, rows_of in (("one", first), ("two", second))
        ]
    )
    weights = {"age": 0.25, "ward": 0.5, "codes": 0.75} if weighted else None
    by_item = {"A": 0.5, "B": 0.25, "C": 0.0} if weighted else {}
    preferred = [prefer] * len(rows)
    fast = map_rows(people(rows), joint, weights=weights, item_weights=by_item, prefer=preferred)
    options: dict[str, Any] = {
        "weights": (0.25, 0.5) if weighted else (0.5, 0.5),
        "items_weight": 0.75 if weighted else 1.0,
        "item_weights": by_item,
    }
    slow = map_rows_slowly(people(rows), joint, prefer=preferred, **options)
    for at, (number, loss, legitimate, broken) in enumerate(slow):
        assert (fast.legitimate[at], fast.violated[at]) == (legitimate, broken)
        assert fast.loss[at] == pytest.approx(loss, abs=1e-12)
        # Equal losses that were added in another order may differ in the last bit: then either class will do.
        alone = map_rows_slowly(people(rows[at : at + 1]), joint, prefer=[int(fast.class_of[at])], **options)[0]
        assert fast.class_of[at] == number or alone[1] == pytest.approx(loss, abs=1e-12)


def test_the_reference_has_many_classes_and_rows_to_disagree_about() -> None:
    """More classes than a word has bits, more rows than a block: every path of the fast way is walked."""
    random = np.random.default_rng(1)
    low = random.integers(0, 60, 200)
    released = [
        (
            f"[{age}, {age + random.integers(0, 30)}]",
            format_cell(ValueSet(tuple(random.choice(WARDS, 2)))),
            ["{A, B}", "C"] if age % 2 else ["A", "{B, C}", "D"],
        )
        for age in low
    ]
    joint = union([make(released, classes=range(200))])
    rows = [(float(random.integers(0, 95)), str(random.choice(WARDS)), ["A", "B", "E"][: i % 4]) for i in range(9000)]
    fast = map_rows(people(rows), joint)
    assert 0 < fast.flagged_count < 9000
    some = random.choice(9000, 60, replace=False)
    slow = map_rows_slowly(
        people([rows[at] for at in some]),
        joint,
        weights=(0.5, 0.5),
        items_weight=1.0,
        item_weights={},
        prefer=[-1] * 60,
    )
    for at, (_, loss, legitimate, broken) in zip(some, slow, strict=True):
        assert (fast.legitimate[at], fast.violated[at]) == (legitimate, broken)
        assert fast.loss[at] == pytest.approx(loss, abs=1e-12)


def test_a_trained_row_never_costs_more_than_its_class_and_wins_ties() -> None:
    own = make([("[20, 30]", "east", ["A", "B"]), ("[20, 30]", "east", ["A"]), ("[0, 50]", "*", ["A"])])
    rows = people([(25.0, "east", ["A"])] * 3)
    found = map_rows(rows, own, prefer=[0, 1, 2])
    assert found.class_of.tolist() == [0, 0, 0]
    split = make([("[20, 30]", "east", ["A", "B"]), ("[20, 30]", "east", ["A"])], classes=[0, 1])
    assert map_rows(rows, split, prefer=[0, 1, -1]).class_of.tolist() == [0, 1, 1]
    assert map_rows(rows, split).loss.tolist() == map_rows(rows, split, prefer=[0, 0, 0]).loss.tolist()


@examples(20, 40)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 6), weighted=st.booleans())
def test_trained_rows_never_cost_more_than_their_class(seed: int, size: int, weighted: bool) -> None:
    """Classes are drawn rows released together, some rare items left out: what a site trains on."""
    random = np.random.default_rng(seed)
    rows = [
        (float(random.integers(0, 20)), str(random.choice(WARDS)), sorted(set(random.choice(list(ITEMS), 3))))
        for _ in range(24)
    ]
    rows.sort(key=lambda row: row[0])
    own = [at // size for at in range(24)]
    released = []
    for at in range(24):
        held = [row for row, number in zip(rows, own, strict=True) if number == own[at]]
        ages_held = [row[0] for row in held]
        pairs = {"A": "{A, B}", "B": "{A, B}", "H": "*"} if own[at] % 2 else {}
        labels_held = sorted({pairs.get(item, item) for item in rows[at][2]})
        wards_held = format_cell(ValueSet(tuple(row[1] for row in held)))
        released.append((format_cell(Interval(min(ages_held), max(ages_held))), wards_held, labels_held))
    mapping = make(released, classes=own)
    weights = {"age": 0.2, "ward": 0.3, "codes": 0.5} if weighted else None
    found = map_rows(people(rows), mapping, weights=weights, prefer=own)
    broken, loss = costs(people(rows), mapping, own, weights=weights)
    chosen = costs(people(rows), mapping, found.class_of, weights=weights)
    assert (found.violated.tolist(), found.loss.tolist()) == (chosen[0].tolist(), chosen[1].tolist())
    for at in range(24):
        assert (found.violated[at], found.loss[at]) <= (broken[at], loss[at])
        if (found.violated[at], found.loss[at]) == (broken[at], loss[at]):
            assert found.class_of[at] == own[at]


def test_a_row_outside_every_class_goes_to_the_nearest_and_is_flagged() -> None:
    own = make([("[20, 30]", "east", ["A"]), ("[50, 60]", "east", ["A", "B"])])
    found = map_rows(people([(40.0, "east", ["A"]), (34.0, "east", ["A"]), (25.0, "east", ["A", "Z"])]), own)
    assert found.flagged.tolist() == [True, True, True]
    assert found.flagged_count == 3
    assert found.violated.tolist() == [1, 1, 1]
    # At 40 both classes widen by 10: the first stands for fewer items. At 34 the first widens less.
    assert found.class_of.tolist() == [0, 0, 0]
    fed = generalised(people([(25.0, "east", ["A", "Z"])]), own, map_rows(people([(25.0, "east", ["A", "Z"])]), own))
    assert fed.row(0) == ("[20, 30]", "east", ["A"])


def test_long_labels_do_not_overflow() -> None:
    many = tuple(f"i{number}" for number in range(3000))
    wide = str(format_cell(ValueSet(many)))
    own = make([("[0, 9]", "east", [wide]), ("[0, 9]", "east", ["i1", "{i2, i3}"])], classes=[0, 1])
    found = map_rows(people([(1.0, "east", ["i1", "i2"])]), own)
    assert found.class_of.tolist() == [1]
    assert found.loss[0] == pytest.approx(0.5 * 1 + 3 / 7)
    only = map_rows(people([(1.0, "east", ["i1", "i9"])]), make([("[0, 9]", "east", [wide])]))
    assert only.loss[0] == pytest.approx(0.5 * 1 + 1.0)


def test_weights_decide_between_columns() -> None:
    own = make([("[0, 100]", "east", []), ("50", "{east, west}", [])])
    row = people([(50.0, "east", [])])
    assert map_rows(row, own, weights={"age": 1.0, "ward": 0.1, "codes": 0.0}).class_of.tolist() == [1]
    assert map_rows(row, own, weights={"age": 0.1, "ward": 1.0, "codes": 0.0}).class_of.tolist() == [0]


@pytest.mark.parametrize("weights", [{"age": 1.0}, {"age": 1.0, "ward": 2.0, "codes": 0.0}, {"agee": 1.0}])
def test_weights_must_fit(weights: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        map_rows(people([(5.0, "east", [])]), make([("5", "east", [])]), weights=weights)


def test_rows_may_be_empty_or_lack_items_and_must_have_the_columns() -> None:
    own = make([("5", "east", ["A"])])
    assert len(map_rows(people([]), own).class_of) == 0
    assert map_rows(people([(5.0, "east", None), (5.0, "east", [])]), own).flagged_count == 0
    texts = people([(5.0, "east", [])]).with_columns(codes=pl.lit("A; A"))
    assert map_rows(texts, own).flagged_count == 0
    with pytest.raises(DataError, match="ward"):
        map_rows(people([(5.0, "east", [])]).drop("ward"), own)
    with pytest.raises(DataError, match="prefer"):
        map_rows(texts, own, prefer=[0, 1])


def test_without_items_only_columns_count() -> None:
    own = make([("[0, 5]", "east", []), ("[4, 9]", "<a>", [])], items=None)
    found = map_rows(people([(4.0, "east", ["A"]), (7.0, "north", [])]).drop("codes"), own)
    assert found.class_of.tolist() == [0, 1]
    assert generalised(people([(4.0, "east", [])]).drop("codes"), own, map_rows(people([(4.0, "east", [])]), own)).row(
        0
    ) == ("[0, 5]", "east")


def test_the_domain_sets_what_cells_are_measured_against() -> None:
    domain = Domain(
        columns={
            "age": ColumnDomain(kind="number", bounds=(0.0, 100.0)),
            "ward": ColumnDomain(kind="category", categories=WARDS),
        }
    )
    own = make([("[20, 30]", "{east, west}", [])], domain=domain)
    assert map_rows(people([(25.0, "east", [])]), own).loss[0] == pytest.approx(0.5 * 0.1 + 0.5 * 0.5)


def test_classes_come_from_cells_or_from_given_numbers() -> None:
    rows = [("1", "east", ["A"]), ("2", "east", ["B"]), ("1", "east", ["{C, D}"])]
    found = make(rows)
    assert found.sizes == (2, 1)
    assert [[found.groups.labels[g] for g in held] for held in found.groups.of_class] == [["A", "{C, D}"], ["B"]]
    assert make(rows, classes=[1, 0, 2]).cells[0] == ("2", "1", "1")
    with pytest.raises(DataError, match="different cells"):
        make(rows, classes=[0, 0, 0])
    with pytest.raises(DataError, match="gaps"):
        make(rows, classes=[0, 3, 0])


def test_a_given_label_stands_for_its_members() -> None:
    own = make([("1", "east", ["g1", "*"])], members={"g1": ["B", "A"]})
    assert own.groups == ItemGroups(labels=("g1",), members=(("A", "B"),), of_class=((0,),))
    fed = generalised(people([(1.0, "east", ["A", "B"])]), own, map_rows(people([(1.0, "east", ["A", "B"])]), own))
    assert fed["codes"].to_list() == [["g1"]]


def test_a_class_below_k_is_refused() -> None:
    with pytest.raises(IntegrityError, match="fewer than 2 rows"):
        make([("1", "east", []), ("2", "east", []), ("2", "east", [])], k=2)


@examples(20, 60)
@given(rows=classes)
def test_bytes_read_back_exactly(rows: list[Any]) -> None:
    own = make(rows, classes=range(len(rows)))
    content = own.to_bytes()
    again = SiteMapping.from_bytes(content, schema="s")
    assert again.to_bytes() == content
    assert (again.columns, again.cells, again.groups, again.sizes) == (own.columns, own.cells, own.groups, own.sizes)


def test_another_schema_is_refused_with_exit_code_6() -> None:
    content = make([("1", "east", ["A"])]).to_bytes()
    with pytest.raises(IntegrityError, match="another schema") as refused:
        SiteMapping.from_bytes(content, schema="t")
    assert refused.value.exit_code == 6
    with pytest.raises(IntegrityError, match="another schema"):
        union([make([("1", "east", [])]), make([("1", "east", [])], site="two", schema="t")])
    with pytest.raises(IntegrityError, match="twice"):
        union([make([("1", "east", [])]), make([("1", "east", [])])])
    joint = union([make([("1", "east", [])]), make([("1", "east", []), ("2", "east", [])], data_version="2")])
    assert joint.first_class("one") == 1


CHANGES: list[tuple[str, Any]] = [
    ("format", "other"), ("version", 2), ("k", "2"), ("k", 0), ("k", True), ("sizes", [0]), ("sizes", [5, 5]),
    ("cells", []), ("columns", []), ("labels", []), ("members", [[7]]), ("members", [[-1]]), ("members", [[]]),
    ("of_class", [[3]]), ("of_class", [[0, 0]]), ("of_class", [[-1]]), ("site", None), ("more", 1), ("items", None),
    ("cells", [{"texts": ["[1, "], "of_class": [0]}, {"texts": ["east"], "of_class": [0]}]),
    ("cells", [{"texts": ["<x>"], "of_class": [0]}, {"texts": ["east"], "of_class": [0]}]),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), CHANGES)
def test_malformed_bytes_are_refused(key: str, value: Any) -> None:
    document = json.loads(make([("1", "east", ["A"])]).to_bytes())
    changed = json.dumps(document | {key: value}, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(IntegrityError):
        SiteMapping.from_bytes(changed)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"k":NaN}'])
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(IntegrityError):
        SiteMapping.from_bytes(content)
    spaced = json.dumps(json.loads(make([("1", "east", ["A"])]).to_bytes())).encode()
    with pytest.raises(IntegrityError, match="canonical"):
        SiteMapping.from_bytes(spaced)
