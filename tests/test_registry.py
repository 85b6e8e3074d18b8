"""Plug-ins of other packages are found when they are installed, and their files are read once until then."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import pytest

from kohort import registry


def install(folder: Path, name: str) -> None:
    """A package with one entry point."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[kohort.tests]\n{name} = {name}:PART\n")
    os.utime(folder, ns=(0, folder.stat().st_mtime_ns + 1))  # clocks of file systems may be coarse


def test_a_package_is_found_once_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    whole = metadata.entry_points
    monkeypatch.setattr(metadata, "entry_points", lambda *, group: (read.append(1), whole(group=group))[1])
    assert not registry.entry_points(group="kohort.tests")
    install(tmp_path, "first-part")
    monkeypatch.syspath_prepend(tmp_path)
    read.clear()
    assert [point.name for point in registry.entry_points(group="kohort.tests")] == ["first-part"]
    assert not registry.entry_points(group="kohort.tests", name="second-part")
    assert len(read) == 1
    assert not registry.entry_points(group="kohort.others")
    install(tmp_path, "second-part")
    assert [point.value for point in registry.entry_points(group="kohort.tests", name="second-part")] == [
        "second-part:PART"
    ]
    assert len(read) == 3


def test_versions_are_those_installed() -> None:
    assert registry.version("numpy") == metadata.version("numpy")
    with pytest.raises(metadata.PackageNotFoundError):
        registry.version("no-such-package-anywhere")
