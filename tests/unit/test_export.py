"""Models as files: the same predictions after a round trip, and an altered file is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.config import load_plan
from kohort.errors import ConfigError, IntegrityError, KohortError
from kohort.experiment import Outcome, run
from kohort.export import load_model, save_model


def table(rows: int = 90) -> pl.DataFrame:
    random = np.random.default_rng(2)
    x, group = random.normal(size=rows).round(3), random.choice(["a", "b", "ü"], rows)
    return pl.DataFrame({"x": x, "group": group, "y": np.where(x > 0, "up", "down"), "z": (x * 3 + 10).round(4)})


def trained(target: str) -> Outcome:
    plan = load_plan(
        {
            "data": {
                "table": "in-memory table",
                "target": target,
                "features": ["x", "group"],
                "drop": ["z" if target == "y" else "y"],
            },
            "sites": {"count": 2},
            "train": {"rounds": 1},
            "model": {"hidden": [4, 3]},
            "policy": {"min_rows": 1},
        }
    )
    return run(plan, seed=3, tables={"": table()})


@pytest.mark.parametrize("target", ["y", "z"])
def test_round_trip(target: str, tmp_path: Path) -> None:
    model = trained(target).model
    save_model(model, tmp_path / "model", about={"note": "ü"})
    for place in (tmp_path, tmp_path / "model", tmp_path / "model" / "model.json"):
        loaded = load_model(place)
        assert loaded.weights.tobytes() == model.weights.tobytes()
        assert loaded.weights.dtype == model.weights.dtype
        assert loaded.network == model.network
        assert loaded.classes == model.classes
        assert loaded.encoder.schema.inputs == model.encoder.schema.inputs  # their order is that of the weights
        assert loaded.encoder.transform(table()).tobytes() == model.encoder.transform(table()).tobytes()
        assert loaded.predict(table()).equals(model.predict(table()))
    save_model(load_model(tmp_path), tmp_path / "again", about={"note": "ü"})
    for name in ("model.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()


def test_every_altered_byte_is_refused(tmp_path: Path) -> None:
    save_model(trained("y").model, tmp_path)
    for name in ("model.json", "model.safetensors"):
        path = tmp_path / name
        content = path.read_bytes()
        for place in range(0, len(content), 3 if name == "model.json" else 17):
            path.write_bytes(content[:place] + bytes([content[place] ^ (1 << place % 8)]) + content[place + 1 :])
            with pytest.raises(KohortError) as caught:
                load_model(tmp_path)
            assert caught.value.exit_code in {2, 6}  # 2 when the byte is the format's number
            assert caught.value.exit_code == 6 or "format" in caught.value.message
        for cut in (0, 1, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:cut])
            with pytest.raises(IntegrityError):
                load_model(tmp_path)
        path.write_bytes(content + b"\n")
        with pytest.raises(IntegrityError):
            load_model(tmp_path)
        path.write_bytes(content)
        load_model(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{", b"[" * 200_000, b"\xff"])
def test_a_card_that_is_none_is_refused(content: bytes, tmp_path: Path) -> None:
    save_model(trained("y").model, tmp_path)
    (tmp_path / "model.json").write_bytes(content)
    with pytest.raises(IntegrityError):
        load_model(tmp_path)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no model"):
        load_model(tmp_path / "nothing" / "here")
    save_model(trained("y").model, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(IntegrityError):
        load_model(tmp_path)


def test_weights_of_another_model_do_not_fit(tmp_path: Path) -> None:
    save_model(trained("y").model, tmp_path / "y")
    save_model(trained("z").model, tmp_path / "z")
    (tmp_path / "y" / "model.safetensors").write_bytes((tmp_path / "z" / "model.safetensors").read_bytes())
    with pytest.raises(IntegrityError):
        load_model(tmp_path / "y")


def test_the_card_holds_no_cell_but_the_domain(tmp_path: Path) -> None:
    save_model(trained("z").model, tmp_path, about={"rounds": 1})
    card = json.loads((tmp_path / "model.json").read_bytes())
    assert card["about"] == {"rounds": 1}
    ends = {bound for column in trained("z").model.encoder.domain.columns.values() for bound in column.bounds or ()}
    assert len(ends) == 4, "the ranges of x and z are disclosed as domain"
    numbers = {value for value in _numbers(card) if value not in ends}
    cells = {value for name in ("x", "z") for value in table()[name].to_list()}
    assert not numbers & cells


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _numbers(inner)
