"""Bytes that others rely on: payloads, ledger lines and plan hashes must not change without a new format number.

Source of every figure here: this library, version 0.1.0. A change that breaks one needs a new version of that format.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.ledgers import record_one

from kohort.errors import IntegrityError
from kohort.privacy.guarantee import DP, Aggregate, DomainClaim
from kohort.privacy.ledger.ledger import Ledger, LedgerContext
from kohort.privacy.ledger.receipts import Receipts
from kohort.privacy.ledger.signing import Signer
from kohort.privacy.ledger.verify import checked_chain
from kohort.protocol.task import Request
from kohort.protocol.wire import Payload, decode, encode

PAYLOAD = Payload(
    arrays={"weights": np.array([1.0, -0.0], dtype=np.float32), "flags": np.array([[True], [False]])},
    metrics={"rows": 7, "loss": 0.5, "done": False},
    blobs={"note": b"abc"},
)
WIRE = (
    "4b4852540100000078000000000000007b2261223a5b5b2277656967687473222c223c6634222c5b325d5d2c5b22666c6167"
    "73222c227c6231222c5b322c315d5d5d2c2262223a5b5b226e6f7465222c335d5d2c226d223a5b5b22726f7773222c226922"
    "5d2c5b226c6f7373222c2266225d2c5b22646f6e65222c2262225d5d7d202020202020200700000000000000000000000000"
    "e03f00000000000000000000803f0000008001000000000000006162630000000000"
)


def test_the_wire() -> None:
    assert encode(PAYLOAD).hex() == WIRE
    assert decode(bytes.fromhex(WIRE)).metrics == {"rows": 7, "loss": 0.5, "done": False}


def test_the_request() -> None:
    asked = Request(run="r", plan_hash="p", task="train", round=3, attempt=0, nonce="n", payload=PAYLOAD)
    assert asked.digest == "29c8ddd2711900891c882896d2ed3ec1457eb4a0dff6baafe1f115e9d264c585"


def test_guarantees() -> None:
    assert Aggregate(rows=5).text == '{"kind":"aggregate","rows":5}'
    assert DomainClaim(columns=("a", "b")).text == '{"columns":["a","b"],"kind":"domain"}'
    assert DP(epsilon=1.0, delta=1e-5).text == (
        '{"delta":1e-05,"epsilon":1.0,"event":"","kind":"dp","relation":"add-or-remove-one","scope":"all rows",'
        '"simulated":true,"unit":"row"}'
    )


def test_the_ledger() -> None:
    ledger = Ledger(signer=Signer.from_secret(b"s" * 32), run="r")
    receipts = Receipts(signer=Signer.from_secret(b"h" * 32))
    chain = ledger.open_chain("a", secret=b"k" * 32, binding={"schema": "x"})
    ledger_context = LedgerContext(what="train", request="0" * 64, round=1)
    record_one(ledger, chain, ledger_context, Aggregate(rows=5), 5, b"bytes")
    receipts.issue(ledger, [chain], ledger_context)
    ledger.note(chain, ledger_context, reason="why")
    assert "".join(ledger.lines) == LEDGER
    # Receipts and heads have format 2: their signatures have purposes, and cover names and lengths.
    assert receipts.head == "fdeea0d6aa894818514f02245d35c54059188d0f7c5a2e32c1511c74f93f641e"
    head = ledger.head(receipts=(receipts.length, receipts.head), hub_key=receipts.public)
    assert head["signature"] == (
        "3bb60a36f52e8ee3440751043e59c16bee764f58a58700120a8996e2fcaccb204118bd5fdd374c2b140b45a054e67818f2b86e69c75680c0119fcdbc1c1f6f03"
    )


def test_a_ledger_from_before_reasons_had_digests_is_read_and_continued(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_text(FORMER_LEDGER, encoding="utf-8")
    lines = checked_chain(tmp_path / "ledger.jsonl")
    ledger = Ledger(signer=Signer.from_secret(b"s" * 32), run="r")
    ledger.adopt(lines)
    chain = ledger.open_chain("a", secret=b"k" * 32, binding={"schema": "x"})
    assert (chain.length, chain.head) == (3, lines[-1]["hash"])
    with pytest.raises(IntegrityError, match="another schema"):
        ledger.open_chain("a", secret=b"k" * 32, binding={"schema": "y"})


LEDGER = (
    '{"site":"a","seq":0,"prev":"0000000000000000000000000000000000000000000000000000000000000000","recei'
    'pt":"","event":"open","binding":{"schema":"x"},"digest":"682da3a1125dddbccd46f6433b9104992575c2a5852'
    '4a03fa167e0aed917dc49","hash":"6190a4e503f3fb4106afd5d7f593af88fe78b27076425e68896f9cf42dce6cfe"}\n'
    '{"site":"a","seq":1,"prev":"6190a4e503f3fb4106afd5d7f593af88fe78b27076425e68896f9cf42dce6cfe","recei'
    'pt":"","event":"release","what":"train","to":"hub","via":"","round":1,"request":"0000000000000000000'
    '000000000000000000000000000000000000000000000","guarantee":{"kind":"aggregate","rows":5},"rows":5,"s'
    'ize":5,"digest":"c2a0379f081ba1a503fe27fe9889f8526ed777bf22fc34086f0ac6995382fb01","hash":"6e5eeeb26'
    '488bb649451c92f69bfbe2b492a0ac8816c476d14d5ea5b9cd1e34c"}\n'
    '{"site":"a","seq":2,"prev":"6e5eeeb26488bb649451c92f69bfbe2b492a0ac8816c476d14d5ea5b9cd1e34c","recei'
    'pt":"fdeea0d6aa894818514f02245d35c54059188d0f7c5a2e32c1511c74f93f641e","event":"note","what":"train"'
    ',"to":"hub","via":"","round":1,"request":"0000000000000000000000000000000000000000000000000000000000'
    '000000","reason":"why","digest":"c9c551c8f0ce9048b455e0acaae22c9a2ece9aa02760541e1b55fa89262f6540","'
    'hash":"4882a0e4dd069e76937fad32659c49c3e517b7460b44905c5ce80aba6fba8882"}\n'
)
FORMER_LEDGER = (
    '{"site":"a","seq":0,"prev":"0000000000000000000000000000000000000000000000000000000000000000","recei'
    'pt":"","event":"open","binding":{"schema":"x"},"hash":"2889b48dea7596b7c0b543f0e6d2165d852a04abbca4a'
    '5eab47706ecb75ada2d"}\n'
    '{"site":"a","seq":1,"prev":"2889b48dea7596b7c0b543f0e6d2165d852a04abbca4a5eab47706ecb75ada2d","recei'
    'pt":"","event":"release","what":"train","to":"hub","via":"","round":1,"request":"0000000000000000000'
    '000000000000000000000000000000000000000000000","guarantee":{"kind":"aggregate","rows":5},"rows":5,"s'
    'ize":5,"digest":"c2a0379f081ba1a503fe27fe9889f8526ed777bf22fc34086f0ac6995382fb01","hash":"f59ab575a'
    '3439b74c1d2fd1dd3aaf5c5e4f41ebb93fcd6ec3e1f304577ff15e9"}\n'
    '{"site":"a","seq":2,"prev":"f59ab575a3439b74c1d2fd1dd3aaf5c5e4f41ebb93fcd6ec3e1f304577ff15e9","recei'
    'pt":"a93c39eb2f96fce97ea3bd8887ab19dded2fcdcb4e9460fb306299b7ed46ceb9","event":"note","what":"train"'
    ',"to":"hub","via":"","round":1,"request":"0000000000000000000000000000000000000000000000000000000000'
    '000000","reason":"why","hash":"26217823c00c84fca582c0fdb343b72325c4b8b04b5c1105567f6f8ea5a2b6a7"}\n'
)
"""What wrote no digest where there is no payload."""
