"""Private selection, from what it keeps and what its tries released: noise of the score, tries, claims, and epsilon."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from kohort.cli.app import build
from kohort.errors import ConfigError, RefusedError
from kohort.rng import Streams
from kohort.runs import private_choice
from kohort.runs.compare import choose_privately
from kohort.runs.config import load_plan
from kohort.runs.private_choice import JUDGED, parted
from kohort.runs.simulation import populate
from kohort.runs.sweeps import Variant
from kohort.tables.schema import ColumnSpec, Role

TRIES, DELTA = 6.0, 1e-4


@pytest.fixture
def table(tmp_path: Path) -> Path:
    generator = np.random.default_rng(1)
    x = generator.uniform(-1, 1, 600)
    path = tmp_path / "rows.csv"
    pl.DataFrame({"x": x, "y": np.where(x + generator.normal(0, 0.3, 600) > 0, "yes", "no")}).write_csv(path)
    return path


def variant(table: Path, lr: float, *, train: dict[str, Any] | None = None, **more: Any) -> Variant:
    raw: dict[str, Any] = {
        "data": {
            "table": str(table), "target": "y", "features": ["x"], "bounds": {"x": [-1, 1]},
            "categories": {"y": ["no", "yes"]}, "test": 0.2,
        },
        "sites": {"count": 3},
        "model": {"kind": "logistic"},
        "train": {"rounds": 2, "batch": 0, "optimizer": "sgd", "lr": lr, **(train or {})},
        "method": {"name": "fedavg", "dp": {"epsilon": 1.0, "delta": DELTA, "clip": 1.0, **more}},
        "policy": {"min_rows": 1, "min_cell": 1, "epsilon": 3.0, "delta": 0.01},
    }  # fmt: skip
    return Variant({"train.lr": f"{lr:g}"}, load_plan(raw))


class Heard:
    """What every try released and scored, and every draw of the score's noise."""

    def __init__(self) -> None:
        self.claims: list[str] = []
        self.right: list[float] = []

    def __enter__(self) -> Heard:
        count, check = private_choice._right, private_choice._check_claims

        def counted(model: Any, rows: pl.DataFrame) -> float:
            self.right.append(count(model, rows))
            return self.right[-1]

        def checked(folder: Path, price: Any) -> None:
            lines = [json.loads(line) for line in (folder / "ledger" / "ledger.jsonl").read_text().splitlines()]
            self.claims += [line["guarantee"]["event"] for line in lines if line.get("what") == "dp.reserve"]
            check(folder, price)

        self._patch = mock.patch.multiple(private_choice, _right=counted, _check_claims=checked)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()


def priced(claim: str, score_sigma: float, mean: float) -> float:
    """Epsilon of a selection, from a try's ledger and the measured noise of the score, by dp-accounting."""
    import dp_accounting
    from dp_accounting.dp_event import RepeatAndSelectDpEvent
    from dp_accounting.rdp import RdpAccountant

    found = re.fullmatch(r"(\d+) x gaussian\(sigma=(\S+), rate=1\)", claim)
    assert found is not None
    of_training = math.sqrt(int(found[1])) / float(found[2])
    account = RdpAccountant()
    account.compose(
        RepeatAndSelectDpEvent(dp_accounting.GaussianDpEvent(1 / max(of_training, 1 / score_sigma)), mean, 0)
    )
    return float(account.get_epsilon(DELTA))


def test_dp_selection_costs_what_its_tries_released(table: Path, tmp_path: Path) -> None:
    settings = [variant(table, lr) for lr in (0.01, 1.0)]
    with Heard() as heard:
        found = choose_privately(settings, out=tmp_path / "out", tries=TRIES, seed=4)
    cost = found["tuning"]
    assert len(heard.claims) == 3 * len(heard.right)
    (claim,) = set(heard.claims)
    assert cost["epsilon"] == pytest.approx(priced(claim, cost["score_sigma"], TRIES), rel=0.01)
    assert (cost["delta"], cost["runs"], cost["unit"]) == (DELTA, TRIES, "row")
    assert cost["epsilon"] > found["runs"][0]["epsilon"]


@pytest.mark.parametrize(("ahead", "kept"), [(0.97, 0), (1.03, 1)])
def test_dp_selection_adds_the_noise_it_counts_with(table: Path, tmp_path: Path, ahead: float, kept: int) -> None:
    """The first try gets one standard deviation of noise, the second none but a lead of nearly, or just above, that."""
    settings = [variant(table, lr) for lr in (0.01, 1.0)]
    price = private_choice.selection_cost(
        [one.plan for one in settings], tries=TRIES, population=populate(settings[0].plan, Streams.seeded(0))
    )
    known = {"score": mock.Mock(), "tries": mock.Mock()}
    known["score"].standard_normal.side_effect = [1.0, 0.0]
    known["tries"].integers.side_effect = [0, 1]
    made = Streams.generator
    with (
        mock.patch.object(Streams, "generator", lambda self, *names: known.get(names[-1]) or made(self, *names)),
        mock.patch.object(private_choice, "draw_tries", return_value=2),
        mock.patch.object(private_choice, "_right", side_effect=[0.0, ahead * price.score_sigma]),
    ):
        found = choose_privately(settings, out=tmp_path / "out", tries=TRIES)
    assert [len(line["runs"]) for line in found["settings"]].index(1) == kept


def test_dp_selection_leaves_the_best_try_alone(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = [variant(table, lr) for lr in (0.01, 1.0)]
    with Heard() as heard, mock.patch.object(private_choice, "draw_tries", return_value=5):
        found = choose_privately(settings, out=out, tries=TRIES)
    assert len(heard.right) == 5
    assert sorted(path.name for path in out.iterdir()) == ["compare.json", "run-1"]
    assert len(found["runs"]) == 1
    assert sorted(len(line["runs"]) for line in found["settings"]) == [0, 1]
    assert "5" not in {str(value) for value in found["tuning"].values()}


def test_dp_selection_puts_rows_aside_by_coins_of_their_own(table: Path) -> None:
    whole = populate(variant(table, 1.0).plan, Streams.seeded(0))
    rest, aside = parted(whole, np.random.default_rng(2))
    assert rest.frame.height + aside.height == whole.frame.height
    assert aside.height == pytest.approx(JUDGED * whole.frame.height, abs=5 * math.sqrt(0.16 * whole.frame.height))
    assert rest.starts[-1] == rest.frame.height
    fewer = parted(whole, np.random.default_rng(3))[1]
    assert fewer.height != aside.height  # a fixed number would tell of a row that joined


def test_dp_selection_puts_all_rows_of_a_person_aside_or_none(table: Path) -> None:
    whole = populate(variant(table, 1.0).plan, Streams.seeded(0))
    person = pl.Series("person", np.arange(whole.frame.height) % 40)
    named = ColumnSpec(roles=frozenset({Role.IDENTIFIER}))
    schema = replace(whole.schema, columns={**whole.schema.columns, "person": named})
    visits = replace(whole, schema=schema, frame=whole.frame.with_columns(person))
    rest, aside = parted(visits, np.random.default_rng(2))
    assert aside.height
    assert not set(rest.frame["person"]) & set(aside["person"])


def test_dp_selection_refuses_what_is_not_proved(table: Path, tmp_path: Path) -> None:
    both = [variant(table, lr) for lr in (0.01, 1.0)]

    def refused(settings: list[Variant], error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words):
            choose_privately(settings, out=tmp_path / "no", tries=TRIES)
        assert not (tmp_path / "no" / "run-1").exists()

    refused([variant(table, 1.0, unit="site", mechanism="after")], ConfigError, "hides a site")
    refused([variant(table, 1.0, train={"batch": 20})], ConfigError, "train.batch = 0|delta of their own")
    refused([*both, variant(table, 1.0, epsilon=2.5)], RefusedError, "exceeds the policy")


def test_dp_selection_by_the_command(table: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        f'[data]\ntable = "{table}"\ntarget = "y"\nfeatures = ["x"]\nbounds = {{x = [-1, 1]}}\n'
        'categories = {y = ["no", "yes"]}\n[sites]\ncount = 3\n[model]\nkind = "logistic"\n[train]\nrounds = 2\n'
        'batch = 0\noptimizer = "sgd"\n[method]\nname = "fedavg"\n[method.dp]\nepsilon = 0.5\ndelta = 1e-4\n'
        "clip = 1.0\n[policy]\nmin_rows = 1\nepsilon = 3\n"
    )
    words = ["compare", str(plan), "--sweep", "train.lr=0.1,1", "--private", "2", "--out", str(tmp_path / "out")]
    found = CliRunner().invoke(build(), words)
    assert found.exit_code == 0, found.output
    assert "Telling the best of 2 tries on average costs epsilon" in found.output
    assert CliRunner().invoke(build(), [*words, "--seeds", "2", "--force"]).exit_code != 0
