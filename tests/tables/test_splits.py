import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from kohort.errors import ConfigError, DataError
from kohort.tables.draws import spread_by_dirichlet
from kohort.tables.splits import assign_sites, assignment_of_parts


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def table(rows: int, seed: int = 0) -> pl.DataFrame:
    draw = rng(seed)
    return pl.DataFrame(
        {
            "age": draw.integers(17, 91, rows),
            "state": draw.choice(["AK", "NY", "TX"], rows),
            "y": draw.choice(["no", "yes", "maybe"], rows, p=[0.6, 0.3, 0.1]),
        }
    )


@examples(20, 60)
@given(
    rows=st.integers(1, 300),
    count=st.integers(1, 12),
    clusters=st.none() | st.integers(1, 4),
    split=st.sampled_from(["iid", "dirichlet", "sorted", "interval:age"]),
    min_rows=st.integers(1, 4),
    low_risk=st.none() | st.floats(0, 1),
    alpha=st.sampled_from([0.01, 0.5, [5.0, 5.0, 1.0], [0.1, 100.0]]),
)
def test_every_row_has_a_site_and_every_site_its_minimum(
    rows, count, clusters, split, min_rows, low_risk, alpha
) -> None:
    frame = table(rows)
    options = {
        "split": split, "count": count, "clusters": clusters, "target": "y",
        "min_rows": min_rows, "low_risk": low_risk, "alpha": alpha,
    }  # fmt: skip
    sites = count * (clusters or 1)
    if rows < sites * min_rows:
        with pytest.raises(DataError, match="too few"):
            assign_sites(frame, generator=rng(), **options)
        return
    found = assign_sites(frame, generator=rng(), **options)
    assert len(found.site) == rows
    assert found.sizes.min() >= min_rows
    assert found.sizes.sum() == rows
    assert len(set(found.names)) == len(found.names)
    if split.startswith("interval"):
        assert len(found.names) <= sites
        assert bool(found.notes) == (len(found.names) < sites)
    else:
        assert len(found.names) == sites
    if clusters is not None:
        assert found.cluster is not None
        assert len(found.cluster) == len(found.names)
    if low_risk is not None:
        assert found.low_risk is not None
        marked = np.bincount(found.site, weights=found.low_risk, minlength=len(found.names))
        assert marked.tolist() == np.rint(low_risk * found.sizes).tolist()
    again = assign_sites(frame, generator=rng(), **options)
    assert np.array_equal(again.site, found.site)
    assert sorted(np.concatenate(found.rows()).tolist()) == list(range(rows))


def test_iid_and_sorted_parts_are_equal() -> None:
    frame = table(103)
    for split in ("iid", "sorted"):
        sizes = assign_sites(frame, split=split, count=10, target="y", generator=rng()).sizes
        assert sizes.max() - sizes.min() <= 1


def test_iid_depends_on_the_generator() -> None:
    frame = table(100)
    first, second = (assign_sites(frame, split="iid", count=5, generator=rng(seed)).site for seed in (1, 2))
    assert not np.array_equal(first, second)


def test_sorted_is_pathological() -> None:
    frame = pl.DataFrame({"y": ["b", "a"] * 50})
    found = assign_sites(frame, split="sorted", count=2, target="y", generator=rng())
    assert [set(frame["y"].gather(rows).to_list()) for rows in found.rows()] == [{"a"}, {"b"}]


def test_intervals_have_equal_widths_and_names() -> None:
    frame = pl.DataFrame({"age": list(range(17, 91))})
    found = assign_sites(frame, split="width:age", count=10, generator=rng())
    # Edges every 7.3 years from 17 to 90.
    expected = [min(int((age - 17) / 7.3), 9) for age in range(17, 91)]
    assert found.site.tolist() == expected
    assert found.names[:2] == ("age 17-24", "age 25-31")
    assert found.names[-1] == "age 83-90"
    assert found.notes == ()


def test_intervals_have_about_equal_rows_and_never_part_equal_values() -> None:
    values = np.random.default_rng(3).integers(17, 91, size=5000)
    found = assign_sites(pl.DataFrame({"age": values}), split="interval:age", count=10, generator=rng())
    assert len(found.names) == 10
    assert found.sizes.min() > 300
    assert found.sizes.max() < 700
    for site in range(10):
        inside = values[found.site == site]
        assert not np.isin(inside, values[found.site != site]).any()
        low, high = map(int, found.names[site].removeprefix("age ").split("-"))
        assert low <= inside.min() <= inside.max() <= high


def test_an_empty_interval_joins_the_next() -> None:
    frame = pl.DataFrame({"x": [0.0, 1.0, 2.0, 9.0, 10.0]})
    found = assign_sites(frame, split="width:x", count=5, generator=rng())
    assert found.sizes.tolist() == [2, 1, 2]
    assert "2 intervals" in found.notes[0]
    assert found.names == ("x 0-2", "x 2-4", "x 4-10")


def test_a_constant_column_is_one_site() -> None:
    frame = pl.DataFrame({"x": [5, 5, 5]})
    found = assign_sites(frame, split="width:x", count=3, generator=rng())
    assert found.sizes.tolist() == [3]


def test_natural_columns() -> None:
    frame = table(60)
    found = assign_sites(frame, split="column:state", count=1, generator=rng())
    assert found.names == ("state=AK", "state=NY", "state=TX")
    assert [set(frame["state"].gather(rows)) for rows in found.rows()] == [{"AK"}, {"NY"}, {"TX"}]
    with pytest.raises(DataError, match="3 of 3 values"):
        assign_sites(frame, split="column:state", count=1, generator=rng(), min_rows=60)
    numbers = pl.DataFrame({"c": [10, 9, 10]})
    assert assign_sites(numbers, split="column:c", count=1, generator=rng()).names == ("c=9", "c=10")


@pytest.mark.parametrize("split", ["iid", "dirichlet", "sorted", "interval:age"])
@pytest.mark.parametrize(("clusters", "column"), [("column:state", "state"), ("labels", "y")])
def test_natural_clusters_keep_their_rows(split: str, clusters: str, column: str) -> None:
    frame = table(200)
    found = assign_sites(frame, split=split, count=2, target="y", clusters=clusters, generator=rng(), min_rows=2)
    assert found.cluster is not None
    codes = frame[column].rank("dense").to_numpy() - 1
    assert np.array_equal(found.cluster[found.site], codes)
    assert len(found.names) == 6
    assert found.names[0].startswith(f"{column}=")


def test_small_alpha_is_skewed_and_large_alpha_is_even() -> None:
    frame = pl.DataFrame({"y": ["a", "b"] * 5000})
    is_a = (frame["y"] == "a").to_numpy()

    def spread(alpha: float) -> float:
        found = assign_sites(frame, split="dirichlet", count=5, target="y", alpha=alpha, generator=rng())
        shares = [is_a[rows].mean() for rows in found.rows()]
        return float(np.std(shares))

    assert spread(0.1) > 0.2
    assert spread(10_000) < 0.02


def test_the_dirichlet_spread_equals_a_loop_over_cells() -> None:
    """The reference cuts each class of each parent at the cumulative shares, one by one."""
    draw = rng(3)
    parent, classes = draw.integers(0, 3, 500), draw.integers(0, 4, 500)
    got = spread_by_dirichlet(parent, classes, 5, 0.7, rng(9))
    again = rng(9)
    gammas = again.standard_gamma(0.7, size=(12, 5))
    for cell in range(12):
        rows = np.flatnonzero(parent * 4 + classes == cell)
        cuts = np.cumsum(gammas[cell] / gammas[cell].sum())
        expected = [0] * 5
        for rank in range(len(rows)):
            expected[min(int((cuts < (rank + 0.5) / len(rows)).sum()), 4)] += 1
        assert np.bincount(got[rows] - parent[rows] * 5, minlength=5).tolist() == expected
        assert np.array_equal(got[rows] // 5, parent[rows])


def test_the_minimum_moves_rows_from_the_largest_and_says_so() -> None:
    frame = table(400)
    plain = assign_sites(frame, split="dirichlet", count=20, target="y", alpha=0.1, generator=rng(4))
    raised = assign_sites(frame, split="dirichlet", count=20, target="y", alpha=0.1, generator=rng(4), min_rows=10)
    assert plain.sizes.min() < 10 <= raised.sizes.min()
    assert "moved" in raised.notes[0]
    assert "reach 10 rows" in raised.notes[0]
    # Only sites above the common level give rows.
    unchanged = (plain.sizes >= 10) & (plain.sizes <= raised.sizes.max() - 1)
    assert np.array_equal(plain.sizes[unchanged], raised.sizes[unchanged])


def test_low_risk_is_skewed_by_its_alpha_only_when_given() -> None:
    frame = pl.DataFrame({"y": ["a", "b"] * 4000})
    is_a = (frame["y"] == "a").to_numpy()

    def skew(alpha) -> float:
        found = assign_sites(frame, split="iid", count=8, target="y", alpha=alpha, low_risk=0.4, generator=rng())
        assert found.low_risk is not None
        return float(np.std([is_a[rows][found.low_risk[rows]].mean() for rows in found.rows()]))

    assert skew(5.0) < 0.05
    assert skew([5.0, 5.0, 0.5]) > 0.1


def test_a_numeric_target_is_spread_by_tenths() -> None:
    frame = pl.DataFrame({"y": np.linspace(0, 1, 1000)})
    found = assign_sites(frame, split="dirichlet", count=4, target="y", alpha=0.1, generator=rng())
    means = [frame["y"].gather(rows).mean() for rows in found.rows()]
    assert np.std(means) > 0.05


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"split": "dirichlett"}, ConfigError, "dirichlet"),
        ({"split": "interval"}, ConfigError, "interval:COLUMN"),
        ({"split": "iid:age"}, ConfigError, "unknown split"),
        ({"split": "interval:agee"}, DataError, "'age'"),
        ({"split": "column:sttate"}, DataError, "'state'"),
        ({"split": "interval:state"}, ConfigError, "not a number"),
        ({"split": "dirichlet", "target": None}, ConfigError, "needs a target"),
        ({"split": "sorted", "target": "yy"}, DataError, "no target column"),
        ({"count": 0}, ConfigError, "at least 1"),
        ({"clusters": "column:none"}, DataError, "cluster by"),
        ({"clusters": "state"}, ConfigError, "unknown clusters"),
        ({"alpha": -1.0}, ConfigError, "alpha"),
        ({"alpha": [1, 1, 1, 1]}, ConfigError, "alpha"),
        ({"low_risk": 1.5}, ConfigError, "low_risk"),
        ({"count": 31}, DataError, "30 rows are too few for 31 sites"),
        ({"clusters": "column:state", "count": 25}, DataError, r"of cluster 1 of 3 by 'state'"),
    ],
)
def test_bad_requests(options, error, message) -> None:
    arguments = {"split": "iid", "count": 3, "target": "y", **options}
    with pytest.raises(error, match=message):
        assign_sites(table(30), generator=rng(), **arguments)


def test_missing_values_cannot_be_split_by() -> None:
    frame = pl.DataFrame({"x": [1, None, 3], "y": ["a", None, "b"]})
    for split in ("interval:x", "column:y", "dirichlet"):
        with pytest.raises(DataError, match="missing in 1 rows"):
            assign_sites(frame, split=split, count=2, target="y", generator=rng())


def test_parts() -> None:
    found = assignment_of_parts([2, 3], ["a", "b"])
    assert found.site.tolist() == [0, 0, 1, 1, 1]
    with pytest.raises(DataError, match="without rows: b"):
        assignment_of_parts([2, 0], ["a", "b"])
    with pytest.raises(ConfigError):
        assignment_of_parts([2, 1], ["a", "a"])


def visits(persons: int, seed: int = 0) -> tuple[pl.DataFrame, np.ndarray]:
    """Persons with one to nine rows each, in a random order, and the person of each row."""
    draw = rng(seed)
    of_row = draw.permutation(np.repeat(np.arange(persons), draw.integers(1, 10, persons)))
    return table(len(of_row), seed), of_row


@pytest.mark.parametrize("clusters", [None, 2])
@pytest.mark.parametrize(("split", "alpha"), [("iid", 0.5), ("dirichlet", 0.3), ("dirichlet", 100.0)])
def test_whole_persons_are_dealt_out(split: str, alpha: float, clusters: int | None) -> None:
    frame, persons = visits(400)
    options = {"split": split, "count": 4, "alpha": alpha, "clusters": clusters, "target": "y", "min_rows": 100}
    found = assign_sites(frame, generator=rng(), persons=persons, **options)
    pairs = np.unique(np.stack([persons, found.site]), axis=1)
    assert pairs.shape[1] == 400  # one site for each person
    assert found.sizes.min() >= 100
    assert found.sizes.sum() == frame.height
    if split == "iid":
        assert np.ptp(found.sizes) <= 18  # within the rows of a person or two
    again = assign_sites(frame, generator=rng(), persons=persons, **options)
    assert (again.site == found.site).all()


def test_a_person_of_many_rows_may_not_take_what_others_need() -> None:
    rows = np.array([1000, *[10] * 12])
    persons = np.repeat(np.arange(13), rows)
    frame = table(len(persons))
    found = assign_sites(frame, split="iid", count=4, min_rows=30, generator=rng(), persons=persons)
    assert sorted(found.sizes)[0] >= 30
    assert any("moved" in note and "persons" in note for note in found.notes)
    with pytest.raises(DataError, match="13 persons of 1,120 rows cannot be dealt out to 4 sites of at least 50 rows"):
        assign_sites(frame, split="iid", count=4, min_rows=50, generator=rng(), persons=persons)


@pytest.mark.parametrize("split", ["interval:age", "column:state", "sorted"])
def test_a_column_of_the_row_decides_whoever_the_row_is_about(split: str) -> None:
    frame, persons = visits(100)
    found, plain = (
        assign_sites(frame, split=split, count=3, target="y", generator=rng(), persons=one) for one in (persons, None)
    )
    assert (found.site == plain.site).all()


def test_low_risk_is_drawn_by_person() -> None:
    frame, persons = visits(300)
    found = assign_sites(
        frame, split="iid", count=3, target="y", low_risk=0.4, alpha=[5.0, 5.0, 1.0], generator=rng(), persons=persons
    )
    assert found.low_risk is not None
    low = np.bincount(persons[found.low_risk], minlength=300)
    assert set(low / np.bincount(persons)) == {0.0, 1.0}  # all rows of a person, or none
    shares = [found.low_risk[found.site == site].mean() for site in range(3)]
    assert np.abs(np.array(shares) - 0.4).max() < 0.02
