"""Many digests, many lines and many verdicts at once: the same as one by one."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.ledgers import Keeper

from kohort.privacy.door import Refusal, door
from kohort.privacy.guarantee import DP, Aggregate, Guarantee, KAnonymous
from kohort.privacy.ledger import panel
from kohort.privacy.ledger.hashing import (
    KEY_BLOCK,
    ByteRows,
    joined_bytes,
    kernel,
    keyed_states,
    plain_states,
    sizes_of,
)
from kohort.privacy.ledger.ledger import Ledger, LedgerContext
from kohort.privacy.ledger.receipts import Receipts
from kohort.privacy.ledger.signing import Signer
from kohort.privacy.ledger.verify import verify_ledger
from kohort.privacy.policy import Policy

# Lengths around the ends of a block, and any other.
LENGTHS = st.sampled_from([1, 7, 8, 9, 127, 128, 129, 255, 256, 257]) | st.integers(1, 700)


def digests_at_once(texts: list[bytes], states: np.ndarray, before: int) -> list[str]:
    sizes = np.array(sizes_of(texts))
    kernel().absorb(joined_bytes(texts), np.cumsum(sizes) - sizes, sizes, states, before, True)
    out = np.zeros(64 * len(texts), dtype=np.uint8)
    kernel().write_hex(states, out, np.arange(len(texts)) * 64)
    text = out.tobytes().decode()
    return [text[at : at + 64] for at in range(0, len(text), 64)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(LENGTHS, st.binary(min_size=1, max_size=64)), min_size=1, max_size=13), st.randoms())
def test_digests_at_once_are_those_of_hashlib(cases: list[tuple[int, bytes]], random: object) -> None:
    texts = [random.randbytes(length) for length, _ in cases]  # type: ignore[attr-defined]
    keys = [key for _, key in cases]
    keyed = [hashlib.blake2b(text, key=key, digest_size=32).hexdigest() for text, key in zip(texts, keys, strict=True)]
    assert digests_at_once(texts, keyed_states(keys), KEY_BLOCK) == keyed
    plain = [hashlib.blake2b(text, digest_size=32).hexdigest() for text in texts]
    assert digests_at_once(texts, plain_states(len(texts)), 0) == plain


def test_rows_of_a_matrix_are_a_sequence_of_bytes() -> None:
    matrix = np.arange(12, dtype=np.uint8).reshape(4, 3)
    rows = ByteRows(matrix.reshape(-1), matrix.shape[1])
    wanted = [bytes(row) for row in matrix]
    assert [bytes(row) for row in rows] == [bytes(rows[index]) for index in range(len(rows))] == wanted
    assert bytes(rows[-1]) == wanted[-1]
    assert [bytes(row) for row in rows[1:3]] == wanted[1:3]
    assert sizes_of(rows) == sizes_of(wanted) == [3, 3, 3, 3]
    assert bytes(joined_bytes(rows)) == bytes(joined_bytes(wanted)) == b"".join(wanted)
    with pytest.raises(IndexError):
        rows[4]


def written(folder: Path | None, names: list[str], *, rounds: int, widths: list[int]) -> tuple[Ledger, Receipts]:
    """Some rounds of all, of the first half, and of all again, with receipts, and notes in between."""
    ledger = Ledger(signer=Signer.from_secret(b"s" * 32), folder=folder, run="run")
    receipts = Receipts(signer=Signer.from_secret(b"h" * 32), folder=folder)
    chains = [ledger.open_chain(name, secret=name.encode()[:64], binding={"schema": "x"}) for name in names]
    claims: list[Guarantee] = [
        Aggregate(rows=90 + index) if index % 3 else KAnonymous(k=5, rows=90 + index) for index in range(len(names))
    ]
    generator = np.random.default_rng(len(names))
    for number in range(rounds):
        count = len(names) if number % 5 != 1 else max(1, len(names) // 2)
        ledger_context = LedgerContext(what="träin", request=f"{number:064x}", round=number)
        if number % 2:
            parcels: list[bytes] | ByteRows = [generator.bytes(widths[index % len(widths)]) for index in range(count)]
        else:
            parcels = ByteRows(generator.integers(0, 256, count * widths[0], dtype=np.uint8), widths[0])
        rows = [90 + index for index in range(count)]
        ledger.record(chains[:count], ledger_context, guarantees=claims[:count], rows=rows, parcels=parcels)
        receipts.issue(ledger, chains[:count], ledger_context)
        if number % 5 == 3:
            ledger.note(chains[-1], LedgerContext(what="träin", round=number), reason="it was late")
    return ledger, receipts


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=11, unique=True).filter(
        lambda names: all(name.isprintable() for name in names)
    ),
    st.integers(1, 13),
    st.lists(LENGTHS, min_size=1, max_size=3),
)
def test_lines_at_once_are_those_one_by_one(names: list[str], rounds: int, widths: list[int]) -> None:
    ledgers = []
    with pytest.MonkeyPatch.context() as patch:
        for at_once in (False, True):
            patch.setattr(panel, "batch_pays", lambda _, at_once=at_once: at_once)
            ledgers.append(written(None, names, rounds=rounds, widths=widths))
    (one, one_receipts), (many, many_receipts) = ledgers
    assert many.lines == one.lines
    assert many_receipts.lines == one_receipts.lines
    sealed = {"receipts": (one_receipts.length, one_receipts.head), "hub_key": one_receipts.public}
    assert many.head(**sealed) == one.head(**sealed)  # type: ignore[arg-type]
    assert many.disclosures() == one.disclosures()


def test_a_ledger_of_many_sites_verifies(tmp_path: Path) -> None:
    kernel()  # from here on the batch pays
    names = [f"site-{index}" for index in range(40)]
    ledger, receipts = written(tmp_path, names, rounds=5, widths=[300, 20])
    ledger.seal(receipts=(receipts.length, receipts.head), hub_key=receipts.public)
    ledger.close()
    receipts.close()
    verify_ledger(tmp_path)
    alone = b"".join(line.encode() for line in written_one_by_one(names))
    assert (tmp_path / "ledger.jsonl").read_bytes() == alone


def written_one_by_one(names: list[str]) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panel, "batch_pays", lambda _: False)
        return written(None, names, rounds=5, widths=[300, 20])[0].lines


@pytest.mark.parametrize("parcels", [[b"first", b"second"], [b"", b""]])
def test_what_cannot_be_written_side_by_side_is_written_in_turn(
    parcels: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain that releases twice in one call quotes its own first line; an empty text has no last block."""
    lines = []
    for at_once in (False, True):
        monkeypatch.setattr(panel, "batch_pays", lambda _, at_once=at_once: at_once)
        ledger = Ledger(signer=Signer.from_secret(b"s" * 32))
        chain = ledger.open_chain("a", secret=b"k" * 32, binding={})
        claims = [Aggregate(rows=9)] * 2
        ledger.record([chain, chain], LedgerContext(what="train"), guarantees=claims, rows=[9, 9], parcels=parcels)
        assert chain.length == 3
        lines.append(ledger.lines)
    assert lines[0] == lines[1]


def test_totals_are_the_same_however_often_sites_release_the_same() -> None:
    def totals(*, forget: bool) -> list[object]:
        ledger = Ledger(signer=Signer.from_secret(b"s" * 32))
        chains = [ledger.open_chain(name, secret=b"k" * 32, binding={}) for name in "abc"]
        claims = [Aggregate(rows=10), Aggregate(rows=20), KAnonymous(k=3, rows=7)]
        for number, members in enumerate(([0, 1, 2], [0, 1, 2], [1], [0, 1, 2], [0, 1, 2], [2, 1, 0])):
            for what in ("train", "count"):
                if forget:
                    ledger._panels.clear()
                shrunk = number == 2
                ledger.record(
                    [chains[i] for i in members],
                    LedgerContext(what=what, round=number),
                    guarantees=[claims[i] for i in members],
                    rows=[2 if shrunk else (10, 20, 7)[i] for i in members],
                    parcels=[b"parcel" * (i + 1) for i in members],
                )
        return [*ledger.disclosures(), *ledger.claims()]

    assert totals(forget=False) == totals(forget=True)


class TestTheDoorsMemory:
    """Whoever passed passes again, as long as nothing about the case changed."""

    def passed(self) -> tuple[Ledger, list[Keeper], list[Guarantee]]:
        ledger = Ledger(signer=Signer.from_secret(b"s" * 32))
        keepers = [
            Keeper(name, Policy(), ledger.open_chain(name, secret=b"k" * 32, binding={}), count=150) for name in "ab"
        ]
        claims: list[Guarantee] = [Aggregate(rows=150), Aggregate(rows=150)]
        assert self.ask(ledger, keepers, claims) == [None, None]
        return ledger, keepers, claims

    def ask(
        self, ledger: Ledger, keepers: list[Keeper], claims: list[Guarantee], rows: int = 150
    ) -> list[Refusal | None]:
        return door(
            keepers,
            [b"x"] * len(keepers),
            ledger=ledger,
            ledger_context=LedgerContext(what="train"),
            guarantees=claims,
            rows=[rows] * len(keepers),
        )

    def test_the_same_case_leaves_a_line_every_time(self) -> None:
        ledger, keepers, claims = self.passed()
        for _ in range(3):
            assert self.ask(ledger, keepers, claims) == [None, None]
        assert ledger.length == len(ledger.lines) == 2 + 2 * 4

    def test_a_stricter_policy_is_heard(self) -> None:
        ledger, keepers, claims = self.passed()
        keepers[1].policy = Policy(min_rows=1000)
        first, second = self.ask(ledger, keepers, claims)
        assert first is None
        assert second is not None
        assert self.ask(ledger, keepers, claims)[1] is not None  # and a refusal is no pass the next time

    def test_fewer_rows_at_the_site_are_seen(self) -> None:
        ledger, keepers, claims = self.passed()
        keepers[0].count = 140
        assert self.ask(ledger, keepers, claims)[0] is not None

    def test_another_claim_in_the_same_list_is_judged(self) -> None:
        ledger, keepers, claims = self.passed()
        claims[0] = Aggregate(rows=1)
        assert self.ask(ledger, keepers, claims)[0] is not None

    def test_a_budget_is_asked_every_time(self) -> None:
        ledger = Ledger(signer=Signer.from_secret(b"s" * 32))
        keeper = Keeper("a", Policy(epsilon=1.0), ledger.open_chain("a", secret=b"k" * 32, binding={}))
        claim: list[Guarantee] = [DP(epsilon=0.6, delta=1e-6)]
        assert self.ask(ledger, [keeper], claim) == [None]
        assert self.ask(ledger, [keeper], claim) != [None]


def test_the_ledger_alone_does_not_load_the_compiler() -> None:
    code = "import sys, kohort.privacy.door, kohort.protocol.wire; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
