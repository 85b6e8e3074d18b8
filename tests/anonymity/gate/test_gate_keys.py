"""Keys: exact grouping by every strategy, texts that agree between sites, and the named key functions."""

from __future__ import annotations

import datetime
import sys
import types
from importlib.metadata import EntryPoint

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.anonymity.gate import keys as gate_keys
from kohort.anonymity.gate.keys import GateKey, Keys, group_keys, key_version
from kohort.errors import ConfigError, DataError

CELLS = {
    "number": st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.0, 2.5, 1e300, 2.0**53])),
    "text": st.one_of(st.none(), st.sampled_from(["", "a", "ab", "1", "é"])),
    "flag": st.one_of(st.none(), st.booleans()),
}
TYPES = {"number": pl.Float64, "text": pl.String, "flag": pl.Boolean}
STRATEGIES = [gate_keys._group_by_value, gate_keys._group_by_hash, gate_keys._group_in_parts]


@st.composite
def frames(draw) -> pl.DataFrame:
    rows = draw(st.lists(st.tuples(*CELLS.values()), min_size=1, max_size=30))
    return pl.DataFrame(rows, schema=TYPES, orient="row")


def slow_partition(frame: pl.DataFrame) -> list[int]:
    """The first equal row of every row; Python's equality makes the two zeros one and null a value."""
    rows = frame.rows()
    return [rows.index(row) for row in rows]


def partition(groups: gate_keys.Groups) -> list[int]:
    return groups.to_rows(groups.first_rows).tolist()


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(frame=frames())
def test_every_strategy_finds_the_same_groups(strategy, frame) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate_keys, "PART_ROWS", 4)
        groups = strategy(frame)
    assert partition(groups) == slow_partition(frame)
    assert groups.sizes.tolist() == np.bincount(groups.codes, minlength=groups.count).tolist()
    assert groups.first_rows[groups.codes].tolist() == slow_partition(frame)


@given(frames())
def test_rows_that_share_a_hash_stay_apart(frame) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate_keys, "_row_hashes", lambda values: values.hash_rows() % 2)
        groups = gate_keys._group_by_hash(frame)
    assert partition(groups) == slow_partition(frame)


def test_long_tables_take_the_right_path(monkeypatch) -> None:
    monkeypatch.setattr(gate_keys, "PART_ROWS", 5_000)
    random = np.random.default_rng(1)
    for distinct in (7, 10**9):
        frame = pl.DataFrame({"a": random.integers(0, distinct, 12_000), "row": random.integers(0, 2, 12_000)})
        groups = gate_keys.group_rows(frame)
        expected = frame.select(pl.len().over(["a", "row"])).to_series().to_numpy()
        assert (groups.to_rows(groups.sizes) == expected).all()
        assert groups.count == frame.n_unique()
        assert (groups.members is None) == (distinct == 7)


@given(frames())
def test_texts_tell_groups_apart_and_agree_between_sites(frame) -> None:
    keys = group_keys(frame, frame.columns)
    assert len(set(keys.texts)) == keys.groups == len(set(slow_partition(frame)))
    assert keys.rows == frame.height
    other_site = group_keys(frame.reverse(), frame.columns)
    assert sorted(other_site.texts) == sorted(keys.texts)
    of_rows = [keys.texts[code] for code in keys.codes]
    assert of_rows == [other_site.texts[code] for code in other_site.codes][::-1]


def test_joined_texts_are_unambiguous() -> None:
    frame = pl.DataFrame({"a": ["x", "xy", "", None, ""], "b": ["yz", "z", None, "", ""]})
    assert len(set(group_keys(frame, ["a", "b"]).texts)) == 5


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pl.Series([5, None]), pl.Series([5.0, None])),
        (pl.Series([5], dtype=pl.UInt8), pl.Series([5], dtype=pl.Int64)),
        (pl.Series([2**53]), pl.Series([2.0**53])),
        (pl.Series([0.0]), pl.Series([-0.0])),
        (pl.Series([None], dtype=pl.Int64), pl.Series([float("nan")])),
        (pl.Series(["a"]), pl.Series(["a"], dtype=pl.Categorical)),
        (pl.Series([datetime.date(2020, 2, 29)]), pl.Series(["2020-02-29"])),
        (
            pl.Series([datetime.datetime(2020, 1, 1, 10)], dtype=pl.Datetime("ms")),
            pl.Series([datetime.datetime(2020, 1, 1, 10)], dtype=pl.Datetime("ns")),
        ),
        (
            pl.Series([datetime.datetime(2020, 1, 1, 10)]).dt.replace_time_zone("UTC"),
            pl.Series([datetime.datetime(2020, 1, 1, 11)]).dt.replace_time_zone("Europe/Berlin"),
        ),
        (
            pl.Series([datetime.timedelta(seconds=1)], dtype=pl.Duration("ms")),
            pl.Series([datetime.timedelta(seconds=1)], dtype=pl.Duration("us")),
        ),
    ],
)
def test_the_same_value_has_the_same_text_whatever_its_type(one, other) -> None:
    texts = [group_keys(column.to_frame("a"), ["a"]).texts for column in (one, other)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "values",
    [
        pl.Series([0, 1, 1_000], dtype=pl.Datetime("ns")),
        pl.Series([datetime.time(1), datetime.time(1, 0, 0, 100), datetime.time(10)]),
        pl.Series([2**53, 2**53 + 1, 2**53 + 2]),
        pl.Series([0.1, 0.1 + 2**-56, 0.30000000000000004]),
    ],
)
def test_close_values_have_different_texts(values) -> None:
    assert len(set(group_keys(values.to_frame("a"), ["a"]).texts)) == 3


def test_bins_cut_as_a_schema_does() -> None:
    frame = pl.DataFrame({"age": [20, 21, 40, 41, None], "sex": ["f"] * 5})
    keys = group_keys(frame, ["age", "sex"], key="bins:age=20,40")
    assert partition(keys.partition) == [0, 1, 1, 3, 4]
    coarse = group_keys(frame.with_columns(pl.col("age") * 1.0), ["age", "sex"], key="bins:age=20,40")
    assert coarse.texts == keys.texts


def test_mask_keeps_leading_characters() -> None:
    frame = pl.DataFrame({"zip": ["12345", "12399", "1", None], "number": [12345, 12399, 1, None]})
    assert partition(group_keys(frame, ["zip"], key="mask:zip=3").partition) == [0, 0, 2, 3]
    assert (
        group_keys(frame, ["number"], key="mask:number=3").texts == group_keys(frame, ["zip"], key="mask:zip=3").texts
    )
    assert group_keys(frame, ["zip"], key="mask:zip=0").groups == 2


def test_several_key_functions_in_one_name() -> None:
    frame = pl.DataFrame({"age": [1, 5, 9], "zip": ["12", "13", "13"]})
    assert group_keys(frame, ["age", "zip"], key="bins:age=6; mask:zip=1").codes.tolist() == [0, 0, 1]
    assert group_keys(frame, ["age", "zip"], key="exact").groups == 3


@pytest.mark.parametrize(
    "key",
    [
        lambda frame: frame["a"] // 10,
        lambda frame: frame["a"].to_numpy() // 10,
        lambda frame: np.stack([frame["a"].to_numpy() // 10, np.zeros(3, int)], axis=1),
        lambda frame: [value // 10 for value in frame["a"]],
        lambda frame: [(value // 10, None, b"x") for value in frame["a"]],
        lambda frame: np.array([("few", value // 10) for value in frame["a"]], dtype=object),
        lambda frame: frame.select(pl.col("a") // 10),
    ],
)
def test_a_function_of_ones_own(key) -> None:
    keys = group_keys(pl.DataFrame({"a": [11, 12, 25], "hidden": [1, 2, 3]}), ["a"], key=key)
    assert partition(keys.partition) == [0, 0, 2]
    assert len(set(keys.texts)) == 2


def test_python_values_and_columns_have_the_same_texts() -> None:
    frame = pl.DataFrame({"a": [1.0, 2.5, None]})
    as_list = group_keys(frame, ["a"], key=lambda columns: columns["a"].to_list())
    assert as_list.texts == group_keys(frame, ["a"]).texts
    whole = group_keys(frame, ["a"], key=lambda columns: [1, 2.5, float("nan")])
    assert whole.texts == as_list.texts
    days = pl.DataFrame({"a": [datetime.date(2020, 2, 29), None]})
    assert group_keys(days, ["a"], key=lambda columns: columns["a"].to_list()).texts == group_keys(days, ["a"]).texts
    truths = group_keys(frame, ["a"], key=lambda columns: [True, False, True])
    assert truths.texts == group_keys(pl.DataFrame({"a": ["true", "false", "true"]}), ["a"]).texts


def test_a_key_function_sees_the_quasi_identifiers_alone() -> None:
    seen = []

    def key(columns: pl.DataFrame) -> pl.Series:
        seen.extend(columns.columns)
        return columns.to_series()

    group_keys(pl.DataFrame({"a": [1], "secret": [2]}), ["a"], key=key)
    assert seen == ["a"]


def test_other_kinds_of_frames() -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    assert group_keys(pandas.DataFrame({"a": [1, 1, 2]}), ["a"]).codes.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("bin:a=1", ConfigError, "Did you mean 'bins'"),
        ("bins:a", ConfigError, "rising cut points"),
        ("bins:a=", ConfigError, "rising cut points"),
        ("bins:a=2,1", ConfigError, "rising cut points"),
        ("bins:a=1,inf", ConfigError, "rising cut points"),
        ("bins:b=1", ConfigError, "no quasi-identifier"),
        ("bins:t=1", DataError, "has none in 2 rows"),
        ("mask:t", ConfigError, "a column and a length"),
        ("mask:t=-1", ConfigError, "a column and a length"),
        ("mask:x=1", ConfigError, "no quasi-identifier"),
        ("exact:a", ConfigError, "nothing after a colon"),
        ("os.system", ConfigError, "unknown key function"),
        (lambda frame: [1], ConfigError, "1 keys for 2 rows"),
        (lambda frame: 7, ConfigError, "no list of plain values"),
        (lambda frame: [{1}, {2}], ConfigError, "no list of plain values"),
        (lambda frame: [datetime.datetime(2020, 1, 1)] * 2, ConfigError, "no list of plain values"),
        (lambda frame: [1.0, float("inf")], DataError, "infinite"),
    ],
)
def test_errors(key, error, message) -> None:
    frame = pl.DataFrame({"a": [1, 2], "t": ["zebra", "zulu"]})
    with pytest.raises(error, match=message) as caught:
        group_keys(frame, ["a", "t"], key=key)
    assert "zebra" not in str(caught.value)


def test_an_installed_key_function_goes_by_its_name(monkeypatch) -> None:
    made = GateKey(name="tens", make=lambda argument: lambda columns: columns.to_series() // int(argument or 10))

    class Installed(EntryPoint):
        def load(self) -> GateKey:
            return made

    point = Installed(name="tens", value="package:KEY", group=gate_keys.ENTRY_POINTS)
    monkeypatch.setattr("kohort.registry.entry_points", lambda group: [point] if group == point.group else [])
    gate_keys._kinds.cache_clear()
    try:
        assert group_keys(pl.DataFrame({"a": [1, 2, 11]}), ["a"], key="tens").codes.tolist() == [0, 0, 1]
        assert group_keys(pl.DataFrame({"a": [1, 2, 11]}), ["a"], key="tens:2").groups == 3
    finally:
        gate_keys._kinds.cache_clear()


def test_keys_of_columns() -> None:
    assert Keys.of(pl.DataFrame({"row": [1, 1], "key0": [2, 2]})).groups == 1


def test_a_similarity_is_about_the_shape_of_rows_of_numbers() -> None:
    random = np.random.default_rng(0)
    one, other = random.random(16), random.random(16)
    rows = pl.DataFrame(np.stack([one, one + 1e-12, one + 3.0, 1 - one, other]))
    codes = group_keys(rows, rows.columns, key="similarity:12").codes.tolist()
    assert codes[0] == codes[1] == codes[2]
    assert len({codes[0], codes[3], codes[4]}) == 3
    again = group_keys(rows.reverse(), rows.columns, key="similarity:12")
    assert sorted(again.texts) == sorted(group_keys(rows, rows.columns, key="similarity:12").texts)
    gaps = pl.DataFrame({"a": [1.0, 1.0, None], "b": [2, None, None], "c": [4, 4, None]})
    assert group_keys(gaps, gaps.columns, key="similarity:8").rows == 3
    with pytest.raises(DataError, match="these columns hold none: word"):
        group_keys(pl.DataFrame({"word": ["a"], "a": [1]}), ["word", "a"], key="similarity:8")
    for wrong in ("similarity", "similarity:0", "similarity:65", "similarity:x"):
        with pytest.raises(ConfigError, match="number of planes"):
            group_keys(gaps, ["a"], key=wrong)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("function:", "named by module and name"),
        ("function:kohort", "named by module and name"),
        ("function::NAME", "named by module and name"),
        ("function:kohort.no-module:NAME", "named by module and name"),
        ("function:kohort.errors:not-a-name", "named by module and name"),
        ("function:no_such_module_here:KEY", "is not installed here"),
        ("function:kohort.errors:nearest", "is no key function"),
        ("function:kohort.errors:NOTHING", "is no key function"),
    ],
)
def test_a_key_function_of_a_package_is_named_in_one_way(key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        group_keys(pl.DataFrame({"a": [1, 2]}), ["a"], key=key)


def test_the_version_of_a_key_is_that_of_the_files_of_functions_from_outside(monkeypatch, tmp_path) -> None:
    home = types.ModuleType("key_of_a_test")
    home.__file__ = str(tmp_path / "key_of_a_test.py")
    source = "from kohort.anonymity.gate.keys import GateKey\n\ndef make(text):\n    return lambda frame: frame\n\n"
    (tmp_path / "key_of_a_test.py").write_text(source)
    exec(source + "KEY = GateKey(name='outside', make=make)\n", home.__dict__)  # noqa: S102 - a module made here
    monkeypatch.setitem(sys.modules, "key_of_a_test", home)
    key = "function:key_of_a_test:KEY"
    assert key_version("exact") == key_version("bins:a=1; mask:b=2") == ""
    first = key_version(key)
    assert len(first) == 32
    assert key_version(f"exact; {key}") == first != key_version(f"{key}; {key}")
    (tmp_path / "key_of_a_test.py").write_text(source + "# changed\n")
    assert key_version(key) != first
    del home.__file__
    with pytest.raises(ConfigError, match="the file of the key function 'outside' cannot be found"):
        key_version(key)


def test_a_mask_longer_than_any_text_is_an_error_of_the_option() -> None:
    with pytest.raises(ConfigError, match="a mask keeps at most"):
        group_keys(pl.DataFrame({"zip": ["1145"]}), ["zip"], key="mask:zip=99999999999999999999")
