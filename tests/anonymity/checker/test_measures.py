"""Every measure against a slow, obvious reference on small random tables with nulls, and against figures by hand."""

import itertools
import math
from collections import Counter, defaultdict

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance

from kohort.anonymity.checker import sensitive as per_class
from kohort.anonymity.checker.combinations import combine
from kohort.anonymity.checker.measures import (
    k_anonymity,
    km_anonymity,
    l_diversity,
    measure,
    rarest_value,
    satisfies,
    t_closeness,
    unmet,
)
from kohort.errors import ConfigError, DataError

TEXT = st.sampled_from(["x", "y", "z", None])
NUMBER = st.sampled_from([-3, 0, 5, 100, None])
ROWS = st.lists(st.tuples(TEXT, st.sampled_from([1, 2, None]), TEXT, NUMBER), min_size=1, max_size=25)


def frame_of(rows) -> pl.DataFrame:
    schema = {"q": pl.String, "r": pl.Int64, "s": pl.String, "n": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def classes_of(rows, column: int) -> list[list[object]]:
    found = defaultdict(list)
    for row in rows:
        found[row[:2]].append(row[column])
    return list(found.values())


def ordered_values(values) -> list[object]:
    return sorted(set(values), key=lambda value: (value is not None, value))


def slow_emd(members, table, *, ordered: bool) -> float:
    values = ordered_values(table)
    mine = [members.count(value) / len(members) for value in values]
    all_ = [table.count(value) / len(table) for value in values]
    if not ordered:
        return sum(abs(p - q) for p, q in zip(mine, all_, strict=True)) / 2
    if len(values) == 1:
        return 0.0
    places = range(len(values))
    return wasserstein_distance(places, places, mine, all_) / (len(values) - 1)


def slow_disclosure(rows, column: int, *, ordered: bool) -> dict[str, float]:
    table = [row[column] for row in rows]
    q = {value: count / len(table) for value, count in Counter(table).items()}
    worst: dict[str, list[float]] = defaultdict(list)
    for members in classes_of(rows, column):
        p = {value: count / len(members) for value, count in Counter(members).items()}
        worst["l_distinct"].append(len(p))
        worst["l_entropy"].append(math.exp(-sum(share * math.log(share) for share in p.values())))
        falling = sorted(Counter(members).values(), reverse=True)
        worst["recursive_c"].append(falling[0] / sum(falling[1:]) if len(falling) > 1 else math.inf)
        worst["t_emd"].append(slow_emd(members, table, ordered=ordered))
        worst["t_kl"].append(sum(share * math.log(share / q[value]) for value, share in p.items()))
        worst["alpha"].append(max(p.values()))
        gains = {value: max((p.get(value, 0.0) - share) / share, 0.0) for value, share in q.items()}
        worst["beta"].append(max(gains.values()))
        kept = all(gain <= -math.log(q[value]) + 1e-9 for value, gain in gains.items())
        worst["beta_enhanced"].append(max(gains.values()) if kept else math.inf)
        absent = len(p) < len(q)
        worst["delta"].append(math.inf if absent else max(abs(math.log(p[value] / q[value])) for value in q))
    smallest = {"l_distinct", "l_entropy"}
    return {name: min(found) if name in smallest else max(found) for name, found in worst.items()}


@given(ROWS)
def test_every_measure_equals_the_slow_reference(rows) -> None:
    found = measure(frame_of(rows), quasi=["q", "r"], sensitive=["s", "n"])
    sizes = [len(members) for members in classes_of(rows, 2)]
    assert (found.rows, found.classes, found.k) == (len(rows), len(sizes), min(sizes))
    assert found.uniques == sizes.count(1)
    assert found.largest_class == max(sizes)
    assert dict(found.histogram) == Counter(sizes)
    assert found.average_class == pytest.approx(len(rows) / len(sizes))
    slow = [slow_disclosure(rows, 2, ordered=False), slow_disclosure(rows, 3, ordered=True)]
    for one, expected in zip(found.sensitive, slow, strict=True):
        for name, value in expected.items():
            assert getattr(one, name) == pytest.approx(value, abs=1e-12), (one.column, name)
    for name in slow[0]:
        worst = min if name in {"l_distinct", "l_entropy"} else max
        assert getattr(found, name) == pytest.approx(worst(one[name] for one in slow), abs=1e-12)


@given(ROWS, st.integers(1, 4), st.sampled_from([0.5, 1.0, 1.5, 2.0, 4.0]))
def test_recursive_diversity_is_its_definition(rows, least: int, c: float) -> None:
    holds = True
    for members in classes_of(rows, 2):
        falling = sorted(Counter(members).values(), reverse=True)
        holds &= falling[0] < c * sum(falling[least - 1 :])
    rules = {"quasi": ["q", "r"], "sensitive": ["s"], "l": least, "l_kind": "recursive", "c": c}
    assert satisfies(frame_of(rows), **rules) == holds


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(-1e3, 1e3)), min_size=1, max_size=40))
def test_ordered_distance_with_many_values(rows) -> None:
    frame = pl.DataFrame(rows, schema={"q": pl.Int64, "n": pl.Float64}, orient="row")
    table = [number + 0.0 for _, number in rows]
    classes = [[number + 0.0 for key, number in rows if key == one] for one in {key for key, _ in rows}]
    expected = max(slow_emd(members, table, ordered=True) for members in classes)
    assert t_closeness(frame, quasi=["q"], sensitive="n") == pytest.approx(expected, abs=1e-12)


def test_salaries_of_the_t_closeness_paper() -> None:
    # Li, Li, Venkatasubramanian, "t-Closeness", ICDE 2007, section 4.3: for the nine incomes 3k..11k,
    # D[P1, Q] = 0.375 for P1 = {3k, 4k, 5k} and D[P2, Q] = 0.167 for P2 = {6k, 8k, 11k}.
    rows = [("1", pay) for pay in (3, 4, 5)] + [("2", pay) for pay in (6, 8, 11)] + [("3", pay) for pay in (7, 9, 10)]
    frame = pl.DataFrame(rows, schema=["q", "pay"], orient="row")
    counted = combine(frame.lazy(), quasi=["q"], sensitive=["pay"])
    (part,) = counted.parts()
    distances = per_class.emd(per_class.spread(part, "pay", counted.values("pay")))
    of = dict(zip(part.sensitive["pay"], distances[part.classes.of_row], strict=True))
    assert [of[3], of[5], of[6], of[11]] == pytest.approx([0.375, 0.375, 0.167, 0.167], abs=5e-4)
    assert t_closeness(frame, quasi=["q"], sensitive="pay") == pytest.approx(0.375)


def test_null_is_one_value_of_its_own() -> None:
    frame = pl.DataFrame({"q": [None, None, "", ""], "s": [None, None, None, "a"]})
    found = measure(frame, quasi=["q"], sensitive=["s"])
    assert (found.classes, found.k, found.l_distinct) == (2, 2, 1)


def test_sensitive_columns_of_any_type() -> None:
    frame = pl.DataFrame({"q": [1, 1, 2, 2], "b": [True, False, None, True]})
    frame = frame.with_columns(d=pl.date(2020, 1, pl.Series([1, 2, 2, 1])))
    found = measure(frame, quasi=["q"], sensitive=["b", "d"])
    assert [one.l_distinct for one in found.sensitive] == [2, 2]


def test_frames_of_other_libraries_and_nan_as_null() -> None:
    frame = pd.DataFrame({"q": [1.5, float("nan"), float("nan")], "s": ["a", "b", "c"]})
    assert k_anonymity(frame, quasi=["q"]) == 1
    assert measure(frame, quasi=["q"]).classes == 2
    assert measure(pa.table({"q": [1, 1]}), quasi=["q"]).k == 2


def test_without_sensitive_column_there_is_no_l_and_no_t() -> None:
    mapping = measure(pl.DataFrame({"q": [1, 1]}), quasi=["q"]).to_mapping()
    absent = ("l_distinct", "l_entropy", "t_emd", "t_kl", "alpha", "beta", "delta", "recursive", "km", "m")
    assert all(mapping[name] is None for name in absent)
    assert mapping["histogram"] == {"2": 1}


def test_infinite_figures_are_null_in_the_mapping() -> None:
    found = measure(pl.DataFrame({"q": [1, 1, 2], "s": ["a", "b", "a"]}), quasi=["q"], sensitive=["s"])
    assert found.delta == math.inf
    assert found.to_mapping()["delta"] is None
    assert found.to_mapping()["recursive"] == {"l": 2, "c_above": None}
    assert found.to_mapping()["sensitive"]["s"]["l_distinct"] == 1


def test_no_quasi_identifier_makes_one_class() -> None:
    assert measure(pl.DataFrame({"s": ["a", "b"]}), quasi=[], sensitive=["s"]).k == 2


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ({"k": 2}, None),
        ({"k": 3}, "k is 2, not 3"),
        ({"l": 2}, "distinct l .* is 1, not >= 2"),
        ({"l": 1}, None),
        ({"l": 1.5, "l_kind": "entropy"}, "entropy l"),
        ({"l": 2, "l_kind": "recursive", "c": 2.0}, "1 classes are not recursively"),
        ({"t": 0.25}, None),
        ({"t": 0.2}, r"t \(EMD\) of column 's' is 0.25"),
        ({"t": 0.2, "t_kind": "kl"}, r"t \(KL\)"),
        ({"t": 0.29, "t_kind": "kl"}, None),
        ({"alpha": 0.9}, "alpha"),
        ({"alpha": 1.0}, None),
        ({"beta": 1.0}, None),
        ({"beta": 0.3}, "basic beta"),
        ({"beta": 5.0, "beta_kind": "enhanced"}, "enhanced beta .* is inf"),
        ({"delta": 9.0}, "delta .* is inf"),
    ],
)
def test_rules(rules, problem: str | None) -> None:
    # Class 1: a, a (p(a) = 1); class 2: a, b. Table: a 3/4, b 1/4.
    frame = pl.DataFrame({"q": [1, 1, 2, 2], "s": ["a", "a", "a", "b"]})
    found = unmet(frame, quasi=["q"], sensitive=["s"], **rules)
    assert satisfies(frame, quasi=["q"], sensitive=["s"], **rules) == (problem is None)
    if problem is None:
        assert found == ()
    else:
        assert len(found) == 1
        with pytest.raises(DataError, match=problem):
            raise DataError(found[0])


@pytest.mark.parametrize(
    ("rules", "error", "message"),
    [
        ({"quasi": ["qq"]}, DataError, "no column 'qq'. Did you mean 'q'"),
        ({"quasi": "q"}, ConfigError, "one string"),
        ({"quasi": ["q"], "l": 2}, ConfigError, "need a sensitive column"),
        ({"quasi": ["q"], "items": "i"}, ConfigError, "m and items"),
        ({"quasi": ["q"], "sensitive": ["s"], "l": 2, "l_kind": "recursive"}, ConfigError, "needs c"),
        (
            {"quasi": ["q"], "sensitive": ["s"], "l": -1, "l_kind": "recursive", "c": 2.0},
            ConfigError,
            "l of at least 1",
        ),
        ({"quasi": ["q"], "sensitive": ["s"], "t": 1, "t_kind": "kll"}, ConfigError, "Did you mean 'kl'"),
        ({"quasi": ["i"]}, DataError, "hold lists: i"),
        ({"quasi": ["q"], "sensitive": ["i"]}, DataError, "holds lists"),
    ],
)
def test_bad_requests_say_what_to_do(rules, error, message: str) -> None:
    frame = pl.DataFrame({"q": [1, 2], "s": ["a", "b"], "i": [["a"], ["b"]]})
    with pytest.raises(error, match=message):
        unmet(frame, **rules)


def test_a_table_without_rows_is_an_error() -> None:
    with pytest.raises(DataError, match="no rows"):
        measure(pl.DataFrame({"q": []}), quasi=["q"])


def test_l_diversity_by_kind() -> None:
    frame = pl.DataFrame({"q": [1, 1, 1, 1], "s": ["a", "b", "c", "d"]})
    assert l_diversity(frame, quasi=["q"], sensitive="s") == 4
    assert l_diversity(frame, quasi=["q"], sensitive="s", kind="entropy") == pytest.approx(4.0)
    with pytest.raises(ConfigError, match="c and l"):
        l_diversity(frame, quasi=["q"], sensitive="s", kind="recursive")


ITEM_ROWS = st.lists(
    st.tuples(st.sampled_from([1, None]), st.lists(st.sampled_from("abcde"), max_size=4)), min_size=1, max_size=15
)


def slow_km(rows, m: int) -> int:
    best = len(rows)
    for key, items in rows:
        for size in range(m + 1):
            for known in itertools.combinations(sorted(set(items)), size):
                best = min(best, sum(other == key and set(known) <= set(held) for other, held in rows))
    return best


@pytest.mark.parametrize(("batch", "counters"), [(1, 0), (5, 1 << 20), (1 << 23, 0), (1 << 23, -(1 << 40))])
@given(rows=ITEM_ROWS, m=st.integers(1, 4))
def test_km_equals_the_slow_reference(batch: int, counters: int, rows, m: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kohort.anonymity.checker.items.COUNTERS", counters)
        patch.setattr("kohort.anonymity.checker.items.BATCH", batch)
        frame = pl.DataFrame(rows, schema={"q": pl.Int64, "i": pl.List(pl.String)}, orient="row")
        assert km_anonymity(frame, quasi=["q"], items="i", m=m) == slow_km(rows, m)


@pytest.mark.parametrize(("m", "expected"), [(1, 14), (2, 7), (3, 3), (4, 1), (5, 1)])
def test_km_falls_with_every_item_the_attacker_knows(m: int, expected: int) -> None:
    # Each subset of a, b, c, d once, each pair and each three of them twice: the rows that hold m given items are the
    # copies of the subsets that contain them, as 1 + 2 * 3 + 2 * 3 + 1 for one item.
    copies = {1: 1, 2: 2, 3: 2, 4: 1}
    rows = [list(one) for size in copies for one in itertools.combinations("abcd", size) for _ in range(copies[size])]
    assert expected == slow_km([(1, row) for row in rows], m)
    assert km_anonymity(pl.DataFrame({"i": rows}), items="i", m=m) == expected


def test_items_as_text_and_from_several_columns() -> None:
    frame = pl.DataFrame(
        {"i": ["a;b", "b; a", None, "a;b;"], "j": ["c|d", "c", "c", ""], "l": [["c"], ["c"], [], None]}
    )
    assert km_anonymity(frame, items="i", m=2) == 3
    assert km_anonymity(frame, items="j", m=2) == 1
    assert km_anonymity(frame, items=["i", "l"], m=3) == 2
    assert km_anonymity(frame, items="l", m=1) == 2


def test_km_is_part_of_measure_and_of_the_rules() -> None:
    frame = pl.DataFrame({"q": [1, 1, 1], "i": [["a"], ["a"], ["a", "b"]]})
    found = measure(frame, quasi=["q"], items="i", m=2)
    assert (found.k, found.km, found.m) == (3, 1, 2)
    assert unmet(frame, quasi=["q"], items="i", m=2, k=2) == (
        "some combination of up to 2 items points to 1 rows, not 2",
    )
    with pytest.raises(ConfigError, match="m is 0"):
        measure(frame, quasi=["q"], items="i", m=0)
    with pytest.raises(DataError, match="no item sets"):
        measure(frame, quasi=["i"][:0], items="q")


@given(rows=ROWS)
def test_categories_are_judged_as_their_texts(rows) -> None:
    texts = frame_of(rows)
    coded = texts.with_columns(pl.col("q", "s").cast(pl.Categorical))
    for frame in (coded, coded.with_columns(pl.col("s").cast(pl.String))):
        assert measure(frame, quasi=["q", "r"], sensitive=["s", "n"]) == measure(
            texts, quasi=["q", "r"], sensitive=["s", "n"]
        )


def test_rows_that_say_nobody_are_refused() -> None:
    table = pl.DataFrame({"q": ["x", "x"], "i": [["a"], ["a"]], "who": ["p", None]})
    with pytest.raises(DataError, match="1 rows do not say in column 'who' whom they are about"):
        km_anonymity(table, items="i", persons="who")
    with pytest.raises(DataError, match="whom they are about"):
        rarest_value(table, "q", "who")


def test_the_rarest_value_counts_rows_or_persons() -> None:
    table = pl.DataFrame({"v": [1, 1, 1, 2, 2], "who": ["a", "a", "a", "b", "c"]})
    assert rarest_value(table, "v") == 2
    assert rarest_value(table, "v", "who") == 1
