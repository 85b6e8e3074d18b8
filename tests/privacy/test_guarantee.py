"""Guarantees describe word for word: through JSON and back, and nothing unknown is guessed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import IntegrityError
from kohort.privacy import guarantee as module
from kohort.privacy.guarantee import (
    DP,
    Aggregate,
    Cells,
    DomainClaim,
    Encrypted,
    Guarantee,
    KAnonymous,
    KKm,
    Pairs,
    Public,
    Raw,
    SecureSum,
    is_at_least,
    parse_guarantee,
)

counts = st.integers(0, 2**53)
shares = st.floats(0, 1)
words = st.text(max_size=12)
guarantees: st.SearchStrategy[Guarantee] = st.one_of(
    st.builds(Raw, rows=counts),
    st.builds(Public, what=words),
    st.builds(DomainClaim, columns=st.lists(words, max_size=4).map(tuple)),
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
    every = [Raw, Public, DomainClaim, Aggregate, KAnonymous, KKm, DP, Encrypted, SecureSum]
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


CLASSES = KAnonymous(k=5, l=2, t=0.3, verified=True, unit="person", sensitive=("a",), gate_k=4)
NOISE = DP(epsilon=1.0, delta=1e-6, overlap=2)
SUM = SecureSum(sites=5, threshold=4, colluders=1, opens="hub: the total")


@pytest.mark.parametrize(
    ("asked", "claim", "enough"),
    [
        (CLASSES, CLASSES, True),
        (CLASSES, replace(CLASSES, k=6, l=3, t=0.2, sensitive=("a", "b"), gate_k=5, rows=9), True),
        *((CLASSES, replace(CLASSES, **weaker), False) for weaker in (
            {"k": 4}, {"l": 1}, {"t": 0.31}, {"t": None}, {"verified": False}, {"unit": "row"}, {"sensitive": ()},
            {"sensitive": ("b",)}, {"gate_k": 3}, {"gate_k": None},
        )),
        (replace(CLASSES, unit="row"), CLASSES, True),
        (replace(CLASSES, unit="row", sensitive=("a", "b")), CLASSES, False),
        (replace(CLASSES, unit="household", sensitive=()), CLASSES, False),
        (replace(CLASSES, t=None, gate_k=None, verified=False), CLASSES, True),
        (replace(CLASSES, t=None, gate_k=None), replace(CLASSES, t=None, gate_k=None), True),
        (Raw(rows=1), Raw(rows=99), True),
        (Raw(rows=1, gate_k=3), Raw(rows=1, gate_k=3), True),
        (Raw(rows=1, gate_k=3), Raw(rows=1, gate_k=2), False),
        (Raw(rows=1, gate_k=1), Raw(rows=1), False),
        (Raw(rows=1), Raw(rows=1, gate_k=1), True),
        (Raw(rows=1), Raw(rows=1, counted_by="x"), False),
        (Raw(rows=1, counted_by="x"), Raw(rows=1, counted_by="x"), True),
        (Raw(rows=1, counted_by="x"), Raw(rows=1), True),
        (Raw(rows=1, counted_by="x"), Raw(rows=1, counted_by="y"), False),
        (SUM, SUM, True),
        (SUM, replace(SUM, sites=6, threshold=5, opens="hub: in other words"), True),
        (SUM, replace(SUM, sites=4), False),
        (SUM, replace(SUM, threshold=3), False),
        (SUM, replace(SUM, opens="key-holder: the total"), False),
        (NOISE, NOISE, True),
        (NOISE, replace(NOISE, epsilon=1 + 1e-12, delta=1e-6 * (1 + 1e-12)), True),
        (NOISE, replace(NOISE, epsilon=0.5, delta=0.0, overlap=3), True),
        (NOISE, replace(NOISE, epsilon=1.001), False),
        (NOISE, replace(NOISE, delta=1.001e-6), False),
        (NOISE, replace(NOISE, relation="replace-one"), False),
        (NOISE, replace(NOISE, overlap=1), False),
        (Aggregate(rows=5), Aggregate(rows=5), True),
        (Aggregate(rows=5), Aggregate(rows=4), False),
        (Aggregate(rows=5), NOISE, True),
        (Aggregate(rows=5), SUM, True),
        (Aggregate(rows=5), Raw(rows=5), False),
        (Aggregate(rows=5), CLASSES, False),
        (NOISE, SUM, False),
        (SUM, NOISE, False),
        (KKm(k=5, m=2, verified=True), KKm(k=5, m=2, verified=True), True),
        (KKm(k=5, m=2, verified=True), KKm(k=6, m=3, verified=True), True),
        (KKm(k=5, m=2, verified=True), KKm(k=4, m=2, verified=True), False),
        (KKm(k=5, m=2, verified=True), KKm(k=5, m=1, verified=True), False),
        (KKm(k=5, m=2, verified=True), KKm(k=5, m=2), False),
        (KKm(k=5, m=2), KKm(k=5, m=2, verified=True), True),
        (DomainClaim(columns=("a", "b")), DomainClaim(columns=("b",)), True),
        (DomainClaim(columns=("a", "b")), DomainClaim(columns=("b", "c")), False),
        (Cells(least=5), Cells(least=5), True),
        (Cells(least=5), Cells(least=4), False),
        (Pairs(least=5), Pairs(least=5), True),
        (Pairs(least=5), Pairs(least=6), False),
        (Public(what="a"), Public(what="a"), True),
        (Public(what="a"), Public(what="b"), False),
        (Encrypted(scheme="s", opens="o"), Encrypted(scheme="s", opens="p"), False),
    ],
)  # fmt: skip
def test_a_claim_is_taken_for_another_where_it_is_as_strong(asked: Guarantee, claim: Guarantee, enough: bool) -> None:
    assert is_at_least(claim, asked) is enough


@pytest.mark.parametrize(
    "rising",
    [
        [Aggregate(rows=1), Aggregate(rows=2)],
        [KKm(k=2, m=3), KKm(k=3, m=1), KKm(k=3, m=2)],
        [KAnonymous(k=2, l=9), KAnonymous(k=3), KAnonymous(k=3, t=0.9), KAnonymous(k=3, t=0.1), KAnonymous(k=3, l=2)],
        [
            DP(epsilon=0.1, delta=0.0, simulated=False, void=True),
            DP(epsilon=1.0, delta=0.0, simulated=False),
            DP(epsilon=0.5, delta=1e-5, simulated=False),
            DP(epsilon=0.5, delta=1e-6, simulated=True),
            DP(epsilon=0.5, delta=1e-6, simulated=False),
        ],
    ],
)
def test_the_weakest_claim_of_a_kind_sorts_first(rising: list[Guarantee]) -> None:
    strengths = [claim.strength for claim in rising]
    assert strengths == sorted(strengths)
    assert len(set(strengths)) == len(strengths)


def test_a_release_takes_from_the_budget_what_it_says() -> None:
    whole = DP(epsilon=0.5, delta=1e-6)
    assert (whole.spends, whole.spent) == (True, (0.5, 1e-6))
    part = DP(epsilon=0.5, delta=1e-6, charge=0.25, delta_charge=1e-7)
    assert (part.spends, part.spent) == (True, (0.25, 1e-7))
    free = DP(epsilon=0.5, delta=1e-6, charge=0.0, delta_charge=1e-7)
    assert (free.spends, free.spent) == (False, (0.0, 0.0))
    assert DP(epsilon=0.0, delta=1e-6).spent == (0.0, 1e-6)


def test_the_words_say_whose_data_and_mark_what_is_no_protection() -> None:
    assert DP(epsilon=1, delta=0, unit="site").whom == "site"
    assert DP(epsilon=1, delta=0, unit="person").whom == "person at one site"
    assert DP(epsilon=1, delta=0, unit="person", overlap=3).whom == "person at up to 3 sites"
    assert Aggregate(rows=5).said() == {"rows": 5}
    assert "overlap" not in DP(epsilon=1, delta=0).said()
    assert DP(epsilon=1, delta=0, overlap=2).said()["overlap"] == 2
    assert str(KAnonymous(k=5)) == "k-anonymous(k=5, l=1, rows=0, verified=False, unit=row)"
