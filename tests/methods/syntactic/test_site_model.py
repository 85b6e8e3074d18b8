"""With `share = "peers"` a site predicts with the classes it was given: in a simulation, and behind a site's server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.methods.syntactic.test_syntactic import SIZES, plan, tables
from typer.testing import CliRunner

from kohort.cli.app import build
from kohort.errors import ConfigError, IntegrityError, KohortError
from kohort.methods.syntactic import site_model
from kohort.methods.syntactic.mapped_encoder import MappedEncoder
from kohort.models.files import load_model
from kohort.protocol.site import Site
from kohort.protocol.wire import Payload
from kohort.runs.run import run
from kohort.testing.site_servers import ServedSites

PEERS = plan(share="peers")


@pytest.fixture(scope="module")
def rows() -> pl.DataFrame:
    return pl.concat(tables(seed=9).values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("peers") / "run"
    run(PEERS, seed=1, tables=tables(), out=made)
    return made


def test_a_site_predicts_as_whoever_has_the_classes(rows: pl.DataFrame) -> None:
    hub, peers = (run(one, seed=1, tables=tables()) for one in (plan(), PEERS))
    assert tuple(peers.site_models) == tuple(SIZES)
    expected = hub.predict_proba(rows)
    for name in SIZES:
        encoder = peers.site_models[name].encoder
        assert isinstance(encoder, MappedEncoder)
        assert encoder.sites == hub.model.encoder.sites
        np.testing.assert_array_equal(peers.predict_proba(rows, site=name), expected)
    # Test rows are measured with the classes, as in the other run; the hub's own model reads rows as they are.
    assert peers.metrics == hub.metrics
    assert peers.facts["test_rows_without_class"] == hub.facts["test_rows_without_class"]
    assert not np.array_equal(peers.predict_proba(rows), expected)
    assert any("measured with the model and the classes that site 'a' has" in note for note in peers.notes)
    with pytest.raises(ConfigError, match="no model of a site 'd' is here"):
        peers.predict(rows, site="d")


def test_the_command_predicts_with_the_classes_of_a_site(folder: Path, rows: pl.DataFrame, tmp_path: Path) -> None:
    rows.write_parquet(tmp_path / "rows.parquet")
    made = {}
    for site in ("", "b"):
        out = tmp_path / f"predicted{site}.parquet"
        words = ["predict", str(folder), str(tmp_path / "rows.parquet"), "--out", str(out), "--proba"]
        found = CliRunner().invoke(build(), [*words, *(["--site", site] if site else [])])
        assert found.exit_code == 0, found.output
        made[site] = pl.read_parquet(out)
        assert ("add --site NAME to predict with the classes a site has" in found.output) is (not site)
    assert "class_site" not in made[""].columns
    assert set(made["b"]["class_site"]) <= set(SIZES)
    expected = load_model(folder, site="b").predict_proba(rows)
    own = [name for name in made["b"].columns if name.startswith("probability")]
    np.testing.assert_allclose(made["b"].select(own).to_numpy(), expected, atol=1e-6)
    # The folder of a site is a model by itself, too.
    np.testing.assert_array_equal(load_model(folder / "sites" / "b").predict_proba(rows), expected)


def test_a_model_that_is_not_there_is_named_and_a_list_that_leads_elsewhere_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no model of a site 'd' is here"):
        load_model(folder, site="d")
    index = folder / "sites" / "models.json"
    whole = index.read_text()
    try:
        for text in ('{"a": "../../elsewhere"}', "[1"):
            index.write_text(text)
            with pytest.raises(IntegrityError):
                load_model(folder, site="a")
    finally:
        index.write_text(whole)


def test_sites_behind_servers_keep_the_model_and_the_hub_gets_no_class(tmp_path: Path, rows: pl.DataFrame) -> None:
    backend = ServedSites(tables=tables(), folder=tmp_path / "sites")
    outcome = run(PEERS, seed=1, backend=backend, out=tmp_path / "hub")
    assert not outcome.site_models
    expected = run(plan(), seed=1, tables=tables()).predict_proba(rows)
    for name in SIZES:
        (kept,) = (tmp_path / "sites" / name).glob("**/model/model.json")
        assert kept.stat().st_mode & 0o077 == 0
        np.testing.assert_array_equal(load_model(kept).predict_proba(rows), expected)
    assert not list((tmp_path / "hub").glob("**/models.json"))
    for place in (tmp_path / "hub").glob("**/*"):
        assert place.is_dir() or b'"sizes"' not in place.read_bytes()
    lines = [json.loads(line) for place in (tmp_path / "sites" / "a").glob("**/ledger.jsonl")
             for line in place.read_text().splitlines()]  # fmt: skip
    (kept,) = [line for line in lines if line.get("what") == "mappings.keep"]
    assert kept["guarantee"]["kind"] == "public"


@pytest.mark.parametrize("sent", ["short", "nan", "double", "none"])
def test_a_site_keeps_no_weights_that_are_no_model_of_its_plan(sent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(Site, "keep_model", lambda _, model: kept.append(model))

    def damaged(**parts: Any) -> Payload:
        if "arrays" not in parts:
            return Payload(**parts)
        weights = parts["arrays"]["weights"]
        made = {"short": weights[:-1], "nan": np.full_like(weights, np.nan), "double": weights.astype(np.float64)}
        return Payload(arrays={"weights": made[sent]} if sent in made else {})

    monkeypatch.setattr(site_model, "Payload", damaged)
    with pytest.raises(KohortError):
        run(PEERS, seed=1, tables=tables())
    assert not kept
