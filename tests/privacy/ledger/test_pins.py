"""A signer is who the keys say, not who the record says; a chain is its own site's."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.forger import fresh_signer, hashed

from kohort.errors import IntegrityError
from kohort.privacy.ledger.checks import SignedBy, canonical_bytes, signed_statement
from kohort.privacy.ledger.ledger import GENESIS, canonical
from kohort.privacy.ledger.pins import Pins
from kohort.privacy.ledger.verify_receipts import verify_site_receipts
from kohort.purposes import Purpose


def statement(signer: int, **changes: str) -> dict[str, object]:
    key = fresh_signer(signer)
    said: dict[str, object] = {"words": 1, "signer": {**key.record, **changes}}
    return {**said, "signature": key.sign(canonical_bytes(said), purpose=Purpose.RESULT)}


def test_a_statement_is_signed_by_its_signer_for_its_purpose() -> None:
    good = statement(1)
    assert signed_statement(good, purpose="result", where="it").fingerprint == fresh_signer(1).record["fingerprint"]
    for bad in ({**good, "words": 2}, {**good, "signer": fresh_signer(2).record}, {**good, "signature": ""}):
        with pytest.raises(IntegrityError, match="signature"):
            signed_statement(bad, purpose="result", where="it")
    with pytest.raises(IntegrityError, match="signature"):
        signed_statement(good, purpose="ledger head", where="it")


def test_nobody_signs_under_the_fingerprint_of_another() -> None:
    borrowed = statement(1, fingerprint=fresh_signer(2).record["fingerprint"])
    with pytest.raises(IntegrityError, match="fingerprint is not that of its keys"):
        signed_statement(borrowed, purpose="result", where="it")


def test_a_site_folder_holds_the_chain_of_its_own_site() -> None:
    signer = SignedBy(key="k", fingerprint="f")
    Pins(site="north").check_chains(["north"], signer)
    for chains in (["south"], ["north", "south"], []):
        with pytest.raises(IntegrityError, match="not that of site 'north'"):
            Pins(site="north").check_chains(chains, signer)


def test_a_chain_is_signed_by_its_own_site() -> None:
    known = Pins(sites={"north": "n", "south": "s"})
    north, stranger = SignedBy(key="k", fingerprint="n"), SignedBy(key="k", fingerprint="x")
    known.check_chains(["north"], north)
    known.check_chains(["east"], stranger)
    known.check_chains([], north)
    for chains, signer in ((["south"], north), (["north"], stranger), (["north", "south"], north), (["east"], north)):
        with pytest.raises(IntegrityError, match="is not signed by that site"):
            known.check_chains(chains, signer)


def test_receipts_are_signed_by_the_hub(tmp_path: Path) -> None:
    hub, site = fresh_signer(1, "hub"), fresh_signer(2, "north")
    line = {"version": 2, "seq": 0, "prev": GENESIS, "request": "r", "sites": 1, "heads": "h", "site_signature": ""}
    line["hub_signature"] = hub.sign(canonical([GENESIS, "r", "h"]).encode(), purpose=Purpose.RECEIPT)

    (tmp_path / "receipts.jsonl").write_bytes(hashed(line)[0])
    keys = {"site": "north", "site_key": site.public}
    assert verify_site_receipts(tmp_path / "receipts.jsonl", hub_key=hub.public, **keys).receipts == 1
    with pytest.raises(IntegrityError, match="the hub did not sign it"):
        verify_site_receipts(tmp_path / "receipts.jsonl", hub_key=site.public, **keys)
