"""The Python face: a table (or one a site), a few words about its columns, and `run`.

    federation = Federation(frame, target="income", quasi=["age", "sex"], sites=10, split="interval:age")
    outcome = federation.run()  # an additive model over secure sums
    outcome = federation.run("fedavg", rounds=60, batch=64)
    outcome.accuracy, outcome.model.predict(new_rows), outcome.disclosed

Tables may be pandas, polars or pyarrow frames, paths, or names of known datasets; predictions come back as the kind of
frame that went in.

With three or more sites the updates of "fedavg" are summed by masks, unless `dp` or `secure` is given: the hub sees
totals alone. `secure=None` asks for plain averaging, the baseline, where rows can be read by a lying hub.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import polars as pl

from kohort.errors import ConfigError, nearest
from kohort.methods.registry import find_method
from kohort.protocol.plan.approved import ModelSection, TrainSection
from kohort.runs.config import DataSection, Plan, SitesSection, load_plan
from kohort.runs.default_method import ADDITIVE, NETWORKS, default_method, with_default_sum
from kohort.runs.plan_mapping import with_mapping
from kohort.runs.run import Outcome, run
from kohort.runs.secure_default import load_secured, with_secure_sum
from kohort.tables.datasets.catalogue import open_table
from kohort.tables.frames import from_native

__all__ = ["Federation"]

IN_MEMORY = "in-memory table"


class Federation:
    """Sites over one table that is dealt out, or over one table a site.

    Keywords are the keys of the plan's `[data]` and `[sites]` sections; `sites` is `sites.count`. Columns without a
    stated role are features. `policy` holds the keys of `[policy]`.
    """

    def __init__(
        self,
        table: Any,
        *,
        sites: int | None = None,
        policy: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        data, layout = _sort_out(options, {"data": DataSection, "sites": SitesSection})
        self._tables: dict[str, pl.DataFrame] | None = None
        if isinstance(table, str | Path):
            data["table"] = str(table)
        else:
            data["table"] = IN_MEMORY
            self._tables = _as_tables(table)
        data = with_mapping({"data": data}, Path())["data"]
        data.setdefault("features", "rest")
        if sites is not None:
            layout["count"] = sites
        if self._tables is not None and len(self._tables) > 1:
            layout.setdefault("split", "files")
        self._raw: dict[str, Any] = {"data": data, "sites": layout, "policy": dict(policy or {})}

    def plan(self, method: str = "auto", *, model: Mapping[str, Any] | str | None = None, **options: Any) -> Plan:
        """The plan `run` would carry out. Keywords are keys of `[train]` or of the method's own section.

        "auto" is an additive model, or "fedavg" where keywords say how a network is trained; `Plan.notes` says why.

        Raises:
            ConfigError: A keyword is unknown, does not fit, or needs each site's own update, which a secure sum hides.
        """
        if method == "auto" and model is None and _is_additive(options):
            raw = {**self._raw, **_sections_of_additive(options)}
            name, because = default_method(raw)
            own = with_default_sum(raw["method"], self._site_count())
            return replace(load_plan({**raw, "method": {"name": name, **own}}), because=because)
        method = NETWORKS if method == "auto" else method
        train_keys = {item.name for item in fields(TrainSection)}
        train = {key: value for key, value in options.items() if key in train_keys}
        own = {key: value for key, value in options.items() if key not in train_keys}
        chosen = {"kind": model} if isinstance(model, str) else dict(model or {})
        unknown = set(chosen) - {item.name for item in fields(ModelSection)}
        if unknown:
            word = sorted(unknown)[0]
            raise ConfigError(f"unknown key {word!r} of the model", hint=nearest(word, _keys(ModelSection)))
        raw = {**self._raw, "train": train, "model": chosen, "method": {"name": method, **own}}
        made = with_secure_sum(raw, sites=self._site_count())
        return load_secured(made, asked=raw, plainly="secure=None")

    def _site_count(self) -> int | None:
        """How many sites there will be; None when the table's rows decide."""
        layout = self._raw["sites"]
        split = layout.get("split", SitesSection.split)
        if split == "files":
            return None if self._tables is None else len(self._tables)
        return None if split.startswith("column:") else int(layout.get("count", SitesSection.count))

    def run(
        self,
        method: str = "auto",
        *,
        seed: int | None = None,
        out: str | Path | None = None,
        force: bool = False,
        model: Mapping[str, Any] | str | None = None,
        **options: Any,
    ) -> Outcome:
        """Train one model. With `out`, model, ledger and run.json are written there."""
        return run(
            self.plan(method, model=model, **options),
            seed=seed,
            out=None if out is None else Path(out),
            force=force,
            tables=self._tables,
            baselines=True,
        )


def _additive_keys() -> set[str]:
    return {item.name for item in fields(find_method(ADDITIVE).config)}


def _is_additive(options: Mapping[str, Any]) -> bool:
    """Whether every keyword is one that an additive model reads; `rounds` alone says nothing of a network."""
    return set(options) <= _additive_keys() | {"class_weights"}


def _sections_of_additive(options: Mapping[str, Any]) -> dict[str, Any]:
    own = {key: value for key, value in options.items() if key != "class_weights"}
    weights = {"train": {"class_weights": options["class_weights"]}} if "class_weights" in options else {}
    return {"method": own, **weights}


def _as_tables(table: Any) -> dict[str, pl.DataFrame]:
    """One frame as one table, a mapping or a list as one table per site. A path or a name is read as in a plan."""
    if isinstance(table, Mapping):
        return {str(name): _as_frame(frame) for name, frame in table.items()}
    if isinstance(table, list | tuple):
        return {f"site-{index + 1:02d}": _as_frame(frame) for index, frame in enumerate(table)}
    return {"": _as_frame(table)}


def _as_frame(table: Any) -> pl.DataFrame:
    return open_table(table).frame if isinstance(table, str | Path) else from_native(table)[0]


def _keys(section: type[Any]) -> list[str]:
    return [item.name for item in fields(section)]


def _sort_out(options: Mapping[str, Any], sections: Mapping[str, type[Any]]) -> list[dict[str, Any]]:
    """Each keyword to the section that has a key of that name; an unknown one is an error that names the nearest."""
    found: dict[str, dict[str, Any]] = {name: {} for name in sections}
    for key, value in options.items():
        home = next((name for name, section in sections.items() if key in _keys(section)), None)
        if home is None:
            known = [word for section in sections.values() for word in _keys(section)]
            raise ConfigError(f"unknown keyword {key!r}", hint=nearest(key, known))
        found[home][key] = value
    return list(found.values())
