"""A small sealed ledger: three sites, two rounds, one refusal and one note."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.ledgers import write_small_ledger


@pytest.fixture(scope="session")
def small_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sealed ledger; tests copy it before they touch it."""
    folder = tmp_path_factory.mktemp("ledger")
    write_small_ledger(folder)
    return folder


@pytest.fixture
def copy_of(small_ledger: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A fresh copy of the ledger's files under a name."""

    def copy(name: str = "copy") -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for file in small_ledger.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        return folder

    return copy
