"""Models as files: the same predictions after a round trip, and an altered file is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError, IntegrityError, KohortError
from kohort.models import files as export
from kohort.models.files import load_model, save_model
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import Outcome, run
from kohort.tables.frames import read_table


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


GOLDEN = Path(__file__).parents[1] / "golden" / "model-v1"
"""Written by kohort 0.1.0 and never written again: categories, bins, a set of codes, "other" and missing values.

`expected.json` is what that version predicted for `rows.csv`, probabilities rounded to six digits.
"""


def test_a_model_of_format_1_is_read_for_ever() -> None:
    model = load_model(GOLDEN)
    rows = read_table(GOLDEN / "rows.csv")
    expected = json.loads((GOLDEN / "expected.json").read_bytes())
    assert list(model.classes) == expected["classes"]
    assert model.predict(rows).to_list() == expected["predicted"]
    assert np.abs(model.predict_proba(rows) - np.array(expected["probabilities"])).max() < 2e-6
    shuffled = rows.select(sorted(rows.columns, reverse=True))
    assert model.predict(shuffled).to_list() == expected["predicted"]


def test_another_format_is_named_and_not_guessed(tmp_path: Path) -> None:
    save_model(load_model(GOLDEN), tmp_path)
    card = json.loads((tmp_path / "model.json").read_bytes())
    card["format"] = 4
    (tmp_path / "model.json").write_bytes(export._card_bytes(card))
    with pytest.raises(IntegrityError):  # the number alone was changed
        load_model(tmp_path)
    card["sha256"] = export._card_hash(card)
    (tmp_path / "model.json").write_bytes(export._card_bytes(card))
    with pytest.raises(ConfigError, match=r"format 4, of kohort .*Update kohort"):
        load_model(tmp_path)


def test_a_model_is_not_found_by_its_neighbours(tmp_path: Path) -> None:
    save_model(load_model(GOLDEN), str(tmp_path))
    load_model(str(tmp_path))
    load_model(tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="no model"):
        load_model(tmp_path / "misspelt")


def test_the_card_for_people(tmp_path: Path) -> None:
    shifted = table().with_columns(pl.col("x") + 777_000)
    outcome = run(_carded("y"), seed=3, tables={"": shifted}, out=tmp_path / "run")
    page = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "Predicts `y`, one of `down`, `up`, from 2 columns. 2 sites with 63 rows" in page
    assert "| `group` | feature | one of 3 categories | 1 input | learned from rows | refused | refused |" in page
    assert "| `x` | feature | number, scaled by its range | 1 input | learned from rows | refused | - |" in page
    low, high = outcome.metrics["intervals"]["accuracy"]
    assert f"| accuracy | {outcome.metrics['accuracy']:.4f} | {low:.4f} to {high:.4f} |" in page
    assert "**aggregates**" in page
    assert "**value ranges**" in page
    assert outcome.ledger_head in page
    assert not re.search(r"77[67][,.]?\d{3}", page), "no cell is on the card, not even as the end of a range"
    run(_carded("y"), seed=3, tables={"": shifted}, out=tmp_path / "again")
    assert (tmp_path / "again" / "model" / "README.md").read_text() == page


def test_names_cannot_break_the_card(tmp_path: Path) -> None:
    name = "a|b`c\n# d"
    renamed = table().rename({"x": name}).with_columns(y=pl.col("y").replace("up", "<img src=x>|`"))
    run(_carded("y", feature=name), seed=3, tables={"": renamed}, out=tmp_path / "run")
    page = (tmp_path / "run" / "model" / "README.md").read_text()
    assert not any(line.startswith("# d") for line in page.splitlines())
    row = next(line for line in page.splitlines() if "scaled by its range" in line)
    assert len(re.findall(r"(?<!\\)\|", row)) == 8, "seven cells"
    assert "`` <img src=x>\\|` ``" in page, "as code, so that no browser reads it"


def _carded(target: str, *, feature: str = "x") -> Plan:
    return load_plan(
        {
            "data": {"table": "in-memory table", "target": target, "features": [feature, "group"], "drop": ["z"]},
            "sites": {"count": 2},
            "train": {"rounds": 1},
            "policy": {"min_rows": 1},
        }
    )
