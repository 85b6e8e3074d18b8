"""A site that is restarted at every message takes the rows that were appended at the same steps as one that is not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.support.deployed import NAMES, Deployed, Servers, few_rows

from kohort.errors import DataError, RefusedError
from kohort.transport.deployment.appended import AppendedRows
from kohort.transport.deployment.site import SiteFolder
from kohort.transport.site_server import SiteServer
from kohort.transport.site_store import RunStore

PLAN = """
[data]
table = "at the sites"
target = "outcome"
quasi = ["ward"]
features = ["dose"]
bounds = {dose = [-5, 5]}
categories = {ward = ["x", "y"], outcome = ["ill", "well"]}

[sites]
split = "files"
arrive = "appended/1 round"

[method]
name = "partial"
gate = {k = 20, count = "local", release_k = 5, release_l = 1}

[model]
kind = "logistic"

[train]
rounds = 2
"""
NEW = 20


class Appending(Servers):
    """While messages travel, every site's table gets more rows; servers are made anew for each message, or last."""

    def __init__(self, sites: Mapping[str, SiteFolder], folder: Path, *, lasting: bool) -> None:
        super().__init__(sites)
        self.folder, self.exchanges = folder, 0
        self.servers: dict[str, SiteServer] = (
            {name: site.site_server() for name, site in sites.items()} if lasting else {}
        )

    def carry(self, messages: Mapping[str, bytes], *, deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
        self.exchanges += 1
        for name in messages:
            line = f"{self.exchanges / 10},x,ill\n" * NEW
            with (self.folder / f"{name}.csv").open("a") as table:
                table.write(line)
        if not self.servers:
            return super().carry(messages, deadline=deadline)
        return {name: self.servers[name].reply(message) for name, message in messages.items()}, {}


def test_a_restarted_site_takes_the_same_rows_at_the_same_steps(tmp_path: Path) -> None:
    found = {}
    for lasting in (False, True):
        made = Deployed.make(tmp_path / str(lasting), plan=PLAN, tables=few_rows())
        servers = Appending(made.sites, made.folder, lasting=lasting)
        found[lasting] = made.run("out", seed=3, servers=servers)
        assert not servers.broken
        for server in servers.servers.values():
            server.close()
    restarted, lasted = found[False].received, found[True].received
    assert restarted is not None
    assert lasted is not None
    assert restarted.equals(lasted)
    sizes = {batch: rows.height for (batch,), rows in restarted.group_by("batch")}
    assert sizes[1] == len(NAMES) * (120 + NEW)  # the first message opens the run
    assert sizes[2] % (len(NAMES) * NEW) == 0
    assert sizes[2] > 0
    assert np.array_equal(found[False].model.weights, found[True].model.weights)


def test_a_table_is_the_one_that_was_pinned_or_nothing(tmp_path: Path) -> None:
    now = [pl.DataFrame({"a": [1, 2, None]})]
    store = RunStore(tmp_path)

    def opened() -> AppendedRows:
        return AppendedRows(lambda: now[0], usable=pl.DataFrame.drop_nulls, store=store, key=b"k" * 32)

    first = opened()
    assert first.rows["a"].to_list() == [1, 2]
    store.begin(b"{}", b"")
    now[0] = pl.DataFrame({"a": [1, 2, None, 4, None, 5]})
    assert first.since(2)["a"].to_list() == [4, 5]
    now[0] = pl.DataFrame({"a": [1, 2, None, 4, None, 5, 6]})
    again = opened()
    assert again.whole.height == 3
    assert again.since(2)["a"].to_list() == [4, 5]
    assert again.since(4)["a"].to_list() == [6]
    now[0] = pl.DataFrame({"a": [1, 2, None, 4]})
    with pytest.raises(RefusedError, match="changed, removed or moved"):
        again.since(4)
    now[0] = pl.DataFrame({"a": [9, 2, None]})
    with pytest.raises(RefusedError, match="changed, removed or moved"):
        opened()
    now[0] = pl.DataFrame({"a": [1.0, 2.0, None, 4.0, None, 5.0, 7.5]})
    with pytest.raises(DataError, match="of another type since rows were appended: a"):
        first.since(6)
