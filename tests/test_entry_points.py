"""Entry points are read once, and again when a package was installed or removed."""

from __future__ import annotations

import os
import shutil
from importlib import metadata
from pathlib import Path

import pytest

from kohort import registry

GROUP = "kohort.made_up"


def install(folder: Path) -> Path:
    info = folder / "made_up-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\none = made_up:ONE\nother = made_up:OTHER\n")
    return info


def test_an_installed_package_is_found_and_a_removed_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    os.utime(tmp_path, (0, 0))  # clocks of file systems may be too coarse to see that it changes right now
    assert not registry.entry_points(group=GROUP)
    info = install(tmp_path)
    assert {point.name for point in registry.entry_points(group=GROUP)} == {"one", "other"}
    assert [point.value for point in registry.entry_points(group=GROUP, name="one")] == ["made_up:ONE"]
    os.utime(tmp_path, (0, 0))
    registry.entry_points(group=GROUP)
    shutil.rmtree(info)
    assert not registry.entry_points(group=GROUP)


def test_packages_are_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read = []
    plain = metadata.entry_points
    monkeypatch.setattr(metadata, "entry_points", lambda **asked: read.append(1) or plain(**asked))
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(3):
        registry.entry_points(group="kohort.methods")
    assert len(read) == 1
