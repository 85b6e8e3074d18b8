"""Whoever changes a byte of a ledger, moves, adds or removes a line, or cuts the end, is found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.examples import thorough

from kohort.errors import ConfigError, IntegrityError
from kohort.privacy.ledger.ledger import canonical
from kohort.privacy.ledger.signing import Signer
from kohort.privacy.ledger.summary import summarise
from kohort.privacy.ledger.verify import verify_ledger
from kohort.purposes import Purpose

FILES = ("ledger.jsonl", "head.json", "receipts.jsonl")
Copy = Callable[..., Path]


def found(folder: Path) -> None:
    with pytest.raises(IntegrityError):
        verify_ledger(folder)


def test_the_untouched_ledger_is_sound(small_ledger: Path) -> None:
    seen = verify_ledger(small_ledger)
    assert (seen.sites, seen.lines, seen.releases, seen.refusals, seen.receipts) == (3, 10, 5, 1, 2)
    assert verify_ledger(small_ledger.parent / small_ledger.name) == seen


@pytest.fixture
def pretend(small_ledger: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The files' contents as the checker reads them: thousands of changes without a disk."""
    contents = {name: (small_ledger / name).read_bytes() for name in FILES}
    monkeypatch.setattr(Path, "read_bytes", lambda path: contents[path.name])
    return contents


def is_sound(folder: Path) -> bool:
    try:
        verify_ledger(folder)
    except IntegrityError:
        return False
    return True


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_byte_is_found(name: str, small_ledger: Path, pretend: dict[str, bytes]) -> None:
    assert is_sound(small_ledger)
    content = pretend[name]
    for place, byte in enumerate(content):
        masks = [1 << (place % 8), 0x20 if bytes([byte]).isalpha() else 0x01]  # any bit, and capitals for small letters
        for mask in masks if thorough() else masks[place % 2 :][:1]:
            pretend[name] = content[:place] + bytes([byte ^ mask]) + content[place + 1 :]
            assert not is_sound(small_ledger), f"{name}: byte {place} ({byte:#x} ^ {mask:#x}) was changed unseen"


@pytest.mark.parametrize("name", FILES)
def test_every_removed_or_inserted_byte_is_found(name: str, small_ledger: Path, pretend: dict[str, bytes]) -> None:
    content = pretend[name]
    for place in range(len(content)):
        pretend[name] = content[:place] + content[place + 1 :]
        assert not is_sound(small_ledger), f"{name}: byte {place} was removed unseen"
        if place % 3 and not thorough():
            continue
        added = (b" ", b"\n", b"0", b"\r")[place % 4]
        pretend[name] = content[:place] + added + content[place:]
        assert not is_sound(small_ledger), f"{name}: {added!r} was inserted at {place} unseen"


@pytest.mark.parametrize("name", ["ledger.jsonl", "receipts.jsonl"])
def test_every_line_deleted_doubled_moved_or_cut_is_found(name: str, copy_of: Copy) -> None:
    folder = copy_of()
    path = folder / name
    lines = path.read_bytes().splitlines(keepends=True)
    for index in range(len(lines)):
        for changed in (
            lines[:index] + lines[index + 1 :],
            lines[: index + 1] + lines[index:],
            lines[:index],
            [*lines, lines[index]],
        ):
            path.write_bytes(b"".join(changed))
            found(folder)
        for other in range(index):
            swapped = list(lines)
            swapped[index], swapped[other] = swapped[other], swapped[index]
            path.write_bytes(b"".join(swapped))
            found(folder)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"", b"\n", b"{}\n", b"[]\n", b"null\n", b"\xff\xfe\n", b"[" * 200_000 + b"\n"])
def test_a_replaced_file_is_found(name: str, content: bytes, copy_of: Copy) -> None:
    folder = copy_of()
    (folder / name).write_bytes(content)
    found(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_found(name: str, copy_of: Copy) -> None:
    folder = copy_of()
    (folder / name).unlink()
    found(folder)


def test_a_folder_without_any_ledger_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no ledger"):
        verify_ledger(tmp_path)
    with pytest.raises(ConfigError):
        verify_ledger(tmp_path / "not there")


# ---- forgeries that hold together by themselves -----------------------------------------------------------------


def rehashed(line: dict[str, Any]) -> bytes:
    """A line with changed fields and a hash that fits it: what a forger without keys can write."""
    body = json.dumps({key: value for key, value in line.items() if key != "hash"}, separators=(",", ":"))[:-1]
    return f'{body},"hash":"{hashlib.blake2b(body.encode(), digest_size=32).hexdigest()}"}}\n'.encode()


def order_of(lines: list[bytes]) -> str:
    """What the head says of the lines' order."""
    return hashlib.blake2b("".join(json.loads(raw)["hash"] for raw in lines).encode(), digest_size=32).hexdigest()


def signed_again(folder: Path, secret: bytes, **changes: Any) -> None:
    """A head with changed fields, signed with another key: what a forger with his own key can write."""
    head = json.loads((folder / "head.json").read_bytes())
    signer = Signer.from_secret(secret)
    said = {key: value for key, value in head.items() if key != "signature"}
    statement = said | {"site_key": signer.public, "signer": signer.record} | changes
    signature = signer.sign(canonical(statement).encode(), purpose=Purpose.LEDGER_HEAD)
    (folder / "head.json").write_text(canonical({**statement, "signature": signature}) + "\n")


def test_a_head_under_another_key_does_not_fit_the_receipts(copy_of: Copy) -> None:
    folder = copy_of()
    signed_again(folder, b"x" * 32)
    found(folder)


def test_another_hub_key_does_not_fit_the_receipts(copy_of: Copy) -> None:
    folder = copy_of()
    signed_again(folder, b"s" * 32, hub_key=Signer.from_secret(b"y" * 32).public)
    found(folder)


def test_the_same_head_under_its_own_key_is_sound(copy_of: Copy) -> None:
    folder = copy_of()
    signed_again(folder, b"s" * 32)
    verify_ledger(folder)  # so the two tests above fail for the key, not for the way the head is written


@pytest.mark.parametrize(
    "changes",
    [
        {"chains": []},
        {"chains": {}},
        {"chains": {"north": None}},
        {"chains": {"north": [1, 2, 3]}},
        {"receipts": None},
        {"receipts": [0, "0" * 64]},
        {"version": 1},
        {"version": 3},
        {"version": "2"},
        {"order": ""},
        {"hub_key": 5},
        {"hub_key": ""},
    ],
)
def test_a_head_of_the_wrong_shape_is_found_even_when_signed(changes: dict[str, Any], copy_of: Copy) -> None:
    folder = copy_of()
    signed_again(folder, b"s" * 32, **changes)
    found(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"event": []},
        {"event": "secret"},
        {"seq": "0"},
        {"receipt": []},
        {"receipt": None},
        {"site": {}},
        {"binding": None, "more": 1},
        {"prev": None},
    ],
)
@pytest.mark.parametrize("index", [0, 3, 9])
def test_lines_of_the_wrong_shape_are_found_even_when_their_hash_holds(
    change: dict[str, Any], index: int, copy_of: Copy
) -> None:
    folder = copy_of()
    path = folder / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[index] = rehashed(json.loads(lines[index]) | change)
    path.write_bytes(b"".join(lines))
    found(folder)


@pytest.mark.parametrize(
    "guarantee", [None, [], "raw", {}, {"kind": "better"}, {"kind": "raw", "rows": 1, "more": 2}, {"kind": ["raw"]}]
)
def test_a_line_that_claims_an_unknown_guarantee_is_found(guarantee: Any, copy_of: Copy) -> None:
    folder = copy_of()
    path = folder / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = rehashed(json.loads(lines[3]) | {"guarantee": guarantee})
    path.write_bytes(b"".join(lines))
    found(folder)
    with pytest.raises(IntegrityError):
        summarise(folder)


@pytest.mark.parametrize("key", ["seq", "prev", "request", "sites", "heads", "site_signature", "hub_signature"])
@pytest.mark.parametrize("value", [None, [], {}, "0", -1])
def test_receipts_of_the_wrong_shape_are_found(key: str, value: Any, copy_of: Copy) -> None:
    folder = copy_of()
    path = folder / "receipts.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    changed = json.loads(lines[1]) | {key: value}
    path.write_bytes(lines[0] + rehashed(changed))
    found(folder)
    del changed[key]
    path.write_bytes(lines[0] + rehashed(changed))
    found(folder)


def test_the_site_cannot_rewrite_its_last_line_alone(copy_of: Copy) -> None:
    """Even with the sites' key: the hub's receipt speaks of the line as it was."""
    folder = copy_of()
    path = folder / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    last = max(index for index, raw in enumerate(lines) if json.loads(raw)["site"] == "north")
    forged = rehashed(json.loads(lines[last]) | {"rows": 1, "guarantee": {"kind": "aggregate", "rows": 1}})
    lines[last] = forged
    path.write_bytes(b"".join(lines))
    head = json.loads((folder / "head.json").read_bytes())
    chains = head["chains"] | {"north": [head["chains"]["north"][0], json.loads(forged)["hash"]]}
    signed_again(folder, b"s" * 32, chains=chains, order=order_of(lines))
    with pytest.raises(IntegrityError, match="does not match the ledger lines"):
        verify_ledger(folder)


def test_a_quoted_receipt_must_have_been_issued(copy_of: Copy) -> None:
    """A whole chain rewritten after the last receipt, signed by the sites, quoting a receipt the hub never gave."""
    folder = copy_of()
    path = folder / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    note = json.loads(lines[-1])
    assert note["event"] == "note"
    lines[-1] = rehashed(note | {"receipt": "f" * 64})
    path.write_bytes(b"".join(lines))
    head = json.loads((folder / "head.json").read_bytes())
    chains = head["chains"] | {note["site"]: [note["seq"] + 1, json.loads(lines[-1])["hash"]]}
    signed_again(folder, b"s" * 32, chains=chains, order=order_of(lines))
    with pytest.raises(IntegrityError, match="quotes a receipt"):
        verify_ledger(folder)
