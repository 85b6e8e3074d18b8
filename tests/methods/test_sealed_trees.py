"""What a hub learns while a forest grows: bins, splits and values; cells of totals are sealed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.methods.test_trees import DECLARED, TABLE, _bytes, _plan, _run, _setting

from kohort.crypto.sums.checked import from_residues
from kohort.errors import IntegrityError, KohortError
from kohort.methods.trees.method import METHOD, ForestLearner
from kohort.models.rows import encode_rows
from kohort.models.trees import growth as growth_module
from kohort.models.trees.growth import Growth
from kohort.models.trees.kernel import slopes
from kohort.models.trees.learner import TreeLearner, TreeRows
from kohort.models.trees.level import LevelSplits
from kohort.models.trees.options import SCALE
from kohort.protocol.wire import decode
from kohort.rounds.totals import checked_training
from kohort.rounds.totals.checked_training import CheckedTraining
from kohort.rounds.totals.learner import RowCache
from kohort.rounds.totals.protocol import TotalsProtocol
from kohort.runs.config import load_plan
from kohort.testing import listening

BINS = {"history", "best", "bins.codes", "bins.cells", "bins.sizes", "bins.missing", "bins.ordered", "bins.rank",
        "bins.other", "base", "rows"}  # fmt: skip
GROWN = {"history", "best", "layout", *LevelSplits.shapes()}


def opened(monkeypatch: pytest.MonkeyPatch, **method: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """The numbers of each level's total as the hub opens them and as sites read them, and the hub's learners."""
    heard: list[Any] = []
    true: dict[int, Any] = {}
    learners: list[Any] = []
    honest, taken = TotalsProtocol.keep, Growth.take

    def keep(self: TotalsProtocol, number: int, total: Any, sites: Any) -> None:
        growth = self.learner.inner.growth  # type: ignore[attr-defined]
        if growth is not None:
            length = growth.length
            heard.append(from_residues(total[:-1]).view(np.int64)[-length:] if length else np.zeros(0))
            learners.append(self.learner)
        honest(self, number, total, sites)

    def take(self: Growth, total: Any) -> LevelSplits | None:
        true.setdefault(len(heard), total.copy())
        return taken(self, total)

    monkeypatch.setattr(TotalsProtocol, "keep", keep)
    monkeypatch.setattr(Growth, "take", take)
    _run(_plan(3, method=method))
    return heard, [true[place] for place in sorted(true)], learners


def read(heard: list[Any], true: list[Any]) -> float:
    """The share of the filled cells whose number the hub has."""
    assert [len(one) for one in heard[: len(true)]] == [len(one) for one in true]
    numbers, truth = np.concatenate(heard[: len(true)]), np.concatenate(true)
    return float((numbers == truth)[truth != 0].mean())


@pytest.mark.parametrize("least", [1, 8])
def test_no_number_of_a_cell_is_in_what_the_hub_opens(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    heard, true, _ = opened(monkeypatch, min_cell=least)
    assert len(true) >= 6
    assert read(heard, true) == 0.0


def test_all_of_them_would_be_if_totals_were_not_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TreeLearner, "sealed", property(lambda self: self.stage == "bins"))
    heard, true, _ = opened(monkeypatch)
    assert read(heard, true) == 1.0


def test_the_hub_has_no_cells_of_open_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, learners = opened(monkeypatch)
    cells = [learner.inner.growth.before for learner in learners]
    assert any(learner.inner.growth.level > 1 for learner in learners)
    assert all(part.size == 0 for part in cells)
    assert not any(len(learner.checkpoint().get("growing.cells", ())) for learner in learners)


@pytest.mark.parametrize("scheme", ["masks", "bfv"])
def test_after_every_total_the_hub_is_told_bins_or_splits_and_nothing_else(scheme: str) -> None:
    with listening() as heard:
        outcome = _run(_plan(3, scheme))
    told: dict[int, set[str]] = {}
    for _, task, number, data in heard.replies:
        if task == "trees.disclose":
            told[number] = set(decode(data).arrays)
    assert sorted(told) == list(range(outcome.rounds))
    assert told.pop(0) == BINS
    assert all(names == GROWN for names in told.values())
    assert _bytes(outcome) == _bytes(_run(_plan(3, "none")))


def test_the_contract_seals_every_total() -> None:
    plan = _plan(3)
    steps = {step.task: step for block in METHOD.contract(_setting(plan).approved).blocks for step in block}
    assert list(steps["trees.disclose"].rounds) == list(steps["trees.total"].rounds)
    assert "sites alone can read the totals" in steps["trees.total"].says
    assert "in clear" not in steps["trees.total"].says


def first_level() -> tuple[ForestLearner, ForestLearner]:
    """A learner before a total of cells, and after it."""
    setting = _setting(_plan(3))
    rows = encode_rows(setting.encoder, TABLE)
    learner = ForestLearner.start(setting)
    learner = learner.after(learner.contribution(rows, RowCache()), 3)
    return learner, learner.after(learner.contribution(rows, RowCache()), 3)


def test_a_hub_that_is_told_grows_the_same_trees() -> None:
    before, after = first_level()
    told = before.informed(after.disclosed())
    assert told.length == after.length
    assert told.inner.growth is not None
    assert after.inner.growth is not None
    for name, array in after.inner.growth.trees.arrays("t").items():
        assert told.inner.growth.trees.arrays("t")[name].tobytes() == array.tobytes()


def test_a_site_that_restarts_tells_the_same() -> None:
    before, after = first_level()
    again = before.restored(after.checkpoint())
    told = again.disclosed()
    assert {name: array.tobytes() for name, array in after.disclosed().items()} == {
        name: array.tobytes() for name, array in told.items()
    }


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("level.split", lambda array: array[:-1]),
        ("level.split", lambda array: np.full_like(array, 7)),
        ("level.cut", lambda array: np.full_like(array, 255)),
        ("level.left", lambda array: array + 2),
        ("level.grows", lambda array: array + 3),
        ("level.values", lambda array: array * np.nan),
        ("level.gain", lambda array: array * np.inf),
        ("level.gain", lambda array: np.append(array, 1.0)),
        ("level.roots", lambda array: array[:0]),
        ("history", lambda array: np.append(array, [1.0, 1.0])),
        ("history", lambda array: array * np.nan),
        ("best", lambda array: array + 1),
        ("best", lambda array: array - 1),
    ],
)
def test_splits_that_do_not_fit_are_refused(name: str, change: Any) -> None:
    before, after = first_level()
    told = after.disclosed()
    with pytest.raises(IntegrityError, match="do not fit"):
        before.informed({**told, name: change(told[name])})


def test_children_grow_only_where_a_node_was_split() -> None:
    before, after = first_level()
    told = after.disclosed()
    split = np.full_like(told["level.split"], -1)
    with pytest.raises(IntegrityError, match="do not fit"):
        before.informed({**told, "level.split": split, "level.grows": np.ones_like(told["level.grows"])})


def node_counts() -> list[int]:
    """How many pairs of rows and rows of the second class fit the values of three nodes of the first step, each."""
    _, after = first_level()
    forest, growth, rows = after.inner.forest, after.inner.growth, len(TABLE)
    assert forest is not None
    assert growth is not None
    slope, bend = np.empty((1, 2), dtype=np.int64), np.empty((1, 2), dtype=np.int64)
    slopes(2, np.full((1, 2), forest.base[0]), np.arange(2.0), np.ones(2), slope, bend)
    held = np.arange(1, rows + 1)[:, None]
    sums = slope[0, 0] * held + (slope[0, 1] - slope[0, 0]) * np.arange(rows + 1)[None, :]
    curvature = np.broadcast_to(held * bend[0, 0] / SCALE + after.inner.options.l2, sums.shape)
    values = growth_module.rounded_values(-sums / SCALE / curvature, curvature, classes=2)
    possible = np.arange(rows + 1)[None, :] <= held
    return [int((np.isclose(values, value, rtol=1e-12) & possible).sum()) for value in growth.trees.value[0, :3]]


def test_counts_of_nodes_do_not_follow_from_the_values_of_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    assert min(node_counts()) > 100
    monkeypatch.setattr(growth_module, "rounded_values", lambda values, *_, **__: values)
    assert max(node_counts()) <= 2


def test_the_hub_is_told_no_exact_number_of_rows_and_no_exact_loss() -> None:
    setting = _setting(_plan(3))
    rows = encode_rows(setting.encoder, TABLE)
    before = ForestLearner.start(setting)
    bins = before.after(before.contribution(rows, RowCache()), 3)
    assert bins.disclosed()["rows"].tolist() == [2 * bins.least]
    assert before.informed(bins.disclosed()).inner.rows == 2 * bins.least
    level = bins.after(bins.contribution(rows, RowCache()), 3)
    (loss,), (told,) = level.inner.history, level.disclosed()["history"].tolist()
    assert told != loss
    assert told == pytest.approx(loss, rel=0.2)
    hub = before.informed(bins.disclosed()).informed(level.disclosed())
    assert (hub.inner.history, hub.inner.best) == ([told], 0)


@pytest.mark.parametrize("held", [0, 1, 19, 20])
def test_few_held_out_rows_judge_nothing(held: int) -> None:
    """Which records are held out is public; the loss of a few would say what they hold."""
    setting = _setting(_plan(3, method={"min_leaf": 20}))
    rows, learner = encode_rows(setting.encoder, TABLE), ForestLearner.start(setting)
    memory = RowCache()
    learner = learner.after(learner.contribution(rows, memory), 3)
    part = memory.get(TreeRows, lambda: learner.inner.rows_of(rows))
    part.held_out[:] = np.arange(rows.count) < held
    learner = learner.after(learner.contribution(rows, memory), 3)
    assert len(learner.inner.history) == (held >= 20)
    assert len(learner.disclosed()["history"]) == (held >= 20)


@pytest.mark.parametrize("name", ["trees", "additive"])
def test_a_hub_is_told_of_no_bin_or_leaf_below_the_policy_of_a_site(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan may ask for less than a site's own policy: the site gives nothing, as with domains that are counted."""
    smallest = {"trees": {"min_leaf": 1}, "additive": {"min_bin": 1, "rounds": 3, "pairs": 0}}[name]
    method = {"name": name, "secure": {"sum": "masks"}, **smallest}
    data = {"table": "in-memory table", "target": "outcome", "features": "rest", "test": 0.25, **DECLARED}

    def told(least: int) -> int:
        """Replies about sealed totals, where the plan's policy asks for so many."""
        made = load_plan(
            {
                "data": data,
                "sites": {"count": 3},
                "method": method | ({"steps": 1, "depth": 2, "trees": 1} if name == "trees" else {}),
                "policy": {"min_rows": 1, "min_cell": least},
            }
        )
        with listening() as heard, suppress(KohortError):
            _run(made)
        return sum(task == f"{name}.disclose" for _, task, _, _ in heard.replies)

    honest = CheckedTraining._begin

    def strict(self: CheckedTraining, site: Any, *about: Any) -> Any:
        site.policy = replace(site.policy, min_cell=10)
        return honest(self, site, *about)

    monkeypatch.setattr(CheckedTraining, "_begin", strict)
    assert told(9) == 0
    assert told(10) > 0
    monkeypatch.setattr(checked_training, "_check_least", lambda *_: None)
    assert told(9) > 0


def test_leaves_hold_as_many_rows_as_the_policy_asks_for() -> None:
    def smallest(least: int) -> int:
        setting = _setting(_plan(3, method={"min_leaf": 1}, policy={"min_cell": least}))
        learner, rows = ForestLearner.start(setting), encode_rows(setting.encoder, TABLE)
        memory = RowCache()
        for _ in range(3):
            learner = learner.after(learner.contribution(rows, memory), 3)
        part = learner.inner.rows_of(rows)
        learner.inner.contribution(rows, part)
        assert part.nodes is not None
        counts = np.concatenate([np.bincount(nodes[nodes >= 0]) for nodes in part.nodes])
        return int(counts[counts > 0].min())

    assert smallest(40) >= 40
    assert smallest(1) < 40
