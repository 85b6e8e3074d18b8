"""The signers that this user knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kohort.crypto.identity.parties import Identity
from kohort.crypto.identity.user import remember_signer, state_folder, user_identity, user_pins
from kohort.errors import IntegrityError

ANN, BOB = (Identity.from_secret(name, name.encode() * 32).public for name in ("ann", "bob"))


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOHORT_STATE", str(tmp_path / "state"))


def known_file() -> Path:
    [found] = [path for path in state_folder().iterdir() if path.suffix == ".json"]
    return found


def test_signers_are_remembered_with_whose_they_are() -> None:
    assert user_pins().signers == {}
    remember_signer(ANN, "hub 'a'")
    remember_signer(BOB, "hub 'b'")
    assert user_pins().signers == {ANN.fingerprint: "hub 'a'", BOB.fingerprint: "hub 'b'"}
    remember_signer(ANN, "hub 'c'")
    assert user_pins().signers == {ANN.fingerprint: "hub 'c'", BOB.fingerprint: "hub 'b'"}
    assert known_file().stat().st_mode & 0o777 == 0o600


def test_a_signer_that_is_known_is_not_written_again() -> None:
    remember_signer(ANN, "me")
    known_file().chmod(0o400)
    before = known_file().stat().st_mtime_ns, known_file().stat().st_ino
    remember_signer(ANN, "me")
    assert (known_file().stat().st_mtime_ns, known_file().stat().st_ino) == before


@pytest.mark.parametrize("content", ["", "[]", "7", "{", json.dumps({"a": 1}), json.dumps({"a": None, "b": "c"})])
def test_a_damaged_list_of_signers_is_no_empty_one(content: str) -> None:
    remember_signer(ANN, "me")
    known_file().write_text(content)
    with pytest.raises(IntegrityError, match="is damaged"):
        user_pins()


def test_a_key_is_made_once_in_a_folder_that_may_be_there_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path / "is" / "not" / "there", tmp_path):
        monkeypatch.setenv("KOHORT_STATE", str(folder))
        made = user_identity()
        assert made is not None
        again = user_identity()
        assert again is not None
        assert again.public == made.public
        assert user_pins().signers == {made.public.fingerprint: "this user"}
        assert sorted(path.name for path in folder.iterdir() if path.is_file()) == ["identity.key", "signers.json"]
    assert (tmp_path / "is" / "not" / "there").stat().st_mode & 0o777 == 0o700


def test_where_no_key_can_be_kept_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("KOHORT_STATE", str(tmp_path / "file" / "state"))
    assert user_identity() is None
