import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import ConfigError, DataError
from kohort.tables.cells import SUPPRESSED, Label
from kohort.tables.hierarchy import Hierarchy, read_hierarchies

EDUCATION = Hierarchy.of(
    "education",
    {"BSc": ["degree", "*"], "MSc": ["degree", "*"], "school": ["none", "*"]},
)


def test_ancestors_leaves_and_cells() -> None:
    assert EDUCATION.levels == 3
    assert EDUCATION.values == ("BSc", "MSc", "school")
    assert EDUCATION.ancestor("BSc", 0) == "BSc"
    assert EDUCATION.ancestor("BSc", 1) == "degree"
    assert EDUCATION.leaves("degree") == ("BSc", "MSc")
    assert EDUCATION.leaves("*") == ("BSc", "MSc", "school")
    assert EDUCATION.leaves("MSc") == ("MSc",)
    assert [EDUCATION.cell("BSc", level) for level in range(3)] == ["BSc", Label("degree"), SUPPRESSED]


def test_arx_file_round_trip(tmp_path: Path) -> None:
    odd = Hierarchy.of("x", {'a;"b': ["l 1", "*"], "": ["l 1", "*"]})
    path = tmp_path / "any_hierarchy_the-x.csv"
    odd.write(path)
    again = Hierarchy.read(path)
    assert again.chains == odd.chains
    assert again.column == "the_x"
    with pytest.raises(ConfigError, match="exists"):
        odd.write(path)
    odd.write(path, force=True)


@given(st.dictionaries(st.text(min_size=1), st.sampled_from(["low", "high"]), min_size=1, max_size=8))
def test_every_value_is_a_leaf_of_all_its_ancestors(parents: dict[str, str]) -> None:
    values = {f"v{value}": [label, "*"] for value, label in parents.items()}
    hierarchy = Hierarchy.of("x", values)
    for value in hierarchy.values:
        assert all(value in hierarchy.leaves(hierarchy.ancestor(value, level)) for level in range(3))


@pytest.mark.parametrize(
    ("chains", "message"),
    [
        ((), "empty"),
        ((("a", "x", "*"), ("b", "*")), r"ragged.*1 with 2, 1 with 3"),
        ((("a", "x", "*"), ("a", "y", "*")), "two chains"),
        ((("a", "x", "p", "*"), ("b", "x", "q", "*")), "inconsistent.*two parents"),
        ((("a", "b", "*"), ("b", "a", "*")), "cyclic"),
    ],
)
def test_inconsistent_hierarchies_are_refused(chains, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Hierarchy("column", chains)


def test_coverage_counts_and_shows_no_value() -> None:
    EDUCATION.check_covers(["BSc", "school"])
    with pytest.raises(DataError, match=r"'education' lacks 2 value") as caught:
        EDUCATION.check_covers(["BSc", "secretvalue", "othersecret", "secretvalue"])
    assert "secret" not in str(caught.value)
    with pytest.raises(DataError, match="lacks"):
        EDUCATION.ancestor("secretvalue", 1)
    with pytest.raises(ConfigError, match="no level 3"):
        EDUCATION.ancestor("BSc", 3)
    with pytest.raises(DataError, match="not in its hierarchy"):
        EDUCATION.leaves("unknown")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no hierarchy file"):
        Hierarchy.read(tmp_path / "x.csv")
    (tmp_path / "y.csv").write_bytes(b"\xff\xfe;*\n")
    with pytest.raises(DataError, match="not UTF-8"):
        Hierarchy.read(tmp_path / "y.csv")
    with pytest.raises(DataError, match="no folder"):
        read_hierarchies(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no hierarchy in"):
        read_hierarchies(tmp_path / "empty")


def test_levels_between_commas_are_refused_before_any_value_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "town.csv"
    path.write_text("A,north,*\nB,north,*\n")
    with pytest.raises(DataError, match=r"no line of .* has a ;") as refused:
        Hierarchy.read(path)
    assert "not a comma" in str(refused.value.hint)
    path.write_text("Washington, DC;east;*\n")
    assert Hierarchy.read(path).values == ("Washington, DC",)


def test_the_published_adult_hierarchies() -> None:
    folder = Path(os.environ.get("KOHORT_DATA", "")) / "hierarchies" / "adult"
    if not os.environ.get("KOHORT_DATA") or not folder.is_dir():
        pytest.skip("KOHORT_DATA does not hold the ARX hierarchies")
    found = read_hierarchies(folder)
    # Levels and values as in the files of the ARX project (data/adult_hierarchy_*.csv).
    assert found["age"].levels == 5
    # The published label "0-4" stands above 1 to 5: leaves come from the file, not from the label's text.
    assert found["age"].leaves("0-4") == ("1", "2", "3", "4", "5")
    assert found["education"].ancestor("Bachelors", 2) == "Higher education"
    assert len(found) == 9
    assert found["marital_status"].levels == 3
