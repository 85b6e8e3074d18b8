"""Ledger, receipts, signatures and totals."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.ledgers import SITES, Written, open_ledger, record_one, write_small_ledger

from kohort.errors import ConfigError, IntegrityError, ResourceError
from kohort.privacy.guarantee import DP, Aggregate, Guarantee, KAnonymous, Raw, SecureSum
from kohort.privacy.ledger import receipts as receipts_module
from kohort.privacy.ledger.ledger import GENESIS, Chain, Ledger, LedgerContext, canonical, quoted
from kohort.privacy.ledger.receipts import Receipts
from kohort.privacy.ledger.signing import Signer, signature_holds
from kohort.privacy.ledger.summary import summarise
from kohort.privacy.ledger.verify import verify_ledger
from kohort.privacy.policy import Policy
from kohort.purposes import Purpose


def ledger_context(number: int, *, to: str = "hub") -> LedgerContext:
    return LedgerContext(what="train", to=to, request=f"{number:064x}", round=number)


@given(st.text())
def test_a_text_alone_is_quoted_as_json_quotes_it(text: str) -> None:
    assert quoted(text) == canonical(text)


def test_the_same_events_write_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_small_ledger(tmp_path / name)
    for file in ("ledger.jsonl", "head.json", "receipts.jsonl"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_chains_of_one_file_are_separate_and_start_at_nothing(small_ledger: Path) -> None:
    ends = dict.fromkeys(SITES, GENESIS)
    for raw in (small_ledger / "ledger.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(raw)
        assert line["prev"] == ends[line["site"]]
        ends[line["site"]] = line["hash"]
    head = json.loads((small_ledger / "head.json").read_bytes())
    assert {name: end for name, (_, end) in head["chains"].items()} == ends


def test_the_next_line_quotes_the_receipt(small_ledger: Path) -> None:
    receipts = [json.loads(raw)["hash"] for raw in (small_ledger / "receipts.jsonl").read_text().splitlines()]
    lines = [json.loads(raw) for raw in (small_ledger / "ledger.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {line["receipt"] for line in lines if line["event"] != "open" and line["round"] == 0} == {""}
    second = [line["receipt"] for line in lines if line["event"] in {"release", "refusal"} and line["round"] == 1]
    assert second == [receipts[0]] * 3
    assert lines[-1]["receipt"] == receipts[1]


def test_digests_are_keyed_by_the_site() -> None:
    one, other = Chain("a", secret=b"1" * 32), Chain("b", secret=b"2" * 32)
    assert one.digest(b"same") == one.digest(memoryview(b"same"))
    assert one.digest(b"same") != other.digest(b"same")
    assert one.digest(b"") != other.digest(b"")


def test_the_hub_refuses_a_head_that_goes_back() -> None:
    written = open_ledger(None, policy=Policy())
    chain = written.sites[0].chain
    for number in range(2):
        written.ledger.note(chain, ledger_context(number), reason="x")
        written.receipts.issue(written.ledger, [chain], ledger_context(number))
    replaced = Chain(chain.site, secret=b"z" * 32)
    replaced.length = chain.length - 1
    with pytest.raises(IntegrityError, match="is shorter than at its last receipt"):
        written.receipts.issue(written.ledger, [replaced], ledger_context(3))


def test_the_order_of_the_chains_does_not_change_a_receipt() -> None:
    heads = []
    for turned in (False, True):
        written = open_ledger(None, policy=Policy())
        chains = [site.chain for site in written.sites]
        heads.append(written.receipts.issue(written.ledger, chains[::-1] if turned else chains, ledger_context(0)))
    assert heads[0] == heads[1]


def test_a_receipt_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = open_ledger(tmp_path, policy=Policy())
    chain = written.sites[0].chain

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(receipts_module, "write_whole", full)
    release(written, chain, 0, b"x")
    with pytest.raises(ResourceError, match="cannot write"):
        written.receipts.issue(written.ledger, [chain], ledger_context(0))


def release(
    written: Written, chain: Chain, number: int, payload: bytes, claim: Guarantee | None = None, rows: int = 150
) -> None:
    claim = claim or Aggregate(rows=rows)
    record_one(written.ledger, chain, ledger_context(number), claim, rows, payload)


def test_totals_by_site_and_recipient(tmp_path: Path) -> None:
    written = open_ledger(tmp_path, policy=Policy(), names=("a", "b"))
    first, second = (site.chain for site in written.sites)

    def release(chain: Chain, claim: Any, rows: int, number: int, to: str = "hub") -> None:
        place = ledger_context(number, to=to)
        record_one(written.ledger, chain, place, claim, rows, b"12345")

    release(first, KAnonymous(k=9, l=3, t=0.1, verified=True), 50, 0)
    release(first, KAnonymous(k=7, l=4, t=0.2, verified=True), 80, 1)
    release(first, DP(epsilon=0.5, delta=1e-6), 80, 2)
    release(first, DP(epsilon=0.25, delta=1e-6), 80, 3)
    release(first, DP(epsilon=4.0, delta=1e-6), 80, 3, to="peer")
    release(second, Aggregate(rows=10), 10, 4)
    written.ledger.refuse(second, ledger_context(5), guarantee=Raw(rows=10), reason="no")
    written.seal()
    totals = {(total.site, total.recipient, total.kind): total for total in summarise(tmp_path)}
    classes = totals["a", "hub", "k-anonymous"]
    assert (classes.k, classes.l, classes.t, classes.rows, classes.releases, classes.size) == (7, 3, 0.2, 80, 2, 10)
    assert totals["a", "hub", "dp"].epsilon == pytest.approx(0.75)
    assert totals["a", "hub", "dp"].delta == pytest.approx(2e-6)
    assert totals["a", "peer", "dp"].epsilon == 4.0
    assert (totals["b", "hub", "raw"].releases, totals["b", "hub", "raw"].refusals) == (0, 1)
    disclosed = {(item.recipient, item.kind): item for item in written.ledger.disclosures()}
    assert disclosed["hub", "k-anonymous"].rows == 80  # a row that left twice is still one row
    assert disclosed["hub", "dp"].releases == 2
    assert ("hub", "raw") not in disclosed
    json.dumps([total.to_mapping() for total in totals.values()])


def test_rows_of_a_release_in_several_messages_are_those_of_the_message_that_holds_them() -> None:
    written = open_ledger(None, policy=Policy(), names=("a",))
    claim = SecureSum(sites=3, threshold=3, colluders=1, opens="hub: the total")
    for number, rows in enumerate((0, 40, 0)):
        release(written, written.sites[0].chain, number, b"x", claim, rows)
    assert [item.rows for item in written.ledger.disclosures()] == [40]


def test_disclosures_come_in_the_order_things_left() -> None:
    written = open_ledger(None, policy=Policy(), names=("a", "b", "c"))
    chains = [site.chain for site in written.sites]
    claims = [DP(epsilon=1.0, delta=0), Aggregate(rows=5), Raw(rows=5)]
    for chain, claim in zip(chains, claims, strict=True):
        release(written, chain, 0, b"x", claim, 5)
    assert [item.kind for item in written.ledger.disclosures()] == ["dp", "aggregate", "raw"]


@pytest.mark.parametrize(
    "name", ['quote"', "back\\slash", "new\nline", "süd", "日本", "tab\t", "'", "{}", "\u2028", ""]
)
def test_any_site_name_makes_a_sound_ledger(name: str, tmp_path: Path) -> None:
    written = open_ledger(tmp_path, policy=Policy(), names=(name, "other"))
    chains = [site.chain for site in written.sites]
    claims = [Aggregate(rows=5)] * 2
    for chain, claim in zip(chains, claims, strict=True):
        release(written, chain, 0, b"x", claim, 5)
    written.receipts.issue(written.ledger, chains, ledger_context(0))
    written.ledger.note(chains[0], ledger_context(0), reason=f"about {name}")
    written.seal()
    assert verify_ledger(tmp_path).sites == 2
    assert {total.site for total in summarise(tmp_path)} == {name, "other"}


def test_a_durable_book_is_flushed_line_by_line_and_tells_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr("kohort.privacy.ledger.ledger.os.fsync", flushed.append)
    ledger = Ledger(signer=Signer.from_secret(b"s" * 32), folder=tmp_path, durable=True)
    receipts = Receipts(signer=Signer.from_secret(b"h" * 32), folder=tmp_path)
    chain = ledger.open_chain("a", secret=b"k" * 32, binding={})
    before = len(flushed)
    record_one(ledger, chain, ledger_context(0), Aggregate(rows=1), 1, b"x")
    assert len(flushed) > before
    receipts.issue(ledger, [chain], ledger_context(0))
    ledger.seal(receipts=(receipts.length, receipts.head), hub_key=receipts.public)
    ledger.close()
    receipts.close()
    assert json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[1])["time"] > 1_600_000_000
    verify_ledger(tmp_path)


class _Choking:
    """A file that takes a few bytes at a time."""

    def __init__(self, limit: int) -> None:
        self.taken = b""
        self.limit = limit
        self.name = "choking"

    def write(self, content: memoryview) -> int:
        if len(self.taken) >= self.limit:
            raise OSError(28, "No space left on device")
        part = bytes(content[:7])
        self.taken += part
        return len(part)


@pytest.mark.parametrize("part", ["ledger", "receipts"])
def test_short_writes_are_finished_and_a_full_disk_is_said(part: str) -> None:
    written = open_ledger(None, policy=Policy(), names=("a",))
    chain = written.sites[0].chain
    owner: Any = getattr(written, part)

    def act(number: int) -> None:
        if part == "ledger":
            written.ledger.note(chain, ledger_context(number), reason="x" * 100)
        else:
            written.receipts.issue(written.ledger, [chain], ledger_context(number))

    owner._path = Path("ledger.jsonl")
    owner._file = patient = _Choking(10**6)
    act(0)
    assert patient.taken.endswith(b'"}\n')
    assert json.loads(patient.taken)["hash"]
    owner._file = _Choking(20)
    with pytest.raises(ResourceError):
        act(1)


def test_an_unwritable_folder_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError):
        Ledger(signer=Signer.from_secret(b"s" * 32), folder=tmp_path / "file" / "ledger")
    with pytest.raises(ConfigError):
        Receipts(signer=Signer.from_secret(b"s" * 32), folder=tmp_path / "file" / "ledger")


def test_canonical_json_is_one_text_and_knows_no_nan() -> None:
    assert canonical({"b": 1, "a": [1.5, "ü"]}) == '{"a":[1.5,"ü"],"b":1}'
    with pytest.raises(ValueError, match="JSON"):
        canonical(float("nan"))


def test_signatures_hold_for_their_message_and_key_alone() -> None:
    signer = Signer.from_secret(bytes(range(32)))
    # RFC 8032, section 7.1, TEST 1: secret key, public key and signature of the empty message.
    known = Signer.from_secret(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
    assert known.public == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    bare = "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
    bare += "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
    assert signature_holds(known.public, b"", bare, purpose=None)
    assert not signature_holds(known.public, b"", bare, purpose=Purpose.RECEIPT)
    signature = signer.sign(b"message", purpose=Purpose.RECEIPT)
    assert signature_holds(signer.public, b"message", signature, purpose=Purpose.RECEIPT)
    assert signature_holds(signer.public, b"kohort receipt\0message", signature, purpose=None)
    for purpose in (None, Purpose.LEDGER_HEAD):
        assert not signature_holds(signer.public, b"message", signature, purpose=purpose)
    assert not signature_holds(signer.public, b"massage", signature, purpose=Purpose.RECEIPT)
    assert not signature_holds(known.public, b"message", signature, purpose=Purpose.RECEIPT)
    for broken in ("", "zz", signature[:-2], "00" * 64):
        assert not signature_holds(signer.public, b"message", broken, purpose=Purpose.RECEIPT)
        assert not signature_holds(broken, b"message", signature, purpose=Purpose.RECEIPT)
    assert "key" not in repr(signer).lower()
