"""Kinds are found by name, one at a time, and what a file of another kind or version needs is said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kohort.errors import ConfigError
from kohort.models import files, registry
from kohort.models.files import load_model, save_model
from kohort.models.registry import ModelKind, find_kind

GOLDEN = Path(__file__).parents[1] / "golden" / "model-v1"
OTHERS = ("torch", "tenseal", "cryptography", "kohort.crypto", "kohort.methods.", "kohort.models.closed_form")
LOADING = """
import sys
from kohort.models.files import load_model
load_model(sys.argv[1])
print([name for name in sys.modules if name.startswith(tuple(sys.argv[2:]))])
"""
TRAINING = """
import sys
import numpy as np, polars as pl
from kohort.runs.config import load_plan
from kohort.runs.run import run
x = np.linspace(-1, 1, 60)
plan = load_plan({"data": {"table": "t", "target": "y", "features": "rest"}, "sites": {"count": 2},
                  "train": {"rounds": 1}, "policy": {"min_rows": 1}, "method": {"name": "fedavg"}})
run(plan, seed=1, tables={"": pl.DataFrame({"x": x, "y": np.where(x > 0, "a", "b")})})
print([name for name in sys.modules if name.startswith(tuple(sys.argv[1:]))])
"""


def modules(code: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=True
    )
    return done.stdout.strip()


def test_loading_a_dense_network_imports_no_other_kind() -> None:
    assert modules(LOADING, GOLDEN, *OTHERS, "kohort.models.kinds.torch") == "[]"


def test_training_a_dense_network_imports_no_other_kind() -> None:
    unwanted = ("torch", "tenseal", "kohort.methods.syntactic", "kohort.models.closed_form", "kohort.models.kinds")
    assert modules(TRAINING, *unwanted) == "[]"


@pytest.mark.parametrize("name", ["dense", "torch", "syntactic"])
def test_every_kind_of_ours_is_found_by_its_name(name: str) -> None:
    found = find_kind(name)
    assert found is not None
    assert (found.kind.name, found.package) == (name, "kohort")


def test_an_unknown_kind_is_none() -> None:
    assert find_kind("dence") is None


class Point:
    """An entry point of another package."""

    def __init__(self, name: str, part: object) -> None:
        self.name, self.part, self.dist, self.module = name, part, None, "elsewhere"

    def load(self) -> object:
        return self.part


def named(monkeypatch: pytest.MonkeyPatch, *points: Point) -> None:
    def entry_points(*, group: str, name: str) -> list[Point]:
        assert group == "kohort.models"
        return [point for point in points if point.name == name]

    monkeypatch.setattr(registry, "entry_points", entry_points)


def never(saved: object) -> Any:
    raise AssertionError(saved)


def test_a_name_that_two_packages_claim_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, Point("dense", ModelKind(name="dense", load=never)))
    with pytest.raises(ConfigError, match="two installed parts are called 'dense', in kohort, elsewhere"):
        find_kind("dense")


@pytest.mark.parametrize("part", [object(), ModelKind(name="other", load=never)])
def test_an_entry_point_to_something_else_is_refused(part: object, monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, Point("forest", part))
    with pytest.raises(ConfigError, match=r"'forest' of 'kohort\.models'"):
        find_kind("forest")


def rewritten(folder: Path, **changes: Any) -> None:
    save_model(load_model(GOLDEN), folder)
    card = {**json.loads((folder / "model.json").read_bytes()), **changes}
    card["sha256"] = files._card_hash(card)
    (folder / "model.json").write_bytes(files._card_bytes(card))


def test_a_file_of_a_kind_that_is_not_installed_names_its_package(tmp_path: Path) -> None:
    rewritten(tmp_path, kind="forest", provider={"package": "acme-forest", "version": "2.1"})
    with pytest.raises(ConfigError, match="kind 'forest'") as caught:
        load_model(tmp_path)
    assert "acme-forest" in str(caught.value.hint)
    assert "2.1" in str(caught.value.hint)
    assert caught.value.exit_code == 2


def test_a_file_of_a_later_version_names_it(tmp_path: Path) -> None:
    rewritten(tmp_path, format=9, versions={"kohort": "7.5"})
    with pytest.raises(ConfigError, match=r"format 9, of kohort 7\.5"):
        load_model(tmp_path)


@pytest.mark.parametrize("provider", [None, 3, {}])
def test_a_card_that_says_nothing_of_its_provider_still_gets_a_clear_error(provider: Any, tmp_path: Path) -> None:
    rewritten(tmp_path, kind="forest", provider=provider)
    with pytest.raises(ConfigError, match="kind 'forest'"):
        load_model(tmp_path)
