"""What a round costs in long runs, and a masked round with many sites, in the processor seconds of whole commands.

A run writes a checkpoint, ledger lines and a receipt every round; none of these may grow with the rounds before. In a
masked round every site derives a mask for each of its neighbours, of which it has more the more sites there are.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import polars as pl

from bench.harness import Row
from bench.scale import command_cost

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "many_rounds"
ROUNDS, SITES, HIDDEN = 6_000, 500, 83
FEW, MORE = 1, 3
SUMMARY = (
    f"`kohort run` in a process of its own, processor seconds. {ROUNDS:,} rounds of federated averaging over 10 sites "
    f"of 20 rows, with ledger, receipts and checkpoints. And a round over {SITES} sites whose updates, about 1,000 "
    f"numbers, are summed by masks: {MORE} rounds less {FEW}, all parties together, per site."
)
FEATURES = 9
MASKS = 'secure = {sum = "masks"}'
PLAN = """
[data]
table = "{table}"
target = "label"
features = "rest"
test = 0.1
[sites]
count = {sites}
split = "iid"
[model]
kind = "mlp"
hidden = [{hidden}]
[train]
rounds = {rounds}
[policy]
min_rows = 1
[method]
name = "fedavg"
{secure}
"""


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        long = _seconds(root, sites=10, rounds=ROUNDS, hidden=2, secure="")
        few, more = (_seconds(root, sites=SITES, rounds=rounds, hidden=HIDDEN, secure=MASKS) for rounds in (FEW, MORE))
    per_site = (more - few) / (MORE - FEW) / SITES
    return [
        Row.within(f"{ROUNDS:,} rounds, 10 sites", ours=long, peer="limit", theirs=8.0, unit="s"),
        Row.within(f"a masked round, {SITES} sites, per site", ours=per_site, peer="limit", theirs=0.04, unit="s"),
    ]


def _seconds(root: Path, *, sites: int, rounds: int, hidden: int, secure: str) -> float:
    random = np.random.default_rng(0)
    numbers = random.random((sites * 23, FEATURES))
    columns = {f"f{place}": numbers[:, place] for place in range(FEATURES)}
    table = root / f"{sites}.csv"
    pl.DataFrame({**columns, "label": np.where(numbers.sum(axis=1) > FEATURES / 2, "yes", "no")}).write_csv(table)
    plan = root / "plan.toml"
    plan.write_text(PLAN.format(table=table, sites=sites, rounds=rounds, hidden=hidden, secure=secure))
    return command_cost("run", str(plan), "--out", str(root / f"{sites}-{rounds}"), "--json").seconds
