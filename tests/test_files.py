"""Files are whole or absent, existing output is kept, and a full disk has its own exit code."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kohort.errors import ConfigError, ResourceError
from kohort.files import (
    FolderLock,
    disk_errors,
    remove_unfinished,
    require_new,
    scratch_folder,
    write_atomic,
    write_whole,
)


def test_written_whole_with_the_wanted_mode(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    write_atomic(path, b"content")
    assert path.read_bytes() == b"content"
    assert path.stat().st_mode & 0o777 == 0o644
    write_atomic(path, b"secret", private=True, durable=True)
    assert path.read_bytes() == b"secret"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [item.name for item in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("broken", ["write", "replace", "fsync", "chmod"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    broken: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_: Any, **__: Any) -> None:
        raise error

    if broken == "write":
        real = os.fdopen

        def fdopen(*arguments: Any) -> Any:
            file = real(*arguments)

            class Failing:
                def __enter__(self) -> Failing:
                    return self

                def __exit__(self, *_: Any) -> None:
                    file.close()

                write = staticmethod(fail)

            return Failing()

        monkeypatch.setattr(os, "fdopen", fdopen)
    elif broken == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(Path, broken, fail)
    with pytest.raises(ResourceError if isinstance(error, OSError) else KeyboardInterrupt):
        write_atomic(path, b"new", durable=True)
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EFBIG])
def test_out_of_resources_is_exit_7(number: int) -> None:
    with pytest.raises(ResourceError) as caught, disk_errors(Path("out")):
        raise OSError(number, "x")
    assert caught.value.exit_code == 7
    assert "out" in str(caught.value)


@pytest.mark.parametrize(
    "number", [errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EISDIR, errno.EIO]
)
def test_other_write_errors_are_exit_2(number: int) -> None:
    with pytest.raises(ConfigError) as caught, disk_errors(Path("out")):
        raise OSError(number, "x")
    assert caught.value.exit_code == 2


def test_existing_output_is_kept_unless_forced(tmp_path: Path) -> None:
    require_new(tmp_path, force=False)  # empty
    require_new(tmp_path / "absent", force=False)
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(ConfigError, match="--force"):
            require_new(path, force=False)
        require_new(path, force=True)
    with pytest.raises(ConfigError):
        require_new(tmp_path / ("n" * 300), force=False)


def test_write_whole_goes_on_after_a_short_write() -> None:
    class Short:
        taken = b""

        def write(self, part: memoryview) -> int:
            self.taken += bytes(part[:3])
            return min(3, len(part))

    file: Any = Short()
    write_whole(file, b"0123456789")
    assert file.taken == b"0123456789"
    write_whole(file, b"")
    assert file.taken == b"0123456789"


def test_what_a_dead_writer_left_is_deleted_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk that is read-only from some moment on, a writer can neither rename its file nor delete it."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "read-only")

    kept = [tmp_path / name for name in ("table.csv", ".lock", "model/.hidden", "my.unfinished")]
    for path in kept:
        write_atomic(path, b"x")
    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", refuse)
        broken.setattr(Path, "unlink", refuse)
        with pytest.raises(ConfigError, match="read-only"):
            write_atomic(tmp_path / "model" / "weights", b"y")
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == len(kept) + 1
    remove_unfinished(tmp_path)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)


def test_a_folder_is_for_one_process_until_it_lets_go_or_is_killed(tmp_path: Path) -> None:
    own = FolderLock(tmp_path)
    assert own.take()
    assert own.take()
    assert not FolderLock(tmp_path).take()
    own.release()
    code = (
        "import sys, time, pathlib; from kohort.files import FolderLock; lock = FolderLock(pathlib.Path(sys.argv[1])); "
        "assert lock.take(); print('taken', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"taken\n"
        assert not own.take()
        other.kill()
    assert own.take(wait=True)
    own.release()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("reason", [errno.ENOTSUP, errno.ENOLCK, errno.EBADF])
def test_where_a_disk_has_no_locks_everybody_gets_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(reason, "")

    monkeypatch.setattr("fcntl.flock", fail)
    assert FolderLock(tmp_path).take()
    assert FolderLock(tmp_path).take()
    assert FolderLock(tmp_path / "absent").take()


@pytest.mark.parametrize("when", ["made", "used", "removed", "never"])
def test_a_scratch_folder_is_gone_whenever_an_interrupt_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    mkdir, rmtree, comes = Path.mkdir, shutil.rmtree, [when]

    def interrupt(now: str) -> None:
        if now in comes:
            comes.clear()
            raise KeyboardInterrupt

    def make(self: Path, *args: Any, **options: Any) -> None:
        mkdir(self, *args, **options)
        if self.name.startswith("."):
            interrupt("made")

    def remove(folder: Path, **options: Any) -> None:
        if comes == ["removed"]:
            next(iter(folder.iterdir())).unlink()
            interrupt("removed")
        rmtree(folder, **options)

    monkeypatch.setattr(Path, "mkdir", make)
    monkeypatch.setattr(shutil, "rmtree", remove)

    def work() -> None:
        with scratch_folder(tmp_path / "new" / "out") as folder:
            assert folder.parent == tmp_path / "new"
            assert folder.stat().st_mode & 0o777 == 0o700
            for name in ("first", "second"):
                (folder / name).write_text("half")
            interrupt("used")

    if when == "never":
        work()
    else:
        with pytest.raises(KeyboardInterrupt):
            work()
        assert not comes
    assert list((tmp_path / "new").iterdir()) == []


def test_a_scratch_folder_of_a_killed_process_is_removed_with_unfinished_files(tmp_path: Path) -> None:
    left = scratch_folder(tmp_path / "out")
    (left.__enter__() / "part").write_text("half")
    (tmp_path / ".x.unfinished").write_text("half")
    remove_unfinished(tmp_path)
    assert list(tmp_path.iterdir()) == []
    left.__exit__(None, None, None)
