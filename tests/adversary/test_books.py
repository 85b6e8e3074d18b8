"""A lying hub opens totals over sites that it chooses so that no site was in all of them; sites exchange their books.

Each attack gets nothing, and a counterpart shows that it would succeed if the one check against it were missing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.crypto.sums.encrypted import EncryptedHub
from kohort.errors import IntegrityError, KohortError
from kohort.methods.oneshot import method as oneshot
from kohort.privacy import openings
from kohort.privacy.openings import OpeningBook
from kohort.protocol.site import Site
from kohort.rng import Streams
from kohort.rounds import books, summing
from kohort.rounds.totals import summed, summed_model
from kohort.runs.config import load_plan
from kohort.runs.run import run

TEN = tuple(f"s{number}" for number in range(1, 11))
FOUR = [TEN, *(tuple(name for name in TEN if name not in left) for left in (
    {"s1", "s2", "s3"}, {"s3", "s4", "s5"}, {"s1", "s2", "s4", "s5"}))]  # fmt: skip
"""Pairwise differences are of three sites or more; (1 - 2) + (1 - 3) - (1 - 4) is twice site 3."""


def rows(name: str) -> pl.DataFrame:
    random = np.random.default_rng(int(name[1:]))
    age = random.integers(20, 80, 20)
    return pl.DataFrame({"age": age, "y": np.where(age + random.normal(0, 9, 20) > 50, "yes", "no")})


_RUNS = count(1)


def open_total(
    folder: Path, sites: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, method: dict[str, Any] | None = None
) -> list[int]:
    """One training round over these sites, whose books are on disk; the opened total as the hub sees it.

    Every run is a new one, and the hub chooses the same first weights in all of them.
    """
    plan = load_plan(
        {
            "data": {"table": "memory", "target": "y", "features": "rest", "test": 0,
                     "bounds": {"age": (0, 99)}, "categories": {"y": ["no", "yes"]}},
            "sites": {"split": "files"},
            **({} if method else {"train": {"rounds": 1, "lr": 0.1, "batch": 0}, "model": {"kind": "logistic"}}),
            "method": method or {"name": "fedavg", "secure": {"sum": "masks"}},
            "policy": {"min_rows": 1, "pairs": "open"},
        }
    )  # fmt: skip
    opened: list[list[int]] = []
    made, take, drawn = Site.__init__, summed.SummedPhases.take, Streams.bytes

    def same_start(self: Streams, *names: Any, **options: Any) -> bytes:
        if names == ("ledger",):  # a real site keeps this key
            return bytes(32)
        return bytes(16) if names == ("start",) else drawn(self, *names, **options)

    def keeping(self: Site, **parts: Any) -> None:
        made(self, **parts)
        self.openings = OpeningBook(folder / f"{self.name}.jsonl")

    def listen(self: Any, number: int, total: Any) -> None:
        opened.append(summed_model.from_residues(total.values[:-1]).tolist())
        take(self, number, total)

    with monkeypatch.context() as patched:
        patched.setattr(Site, "__init__", keeping)
        patched.setattr(summed.SummedPhases, "take", listen)
        patched.setattr(oneshot, "check_total", lambda _, total: opened.append(np.asarray(total).tolist()))
        patched.setattr(Streams, "bytes", same_start)
        run(plan, seed=next(_RUNS), tables={name: rows(name) for name in sites})
    return opened[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_four_totals_of_different_runs_show_no_site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_total(folder, FOUR[0], monkeypatch)
    open_total(folder, FOUR[1], monkeypatch)
    with pytest.raises(KohortError, match="would show 1 sites: s3"):
        open_total(folder, FOUR[2], monkeypatch)


def test_totals_that_no_site_was_in_all_of_show_no_site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """s1 to s5, s6 to s9, then all ten: every site sees two totals that differ by five or more, and site 10 is left."""
    first = [np.asarray(open_total(folder, part, monkeypatch)) for part in (TEN[:5], TEN[5:9])]
    with pytest.raises(KohortError, match="would show 1 sites: s10"):
        open_total(folder, TEN, monkeypatch)
    for book in folder.iterdir():  # what they heard in the last one
        own = [line for line in book.read_text().splitlines(keepends=True) if '"heard:' not in line]
        book.write_text("".join(own))
    monkeypatch.setattr(summing, "receive_books", lambda *_: {})
    left = np.asarray(open_total(folder, TEN, monkeypatch)) - first[0] - first[1]
    assert left.tolist() == pytest.approx(alone("s10", folder, monkeypatch), abs=4)


def alone(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What one site adds: the difference of two totals, with no book at all."""
    monkeypatch.setattr(OpeningBook, "admit", lambda *_, **__: None)
    every = open_total(folder, TEN, monkeypatch)
    others = open_total(folder, tuple(site for site in TEN if site != name), monkeypatch)
    return list(np.asarray(every) - np.asarray(others))


def test_two_runs_that_differ_by_a_site_show_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_total(folder, TEN, monkeypatch)
    open_total(folder, TEN, monkeypatch)
    with pytest.raises(KohortError, match="would show 1 sites: s10"):
        open_total(folder, TEN[:9], monkeypatch)


def test_disjoint_totals_show_no_site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ten, s1 to s4, and s5 to s9: no site is in both of the last two, and their difference is site 10."""
    open_total(folder, TEN, monkeypatch)
    for part in (TEN[:4], TEN[4:9]):
        with pytest.raises(KohortError, match="another one over the others would be hidden"):
            open_total(folder, part, monkeypatch)
    monkeypatch.setattr(openings, "_refuse_minorities", lambda *_: None)
    totals = [np.asarray(open_total(folder, sites, monkeypatch)) for sites in (TEN, TEN[:4], TEN[4:9])]
    left = totals[0] - totals[1] - totals[2]
    assert left.tolist() == pytest.approx(alone("s10", folder, monkeypatch), abs=4)


Lie = Callable[[Any], bytes]


@pytest.mark.parametrize("lie", [lambda _: b"", lambda _: b"\x02\0\0\0{}"], ids=["left out", "changed"])
def test_a_hub_can_neither_hide_nor_change_a_book(lie: Lie, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_total(folder, FOUR[0], monkeypatch)
    open_total(folder, FOUR[1], monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(summing, "join_books", lie)
        with pytest.raises(IntegrityError, match="book of openings is missing, or is not the one that it signed"):
            open_total(folder, FOUR[2], monkeypatch)
        patched.setattr(books, "_find", lambda known, _: next(iter(known.values()), b""))
        patched.setattr(OpeningBook, "admit", lambda *_, **__: None)
        assert open_total(folder, FOUR[2], monkeypatch)


ONESHOT: dict[str, Any] = {"name": "oneshot", "secure": {"sum": "bfv"}, "oneshot": {"min_cell": 2, "min_sites": 3}}


def test_leaving_opens_no_single_site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three sites leave and are summed alone, as `leave` needs; a hub goes on with those who stay, but one.

    Sums over the leavers and over five of the six that stay would leave the numbers of the sixth.
    """
    nine, leavers, stay = TEN[:9], TEN[:3], TEN[3:8]
    whole = np.asarray(open_total(folder, nine, monkeypatch, ONESHOT))
    gone = np.asarray(open_total(folder, leavers, monkeypatch, ONESHOT))
    with pytest.raises(KohortError, match="would show 1 sites: s9"):
        open_total(folder, stay, monkeypatch, ONESHOT)
    with pytest.raises(KohortError, match=r"would show [12] sites"):
        open_total(folder, (*leavers[:1], *stay[:3]), monkeypatch, ONESHOT)
    monkeypatch.setattr(OpeningBook, "admit", lambda *_, **__: None)
    left = whole - gone - np.asarray(open_total(folder, stay, monkeypatch, ONESHOT))
    alone = whole - np.asarray(open_total(folder, TEN[:8], monkeypatch, ONESHOT))
    assert left == pytest.approx(alone, rel=1e-6, abs=1e-3)
    assert left.ravel()[0] == pytest.approx(20, abs=0.01)  # its 20 rows


BY_MASKS = {**ONESHOT, "secure": {"sum": "masks"}}


def open_without(gone: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An encrypted total over all ten sites, as they are told, of which the hub leaves one ciphertext out."""
    take = EncryptedHub.take

    def loses(self: EncryptedHub, step: int, site: str, reply: bytes) -> None:
        if site != gone:
            take(self, step, site, reply)

    with monkeypatch.context() as patched:
        patched.setattr(EncryptedHub, "take", loses)
        return open_total(folder, TEN, monkeypatch, ONESHOT)


@pytest.mark.parametrize("masks_first", [True, False])
def test_masks_and_a_key_holder_open_no_totals_of_the_same_rows(
    masks_first: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ten sites by masks, nine of ten by a key-holder: no book holds both, and their difference is the tenth."""

    def whole() -> Any:
        return np.asarray(open_total(folder, TEN, monkeypatch, BY_MASKS))

    def part() -> Any:
        return np.asarray(open_without("s10", folder, monkeypatch))

    first, second = (whole, part) if masks_first else (part, whole)
    opened = first()
    with pytest.raises(KohortError, match="would be in another book"):
        second()
    monkeypatch.setattr(OpeningBook, "require_one_witness", lambda *_, **__: None)
    left = np.abs(opened - second())
    assert left.ravel()[0] == pytest.approx(20, abs=0.01)  # the rows of s10
