"""Files that others may have touched are not read, and folders in which they may replace files not used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kohort.crypto.identity.guarded_files import PRIVATE, UNCHANGED, check_folder, kept_secret, read_guarded
from kohort.errors import ConfigError, RefusedError


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    made = tmp_path / "secret"
    made.write_bytes(b"x")
    made.chmod(0o600)
    return made


@pytest.mark.parametrize(
    ("mode", "private", "unchanged"),
    [(0o600, True, True), (0o400, True, True), (0o700, True, True), (0o640, False, True), (0o604, False, True),
     (0o611, False, True), (0o620, False, False), (0o602, False, False), (0o666, False, False)],
)  # fmt: skip
def test_a_file_is_read_where_others_have_no_forbidden_right(
    secret: Path, mode: int, private: bool, unchanged: bool
) -> None:
    secret.chmod(mode)
    for forbidden, readable, may in ((PRIVATE, private, "read or change"), (UNCHANGED, unchanged, "change")):
        if readable:
            assert read_guarded(secret, forbidden=forbidden) == b"x"
        else:
            with pytest.raises(RefusedError, match=f"others may {may} .*mode {mode:03o}"):
                read_guarded(secret, forbidden=forbidden)


def test_what_another_user_owns_is_refused_to_all_but_the_administrator(
    secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, folder = os.getuid() or 1001, secret.parent
    folder.chmod(0o700)
    if os.getuid() == 0:
        os.chown(secret, owner, -1)
        os.chown(folder, owner, -1)
    for user in (owner, 0):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert read_guarded(secret, forbidden=PRIVATE) == b"x"
        check_folder(folder)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(RefusedError, match="belongs to another user"):
        read_guarded(secret, forbidden=PRIVATE)
    with pytest.raises(RefusedError, match="others may replace files"):
        check_folder(folder)
    check_folder(Path("/"))  # the administrator's own


@pytest.mark.parametrize(("mode", "sound"), [(0o700, True), (0o755, True), (0o775, False), (0o757, False)])
def test_a_folder_is_used_where_nobody_else_may_replace_its_files(tmp_path: Path, mode: int, sound: bool) -> None:
    folder = tmp_path / "site"
    check_folder(folder)  # one that is not there yet is made later
    folder.mkdir()
    folder.chmod(mode)
    if sound:
        check_folder(folder)
    else:
        with pytest.raises(RefusedError, match=f"others may replace files .*mode {mode:03o}"):
            check_folder(folder)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere: no such file"):
        read_guarded(tmp_path / "nowhere", forbidden=PRIVATE)


def test_a_secret_is_drawn_once_and_private(tmp_path: Path) -> None:
    made = kept_secret(tmp_path / "secret")
    assert len(made) == 32
    assert kept_secret(tmp_path / "secret") == made != kept_secret(tmp_path / "another")
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    (tmp_path / "secret").chmod(0o644)
    with pytest.raises(RefusedError, match="others may read or change"):
        kept_secret(tmp_path / "secret")
