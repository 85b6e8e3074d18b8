"""TOML that people write: one line for whatever is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from kohort.errors import ConfigError
from kohort.toml import parse_toml, parse_value, read_toml

DEEP = "[" * 5000 + "]" * 5000


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("[data]\ntable = 'adult'\n", encoding="utf-8")
    assert read_toml(path, "plan") == {"data": {"table": "adult"}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no plan at"),
        (b"\xff\xfe", "cannot be read as text"),
        (b"[data\n", "is not TOML: .*line 1"),
        (f"x = {DEEP}".encode(), "too deep inside each other"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "plan.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_toml(path, "plan")
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_text_is_named_by_where_it_is_from() -> None:
    with pytest.raises(ConfigError, match=r"site\.toml is not TOML"):
        parse_toml("= 1", "site.toml")


@pytest.mark.parametrize(
    ("text", "value"), [("0.1", 0.1), ("true", True), ("[1, 2]", [1, 2]), ("plain", "plain"), (DEEP, DEEP)]
)
def test_values_of_options(text: str, value: object) -> None:
    assert parse_value(text) == value
