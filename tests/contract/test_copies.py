"""Copies of a site that is under way: equal to it, and apart from it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kohort.testing.copies import Saved


def counter() -> tuple[Callable[[], int], Callable[[], int]]:
    """Two functions over one variable."""
    count = 0

    def add() -> int:
        nonlocal count
        count += 1
        return count

    def read() -> int:
        return count

    return add, read


def test_functions_keep_the_variables_they_share_and_share_none_with_the_original() -> None:
    add, read = counter()
    add()
    saved = Saved((add, read))
    other_add, other_read = saved.restore()
    assert (other_add(), other_add(), other_read()) == (2, 3, 3)
    assert read() == 1
    assert saved.restore()[1]() == 1


def test_a_function_that_calls_itself_is_copied() -> None:
    seen: list[int] = []

    def down(number: int, *, least: int = 0) -> None:
        seen.append(number)
        if number > least:
            down(number - 1, least=least)

    copy, numbers = Saved((down, seen)).restore()
    copy(2)
    assert numbers == [2, 1, 0]
    assert seen == []


def test_what_a_bound_method_or_a_partial_call_changes_is_the_copy() -> None:
    book = {"a": [1]}
    holder: dict[str, Any] = {"book": book, "find": book.get, "add": partial(list.append, book["a"])}
    copy = Saved(holder).restore()
    copy["add"](2)
    assert copy["find"]("a") == copy["book"]["a"] == [1, 2]
    assert book == {"a": [1]}


def test_hashes_generators_and_arrays_go_on_alone() -> None:
    digest, random, numbers = hashlib.blake2b(b"a"), np.random.default_rng(3), np.zeros(2)
    saved = Saved((digest, random, numbers))
    expected, drawn = digest.copy(), np.random.default_rng(3).random()
    for _ in range(2):
        other, again, copy = saved.restore()
        assert other.digest() == expected.digest()
        assert again.random() == drawn
        other.update(b"b")
        copy += 1
    assert digest.digest() == expected.digest()
    assert random.random() == drawn
    assert not numbers.any()


def test_keys_and_tables_are_shared_and_so_is_what_the_caller_says() -> None:
    parts = Ed25519PrivateKey.generate(), pl.DataFrame({"a": [1]}), {"plan": 1}
    copy = Saved([*parts], shared=[parts[2]]).restore()
    assert all(one is other for one, other in zip(copy, parts, strict=True))
    assert Saved(parts[2]).restore() is not parts[2]


def test_what_cannot_be_copied_is_an_error(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file, pytest.raises(TypeError):
        Saved({"file": file})
    with pytest.raises(TypeError, match="identity alone"):
        Saved({"mark": object()})
