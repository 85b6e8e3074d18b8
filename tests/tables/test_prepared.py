"""Schema files of `kohort check`, `anonymize` and `init`: what they declare, and how faults are said."""

from __future__ import annotations

from pathlib import Path

import pytest

from kohort.errors import ConfigError
from kohort.tables.prepared import Declared


def test_a_schema_file_declares_what_the_command_line_does_not(tmp_path: Path) -> None:
    path = tmp_path / "schema.toml"
    path.write_text('[schema]\ntarget = "y"\nquasi = ["a"]\n[reading]\nseparator = ";"\n', encoding="utf-8")
    found = Declared(quasi=("b",)).with_file(path)
    assert (found.target, found.quasi, found.reading.separator) == ("y", ("b",), ";")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('targt = "y"\n', "unknown key 'targt' in the schema file"),
        ("target = \n", "is not TOML"),
        ("quasi = 3\n", "quasi in the schema file is no list of names"),
        ('quasi = "a"\n', "quasi in the schema file is one string"),
        ("target = 3\n", "target in the schema file is no name"),
        ("schema = 3\n", "schema in the schema file is no table"),
        ("reading = 3\n", "reading in the schema file is no table"),
    ],
)
def test_a_wrong_schema_file_is_explained(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        Declared().with_file(path)


def test_a_schema_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no schema file"):
        Declared().with_file(tmp_path / "absent.toml")
