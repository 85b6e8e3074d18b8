"""Sealed messages: only what was sealed opens, for the right site, run, round and plan, and once."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from kohort.crypto.sealed import (
    Identity,
    PublicIdentity,
    SequenceMemory,
    open_sealed,
    padded_size,
    seal,
)
from kohort.crypto.suites import expand, extract
from kohort.errors import ConfigError, IntegrityError

SUITES = ("standard", "fips")
PLAN = "ab" * 32
HERE: dict[str, Any] = {"run": "run-1", "round": 3, "plan_hash": PLAN}
PEOPLE = {
    (suite, name): Identity.from_secret(name, name.encode() * 32, suite=suite)
    for suite in SUITES
    for name in ("ann", "bob", "eve")
}


def pair(suite: str) -> tuple[Identity, Identity]:
    return PEOPLE[suite, "ann"], PEOPLE[suite, "bob"]


def sealed(payload: bytes = b"model", suite: str = "standard", **changes: Any) -> bytes:
    ann, bob = pair(suite)
    return seal(payload, **{"sender": ann, "recipient": bob.public, "sequence": 7, **HERE, **changes})


def opened(box: bytes, suite: str = "standard", **changes: Any) -> bytes:
    ann, bob = pair(suite)
    return open_sealed(box, **{"recipient": bob, "sender": ann.public, "memory": SequenceMemory(), **HERE, **changes})


@pytest.mark.parametrize("suite", SUITES)
@given(payload=st.binary(max_size=3000), sequence=st.integers(0, 2**64 - 1), round=st.integers(0, 2**64 - 1))
@examples(20, 40)
def test_what_was_sealed_opens(suite: str, payload: bytes, sequence: int, round: int) -> None:
    box = sealed(payload, suite, sequence=sequence, round=round)
    assert opened(box, suite, round=round) == payload
    assert payload not in box or len(payload) < 4


@pytest.mark.parametrize("suite", SUITES)
def test_every_altered_byte_is_refused(suite: str) -> None:
    box = sealed(suite=suite)
    assert opened(box, suite) == b"model"
    for place in range(len(box)):
        altered = bytearray(box)
        altered[place] ^= 1 << place % 8
        with pytest.raises(IntegrityError, match="'ann'"):
            opened(bytes(altered), suite)


@pytest.mark.parametrize("suite", SUITES)
@given(data=st.data())
@examples(40, 150)
def test_altered_cut_and_extended_boxes_are_refused(suite: str, data: st.DataObject) -> None:
    box = sealed(b"x" * 700, suite)
    place = data.draw(st.integers(0, len(box) - 1))
    change: Callable[[], bytes] = data.draw(
        st.sampled_from(
            [
                lambda: box[:place],
                lambda: box[place + 1 :],
                lambda: box[:place] + box[place + 1 :],
                lambda: (
                    box[:place]
                    + bytes([data.draw(st.integers(0, 255).filter(lambda b: b != box[place]))])
                    + box[place + 1 :]
                ),
                lambda: box[:place] + data.draw(st.binary(min_size=1, max_size=9)) + box[place:],
                lambda: data.draw(st.binary(max_size=900)),
            ]
        )
    )
    altered = change()
    if altered != box:
        with pytest.raises(IntegrityError, match="a sealed message from 'ann'"):
            opened(altered, suite)


@pytest.mark.parametrize("suite", SUITES)
def test_a_box_holds_for_its_occasion_only(suite: str) -> None:
    box, (ann, bob), eve = sealed(suite=suite), pair(suite), PEOPLE[suite, "eve"]
    renamed = PublicIdentity("ann", eve.public.signing, eve.public.exchange, suite)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("another run", {"run": "run-2"}),
        ("another round", {"round": 4}),
        ("another plan", {"plan_hash": "cd" * 32}),
        ("names another sender", {"sender": eve.public}),
        ("other keys than the sender's", {"sender": renamed}),
        ("addressed to another site", {"recipient": eve}),
        ("sealed to other keys", {"recipient": bob.for_run(b"r" * 32)}),
    ]
    for words, change in cases:
        with pytest.raises(IntegrityError, match=words) as caught:
            opened(box, suite, **change)
        assert caught.value.exit_code == 6
        assert "model" not in str(caught.value)
    back = seal(b"model", sender=ann, recipient=bob.public, sequence=1, **HERE)
    with pytest.raises(IntegrityError):  # sent back to where it came from
        open_sealed(back, recipient=ann, sender=bob.public, memory=SequenceMemory(), **HERE)


@pytest.mark.parametrize("suite", SUITES)
def test_a_box_signed_by_another_or_spliced_is_refused(suite: str) -> None:
    """The recipient knows the pair's keys and could forge a ciphertext: the signature is what it cannot make."""
    ann, bob = pair(suite)
    forger = Identity("ann", suite, bob.signing_key, ann.exchange_key)
    box = seal(b"forged", sender=forger, recipient=bob.public, sequence=7, **HERE)
    genuine = sealed(b"forged", suite)
    size = int.from_bytes(genuine[:2], "big")
    for altered in (box, genuine[: 2 + size] + box[2 + size :], genuine[:-64] + box[-64:]):
        with pytest.raises(IntegrityError):
            opened(altered, suite)
    with pytest.raises(IntegrityError, match="signature"):
        opened(genuine[:-64] + box[-64:], suite)


def test_a_second_form_of_an_ecdsa_signature_is_refused() -> None:
    box = sealed(suite="fips")
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    mirrored = (order - int.from_bytes(box[-32:], "big")).to_bytes(32, "big")
    with pytest.raises(IntegrityError, match="signature"):
        opened(box[:-32] + mirrored, "fips")


@pytest.mark.parametrize("suite", SUITES)
def test_sealing_repeats_byte_for_byte_and_never_uses_a_key_twice(suite: str) -> None:
    first, again, other = sealed(b"one", suite), sealed(b"one", suite), sealed(b"two", suite)
    assert first == again
    salt = slice(2 + 18, 2 + 18 + 32)
    assert first[salt] != other[salt]  # the same sequence number with another payload: another salt, so another key
    assert first[salt] != sealed(b"one", suite, sequence=8)[salt]


@given(st.integers(0, 2**22))
def test_size_classes(length: int) -> None:
    size = padded_size(length)
    assert size >= max(256, length + 8)
    assert size <= max(256, (length + 8) * 9 / 8 + 1)
    assert padded_size(length + 1) >= size
    assert bin(size).rstrip("0").count("1") <= 4
    assert len(bin(size).rstrip("0")) <= 2 + 4  # four leading bits tell the class


def test_boxes_of_a_class_are_of_one_size() -> None:
    assert len({len(sealed(b"x" * n)) for n in range(0, 249, 8)}) == 1
    assert len(sealed(b"x" * 249)) > len(sealed(b"x" * 248))


def test_replays_and_older_messages_are_refused() -> None:
    memory = SequenceMemory()
    boxes = {number: sealed(sequence=number) for number in (1, 2, 5)}
    assert opened(boxes[2], memory=memory) == b"model"
    with pytest.raises(IntegrityError, match="'ann' was delivered before"):
        opened(boxes[2], memory=memory)
    with pytest.raises(IntegrityError, match="'ann' is older"):
        opened(boxes[1], memory=memory)
    opened(boxes[5], memory=memory)
    assert memory.last("run-1", "ann") == 5
    opened(sealed(run="run-2", sequence=1), run="run-2", memory=memory)  # another run counts anew
    with pytest.raises(IntegrityError):
        opened(boxes[5], memory=memory)


def test_a_refused_box_is_not_remembered() -> None:
    memory = SequenceMemory()
    broken = sealed(sequence=2**40)[:-1] + b"\0"
    with pytest.raises(IntegrityError):
        opened(broken, memory=memory)
    assert memory.last("run-1", "ann") is None
    opened(sealed(sequence=1), memory=memory)


def test_memory_survives_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "state" / "sequences.json"
    memory = SequenceMemory(path)
    memory.accept("run-1", "ann", 4)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = SequenceMemory(path)
    with pytest.raises(IntegrityError, match="sequence 4, last 4"):
        again.accept("run-1", "ann", 4)
    again.accept("run-1", "ann", 5)
    again.forget("run-1")
    assert SequenceMemory(path).last("run-1", "ann") is None


def test_messages_accepted_together_are_written_once_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "sequences.json"
    memory = SequenceMemory(path)
    with memory.together():
        memory.accept("run-1", "ann", 1)
        assert not path.exists()
        memory.accept("run-1", "bob", 1)
    assert json.loads(path.read_bytes())["last"] == {"run-1": {"ann": 1, "bob": 1}}
    with pytest.raises(IntegrityError), memory.together():
        _accept_all(memory, {"ann": 2, "bob": 1})
    assert memory.last("run-1", "ann") == 1
    memory.accept("run-1", "ann", 2)
    assert SequenceMemory(path).last("run-1", "ann") == 2


def _accept_all(memory: SequenceMemory, numbers: dict[str, int]) -> None:
    for sender, number in numbers.items():
        memory.accept("run-1", sender, number)


def test_what_cannot_be_written_was_not_accepted(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    memory = SequenceMemory()
    memory._path = blocked / "sequences.json"
    with pytest.raises(ConfigError, match="cannot write"):
        memory.accept("run-1", "ann", 1)
    assert memory.last("run-1", "ann") is None


@pytest.mark.parametrize(
    "content", ["", "[]", '{"version": 1}', '{"version": 2, "last": {}}', '{"version": 1, "last": {"r": {"a": -1}}}']
)
def test_a_damaged_memory_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "sequences.json"
    path.write_text(content)
    with pytest.raises(IntegrityError, match=r"sequences\.json"):
        SequenceMemory(path)


def test_bad_settings_say_so() -> None:
    for change in ({"sequence": -1}, {"sequence": 2**64}, {"round": -1}, {"run": "r" * 70_000}):
        with pytest.raises(ConfigError):
            sealed(**change)
    with pytest.raises(ConfigError, match="same suite"):
        sealed(recipient=PEOPLE["fips", "bob"].public)
    with pytest.raises(ConfigError, match="standard"):
        Identity.generate("ann", suite="standart")
    with pytest.raises(ConfigError, match="32 bytes"):
        Identity.from_secret("ann", b"short")


def test_malformed_and_weak_keys_are_refused() -> None:
    ann, bob = pair("standard")
    with pytest.raises(IntegrityError, match="'bob' are malformed"):
        PublicIdentity("bob", bob.public.signing[:-1], bob.public.exchange)
    with pytest.raises(IntegrityError, match="malformed"):
        PublicIdentity("bob", b"\4" + bytes(64), b"\4" + bytes(64), "fips")  # not on the curve
    weak = PublicIdentity("bob", bob.public.signing, bytes(32))  # every exchange with it gives zeros
    with pytest.raises(IntegrityError, match="'bob' is not usable"):
        sealed(recipient=weak, sender=ann.for_run())


def test_identities_are_repeatable_distinct_and_tell_no_secret() -> None:
    ann = PEOPLE["standard", "ann"]
    assert Identity.from_secret("ann", b"ann" * 32).public == ann.public
    run = ann.for_run(b"r" * 32)
    assert run.public.signing == ann.public.signing
    assert run.public.exchange == ann.for_run(b"r" * 32).public.exchange != ann.public.exchange
    prints = {
        i.public.fingerprint for i in (*PEOPLE.values(), run, ann.for_run(), ann.for_run(), Identity.generate("x"))
    }
    assert len(prints) == len(PEOPLE) + 4
    assert all(len(p) == 64 for p in prints)
    assert "key" not in repr(ann)


def test_a_signature_holds_for_its_purpose_only() -> None:
    for suite in SUITES:
        ann, bob = pair(suite)
        signature = ann.sign(b"words", purpose="one")
        assert ann.public.signed(b"words", signature, purpose="one")
        assert not ann.public.signed(b"words", signature, purpose="two")
        assert not ann.public.signed(b"word", signature, purpose="one")
        assert not bob.public.signed(b"words", signature, purpose="one")
        assert not ann.public.signed(b"words", signature[:-1], purpose="one")
        assert not ann.public.signed(b"words", b"", purpose="one")


# A second reading of the format, with nothing but library calls.


def texts(*parts: str) -> bytes:
    return b"".join(len(part).to_bytes(2, "big") + part.encode() for part in parts)


def fingerprint(suite: str, signing: bytes, exchange: bytes) -> str:
    parts = (b"kohort identity", suite.encode(), signing, exchange)
    return hashlib.sha256(b"".join(len(part).to_bytes(2, "big") + part for part in parts)).hexdigest()


def written_by_hand(suite: str, payload: bytes, padded: bytes | None = None) -> tuple[bytes, PublicIdentity, Identity]:
    """A box of a sender whose keys kohort never saw, and the recipient to open it."""
    bob = PEOPLE[suite, "bob"]
    if suite == "standard":
        signing, exchange = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
        raw = (Encoding.Raw, PublicFormat.Raw)
        keys = signing.public_key().public_bytes(*raw), exchange.public_key().public_bytes(*raw)
        shared = exchange.exchange(bob.exchange_key.public_key())  # type: ignore[arg-type]
    else:
        curve, point = ec.SECP256R1(), (Encoding.X962, PublicFormat.UncompressedPoint)
        signer, exchanger = ec.generate_private_key(curve), ec.generate_private_key(curve)
        keys = signer.public_key().public_bytes(*point), exchanger.public_key().public_bytes(*point)
        shared = exchanger.exchange(ec.ECDH(), bob.exchange_key.public_key())  # type: ignore[arg-type]
    names = texts("run-1", PLAN, "zoe", fingerprint(suite, *keys), "bob", bob.public.fingerprint)
    both = HKDF(hashes.SHA256(), 64, salt=b"kohort sealed " + suite.encode(), info=b"pair").derive(shared)
    start = bytes([1, 1 if suite == "standard" else 2]) + (3).to_bytes(8, "big") + (7).to_bytes(8, "big")
    padded = (len(payload).to_bytes(8, "big") + payload).ljust(256, b"\0") if padded is None else padded
    mac = HMAC(both[32:], hashes.SHA256())
    mac.update(start + bytes(32) + names + padded)
    head = start + mac.finalize() + names
    key = HKDFExpand(hashes.SHA256(), 32, info=head).derive(both[:32])
    cipher = ChaCha20Poly1305(key) if suite == "standard" else AESGCM(key)
    ciphertext = cipher.encrypt(bytes(12), padded, head)
    message = b"kohort sealed message\0" + head + hashlib.sha256(ciphertext).digest()
    if suite == "standard":
        signature = signing.sign(message)
    else:
        order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
        r, s = decode_dss_signature(signer.sign(message, ec.ECDSA(hashes.SHA256())))
        signature = r.to_bytes(32, "big") + min(s, order - s).to_bytes(32, "big")
    return len(head).to_bytes(2, "big") + head + ciphertext + signature, PublicIdentity("zoe", *keys, suite), bob


@pytest.mark.parametrize("suite", SUITES)
def test_a_box_written_step_by_step_opens(suite: str) -> None:
    box, zoe, bob = written_by_hand(suite, b"by hand")
    assert open_sealed(box, recipient=bob, sender=zoe, memory=SequenceMemory(), **HERE) == b"by hand"


@pytest.mark.parametrize("suite", SUITES)
def test_wrong_padding_is_refused_although_keys_and_signature_hold(suite: str) -> None:
    """A sender that hides bytes in the padding, or claims another length, is not opened."""
    two = (2).to_bytes(8, "big") + b"hi"
    for padded in (
        two.ljust(255, b"\0") + b"!",
        two.ljust(288, b"\0"),
        two,
        (249).to_bytes(8, "big").ljust(256, b"\0"),
        (2**63).to_bytes(8, "big").ljust(256, b"\0"),
        b"",
    ):
        box, zoe, bob = written_by_hand(suite, b"", padded)
        with pytest.raises(IntegrityError, match="'zoe' was refused: its padding"):
            open_sealed(box, recipient=bob, sender=zoe, memory=SequenceMemory(), **HERE)
    box, zoe, bob = written_by_hand(suite, b"", two.ljust(256, b"\0"))
    assert open_sealed(box, recipient=bob, sender=zoe, memory=SequenceMemory(), **HERE) == b"hi"


@given(st.binary(max_size=100), st.binary(max_size=100), st.binary(max_size=100), st.integers(1, 200))
@examples(20, 50)
def test_key_derivation_is_the_library_s(salt: bytes, secret: bytes, info: bytes, length: int) -> None:
    made = expand(extract(salt or b"s", secret), info, length)
    assert made == HKDF(hashes.SHA256(), length, salt=salt or b"s", info=info).derive(secret)


def test_two_sites_never_need_the_exchange_twice() -> None:
    ann, bob = Identity.generate("ann"), Identity.generate("bob")
    assert ann.agreed_with(bob.public) is ann.agreed_with(bob.public)
    assert ann.agreed_with(bob.public).sealing == bob.agreed_with(ann.public).sealing
    assert ann.for_run(os.urandom(32)).agreed_with(bob.public).sealing != ann.agreed_with(bob.public).sealing
