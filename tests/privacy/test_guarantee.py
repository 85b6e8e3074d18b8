"""Guarantees describe word for word: through JSON and back, and nothing unknown is guessed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import IntegrityError
from kohort.privacy import guarantee as module
from kohort.privacy.guarantee import (
    DP,
    Aggregate,
    Domain,
    Encrypted,
    Guarantee,
    KAnonymous,
    KKm,
    Public,
    Raw,
    SecureSum,
    parse_guarantee,
)

counts = st.integers(0, 2**53)
shares = st.floats(0, 1)
words = st.text(max_size=12)
guarantees: st.SearchStrategy[Guarantee] = st.one_of(
    st.builds(Raw, rows=counts),
    st.builds(Public, what=words),
    st.builds(Domain, columns=st.lists(words, max_size=4).map(tuple)),
    st.builds(Aggregate, rows=counts),
    st.builds(KAnonymous, k=counts, l=counts, t=st.none() | shares, rows=counts, verified=st.booleans()),
    st.builds(KKm, k=counts, m=counts, rows=counts, verified=st.booleans()),
    st.builds(DP, epsilon=st.floats(0, 100), delta=shares, unit=words, event=words, simulated=st.booleans()),
    st.builds(Encrypted, scheme=words, opens=words),
    st.builds(SecureSum, sites=counts, threshold=counts, colluders=counts, opens=words),
)


@contextmanager
def forgotten_after() -> Iterator[None]:
    """Classes made inside do not stay registered."""
    known = dict(module._KINDS)
    try:
        yield
    finally:
        module._KINDS.clear()
        module._KINDS.update(known)


@given(guarantees)
def test_json_and_back(claim: Guarantee) -> None:
    back = parse_guarantee(json.loads(claim.text))
    assert back == claim
    assert type(back) is type(claim)
    assert back.text == claim.text
    assert json.loads(claim.text)["kind"] == claim.kind
    assert str(claim).startswith(f"{claim.kind}(")


def test_every_kind_has_its_own_word() -> None:
    every = [Raw, Public, Domain, Aggregate, KAnonymous, KKm, DP, Encrypted, SecureSum]
    assert len({kind.kind for kind in every}) == len(every)
    assert {kind.kind for kind in every} <= set(module._KINDS)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kind": ""},
        {"kind": "unheard-of"},
        {"kind": None},
        {"kind": ["raw"]},
        {"rows": 5},
        {"kind": "raw"},
        {"kind": "raw", "rows": 1, "bonus": 2},
        {"kind": "dp", "epsilon": 1.0},
        [],
        None,
        "raw",
        7,
    ],
)
def test_what_is_not_known_is_refused(fields: Any) -> None:
    with pytest.raises(IntegrityError):
        parse_guarantee(fields)


def test_guarantees_cannot_be_changed_and_compare_by_value() -> None:
    claim = Aggregate(rows=5)
    with pytest.raises(AttributeError):
        claim.rows = 500  # type: ignore[misc]
    assert claim == Aggregate(rows=5)
    assert claim != Raw(rows=5)
    assert hash(claim) == hash(Aggregate(rows=5))


def test_a_new_kind_is_found_by_its_word() -> None:
    from dataclasses import dataclass

    with forgotten_after():

        @dataclass(frozen=True, kw_only=True)
        class Whispered(Guarantee):
            kind: ClassVar[str] = "whispered"
            volume: int

        assert parse_guarantee({"kind": "whispered", "volume": 3}) == Whispered(volume=3)
    with pytest.raises(IntegrityError):
        parse_guarantee({"kind": "whispered", "volume": 3})
