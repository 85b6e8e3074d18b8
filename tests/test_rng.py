"""Named streams: the same in any order of asking, different for different names, and never seeded when secure."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import ConfigError
from kohort.rng import Streams

names = st.lists(st.text(max_size=6) | st.integers(-5, 5), max_size=4).map(tuple)


@given(names, names)
def test_streams_do_not_depend_on_the_order_of_asking(one: tuple[str | int, ...], other: tuple[str | int, ...]) -> None:
    first, second = Streams.seeded(3), Streams.seeded(3)
    a, b = first.generator(*one).random(4), first.generator(*other).random(4)
    d, c = second.generator(*other).random(4), second.generator(*one).random(4)
    assert a.tobytes() == c.tobytes()
    assert b.tobytes() == d.tobytes()
    assert (a.tobytes() == b.tobytes()) == (one == other)
    assert (first.bytes(*one) == first.bytes(*other)) == (one == other)
    assert (first.key(*one) == first.key(*other)) == (one == other)


def test_names_are_not_joined_or_confused() -> None:
    streams = Streams.seeded(0)
    asked = [
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        ("abc", ""),
        ("1",),
        (1,),
        (),
        ("",),
        ("1", 1),
        (1, "1"),
        ("a", "b", "c"),
    ]
    assert len({streams.bytes(*name) for name in asked}) == len(asked)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_seeds_tell_streams_apart(one: int, other: int) -> None:
    assert (Streams.seeded(one).bytes("x") == Streams.seeded(other).bytes("x")) == (one == other)
    assert Streams.seeded(one).seed == one


def test_known_values_stay() -> None:
    """Resuming a run and repeating a published one need the same numbers for ever. Source: this library, 0.1.0."""
    streams = Streams.seeded(42)
    assert streams.bytes("start", 0, length=16).hex() == "c0bab0608f499b7dc27f0107e914e19d"
    assert streams.key("rows") == 18309291367039773307
    assert streams.generator("split").integers(0, 10**9, 3).tolist() == [805806990, 574939156, 400022856]


def test_streams_of_one_root_are_not_correlated() -> None:
    streams = Streams.seeded(9)
    draws = np.stack([streams.generator("site", index).normal(size=2000) for index in range(30)])
    between = np.corrcoef(draws)[np.triu_indices(30, 1)]
    # 435 correlations of independent samples of 2,000 have standard deviation 1/sqrt(2000) = 0.0224; 5 sigma.
    assert np.abs(between).max() < 0.112


@pytest.mark.parametrize("length", [1, 8, 32, 64])
def test_lengths(length: int) -> None:
    assert len(Streams.seeded(1).bytes("x", length=length)) == length


@pytest.mark.parametrize("seed", [-1, 2**63, 10**30])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(ConfigError, match="out of range"):
        Streams.seeded(seed)


def test_secure_streams_never_repeat_and_refuse_a_seed() -> None:
    one, other = Streams.secure(), Streams.secure()
    assert one.is_secure
    assert one.seed is None
    assert one.bytes("x") != other.bytes("x")
    assert one.bytes("x") == one.bytes("x")
    for seed in (0, 7):
        with pytest.raises(ConfigError, match="exclude each other"):
            Streams.choose(seed, secure=True)
    assert Streams.choose(None, secure=True).is_secure
    assert Streams.choose(None, secure=False) == Streams.seeded(0)
    assert not Streams.choose(5, secure=False).is_secure


def test_the_root_is_not_shown() -> None:
    streams = Streams.seeded(5)
    assert streams.root.hex() not in repr(streams)
    assert repr(streams.root) not in repr(streams)
