"""Counting opaque keys: against a plain count, over many random federations; and the group's secret."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.crypto.counting import _places, _places_of, cells_for, estimate, fingerprints, peel, sketch, table
from kohort.crypto.group_secret import STEPS, GroupHub, GroupSite
from kohort.crypto.sums.modular import P61, add
from kohort.errors import IntegrityError, RefusedError
from kohort.rng import Streams

SECRET = b"s" * 32


def approved(sites: list[Counter[bytes]], cap: int, secret: bytes = SECRET, cells: int | None = None) -> set[bytes]:
    """What the protocol lets through, without the masks."""
    distinct = len(set().union(*sites)) if sites else 0
    size = cells_for(distinct) if cells is None else cells
    total = np.zeros(4 * size, dtype=np.uint64)
    for site in sites:
        if site:
            prints = fingerprints(secret, list(site))
            counts = np.minimum(np.array(list(site.values())), cap)
            total = add(total, table(prints, counts, size), P61)
    counted = peel(total, size)
    good = {(int(f), int(h)) for f, h, n in zip(counted.f, counted.h, counted.totals, strict=True) if n >= cap}
    result = set()
    for key in set().union(*sites) if sites else set():
        prints = fingerprints(secret, [key])
        if (int(prints.f[0]), int(prints.h[0])) in good:
            result.add(key)
    return result


def plain(sites: list[Counter[bytes]], cap: int) -> set[bytes]:
    total: Counter[bytes] = Counter()
    for site in sites:
        total.update(site)
    return {key for key, count in total.items() if count >= cap}


federations = st.lists(
    st.dictionaries(st.integers(0, 60).map(lambda n: str(n).encode()), st.integers(1, 12), max_size=30).map(Counter),
    min_size=3,
    max_size=8,
)


@given(federations, st.integers(1, 20), st.binary(min_size=32, max_size=32))
@settings(max_examples=150, deadline=None)
def test_no_false_approval_and_hardly_a_false_refusal(sites: list[Counter[bytes]], cap: int, secret: bytes) -> None:
    assert approved(sites, cap, secret) <= plain(sites, cap)


def test_over_a_thousand_federations_at_most_one_in_a_hundred_keys_is_withheld() -> None:
    generator = np.random.default_rng(4)
    wanted = lost = false = 0
    for number in range(1000):
        keys = [str(key).encode() for key in range(int(generator.integers(1, 40)))]
        sites = [
            Counter({key: int(generator.integers(1, 6)) for key in keys if generator.random() < 0.6}) for _ in range(4)
        ]
        secret = number.to_bytes(32, "little")
        right, got = plain(sites, 8), approved(sites, 8, secret)
        wanted, lost, false = wanted + len(right), lost + len(right - got), false + len(got - right)
    assert false == 0
    assert lost <= 0.01 * wanted


@given(st.lists(st.integers(1, P61 - 1), min_size=1, max_size=20), st.integers(1, 10_000))
def test_the_places_of_one_key_are_those_of_many(keys: list[int], size: int) -> None:
    together = np.stack(_places(np.array(keys, dtype=np.uint64), 3 * size), axis=1)
    assert together.tolist() == [_places_of(key, 3 * size) for key in keys]


def test_ten_thousand_keys_peel() -> None:
    generator = np.random.default_rng(5)
    keys = [str(key).encode() for key in range(10_000)]
    sites = [
        Counter({key: int(count) for key, count in zip(keys, generator.integers(0, 9, 10_000), strict=True) if count})
        for _ in range(3)
    ]
    assert approved(sites, 10) == plain(sites, 10)


def test_a_table_that_is_too_small_withholds_and_never_approves_wrongly() -> None:
    keys = [str(key).encode() for key in range(500)]
    sites = [Counter(dict.fromkeys(keys, 3)) for _ in range(3)]
    assert approved(sites, 10, cells=300) == set()
    assert approved(sites, 9, cells=300) <= plain(sites, 9)


def test_two_keys_in_one_cell_are_not_taken_for_one() -> None:
    """The check must be able to fail: with a wrong Q, as if it were not looked at, a mixed cell would pass."""
    prints = fingerprints(SECRET, [b"a", b"b"])
    total = table(prints, np.array([5, 5]), 3)  # one cell a table: both keys in all of them
    assert len(peel(total, 3).f) == 0
    forged = total.reshape(4, 3).copy()
    for cell in range(3):
        count, once = int(forged[0, cell]), int(forged[1, cell])
        forged[2, cell] = once * once * pow(count, -1, P61) % P61
    counted = peel(forged.reshape(-1), 3)
    assert not set(counted.f.tolist()) & set(prints.f.tolist())


@pytest.mark.parametrize("keys", [10, 1000, 20_000])
def test_the_sketch_tells_about_how_many_keys_there_are(keys: int) -> None:
    prints = fingerprints(SECRET, [str(key).encode() for key in range(keys)])
    found = estimate(add(sketch(prints), sketch(prints), P61))
    assert keys <= found <= 1.3 * keys + 40


def make_secrets(count: int, tamper: object = None, silent: dict[str, int] | None = None) -> list[bytes | None]:
    names = tuple(f"s{i}" for i in range(count))
    sites = {name: GroupSite(names, name, b"run", Streams.seeded(i)) for i, name in enumerate(names)}
    hub = GroupHub(names)
    inboxes = dict.fromkeys(names, b"")
    for step in range(STEPS):
        answers = {
            name: sites[name].reply(step, inbox)
            for name, inbox in inboxes.items()
            if (silent or {}).get(name, 99) > step
        }
        inboxes = hub.route(step, answers)
        if callable(tamper):
            inboxes = tamper(step, inboxes)
    return [site.secret for name, site in sites.items() if name not in (silent or {})]


def test_all_sites_derive_one_secret_and_others_another() -> None:
    secrets = make_secrets(5)
    assert len(set(secrets)) == 1
    assert secrets[0] is not None
    assert make_secrets(6)[0] != secrets[0]


def test_a_site_that_leaves_before_contributing_is_left_out() -> None:
    secrets = make_secrets(5, silent={"s4": 1})
    assert len(set(secrets)) == 1
    assert None not in secrets


def test_a_hub_that_keeps_a_contribution_back_is_noticed() -> None:
    def keep_back(step: int, inboxes: dict[str, bytes]) -> dict[str, bytes]:
        return {**inboxes, "s0": inboxes["s0"][:-52]} if step == 1 else inboxes

    with pytest.raises(IntegrityError, match="same secret"):
        make_secrets(5, keep_back)


def test_an_altered_contribution_is_noticed_and_two_sites_are_too_few() -> None:
    def alter(step: int, inboxes: dict[str, bytes]) -> dict[str, bytes]:
        data = inboxes.get("s0", b"")
        return {**inboxes, "s0": data[:-1] + bytes([data[-1] ^ 1])} if step == 1 else inboxes

    with pytest.raises(IntegrityError, match="altered"):
        make_secrets(4, alter)
    with pytest.raises(RefusedError, match="fewer than three"):
        make_secrets(2)
