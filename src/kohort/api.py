"""The Python API: a table (or one per site), a few words about its columns, and `run`.

    federation = Federation(frame, target="income", quasi=["age", "sex"], sites=10, split="interval:age")
    federation.check()  # what the columns seem to be, which rows take part, what sites disagree about
    outcome = federation.run()  # an additive model over secure sums
    outcome = federation.run(dp=1.0)  # the same within a privacy budget
    outcome = federation.run("fedavg", rounds=60, batch=64)
    outcome.accuracy, outcome.predict(new_rows), outcome.disclosed

Tables may be pandas, polars or pyarrow frames, paths, or names of known datasets; predictions come back as the kind of
frame that went in.

With three or more sites the updates of "fedavg" are summed by masks, unless `secure` is given: the hub sees totals
alone. `secure=None` asks for plain averaging, the baseline, where rows can be read by a lying hub. `dp=1.0` is a budget
of epsilon 1.0; its noise is added once, in shares, unless keywords say how sites train.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

import polars as pl

from kohort.errors import ConfigError, nearest
from kohort.methods.registry import find_method
from kohort.privacy.policy import Policy
from kohort.protocol.plan.approved import ModelSection, TrainSection
from kohort.protocol.plan.sections import LEARNED_KINDS
from kohort.runs.checked import Checked, check_plan
from kohort.runs.config import DataSection, Plan, SitesSection, load_plan, only_read
from kohort.runs.plan.default_method import (
    ADDITIVE,
    NETWORKS,
    SAYS_NOTHING,
    default_method,
    trains_network,
    with_automatic_model,
    with_default_settings,
    with_default_sum,
)
from kohort.runs.plan.mapping import with_hierarchies, with_mapping
from kohort.runs.plan.overrides import dotted_keys, key_of, without_keys
from kohort.runs.python_words import in_python_words, speaks_python
from kohort.runs.results.observer import Progress
from kohort.runs.run import Outcome, run
from kohort.runs.secure_default import load_secured, with_secure_sum
from kohort.tables.datasets.catalogue import open_table
from kohort.tables.frames import from_native
from kohort.tables.reading import with_dates

__all__ = ["Comparison", "Federation"]

IN_MEMORY = "in-memory table"


class _Unset:
    """The default of a keyword that was not given: None means something else."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Any = _Unset()


class Federation:
    """Sites over one table that is dealt out, or over one table per site.

    Columns without a stated role are features; those that look like identifiers are left out and named in the notes.

    Args:
        table: A frame, a path, the name of a dataset, or the address of a database: one table that is dealt out to
            simulated sites. A mapping or a list of them: one table per site.
        target: The column to predict.
        sites: How many simulated sites one table is dealt out to; 10 by default.
        split: How it is dealt out: "iid", "interval:COLUMN", "column:NAME", "dirichlet", "sorted".
        quasi: Columns that somebody may know of a person; for methods that release or anonymise rows.
        sensitive: Columns that must not be learned about a person.
        identifiers: Columns that name persons. They are never learned from and in no output.
        person: The identifier that names the person a row is about, where there are several.
        drop: Columns that are not used.
        keep: Columns that are used although they look like identifiers.
        features: The columns to learn from; "rest" is every column without another role.
        items: Columns that hold sets of codes.
        task: "classification" or "regression", where the rule for targets is wrong.
        missing: "impute" (default), "category", or "drop".
        weight: A column that says how much a row counts, for methods that train a network.
        consent: A column that says what may be done with a row: share, train (never sent), or none.
        unseen: "other" (default) or "error": what a category is that no training row had.
        preflight: "first" lets sites compare their tables by messages before they learn; tables at hand are compared in
            any case.
        encoding: "onehot" or "label".
        test: Share of the rows kept for testing, a table of test rows, or 0.
        kinds: "number", "category" or "items" by column.
        bounds: Public bounds of numbers, by column.
        categories: Public categories, by column.
        bins: Public cut points that make a number an ordinal code, by column.
        hierarchies: What stands above the values of quasi-identifiers and items: "icd9", "icd10", or lists of
            a value and the labels above it.
        ancestors: Columns of items with a hierarchy, for which the labels above an item are features too.
        ordered: Columns whose `categories` are listed in their order.
        other: Columns whose unseen categories become "other".
        nullable: Columns in which values may be missing.
        reading: How text files are written, where that cannot be found from them.
        query: A SELECT statement, where the table is the address of a database.
        mapping: What makes the tables of sites agree (`kohort harmonise`): a path or a mapping.
        validation: Share of the training rows that the hub holds to judge updates by.
        clusters: How many clusters simulated sites form, or "column:NAME" or "labels".
        alpha: Unevenness of a "dirichlet" split.
        low_risk: Share of each site's rows that carry a low risk, or "below:COLUMN:NUMBER".
        min_rows: Fewest rows of a simulated site.
        quorum: Smallest share of the sites that must answer.
        deadline: Seconds a site has for an answer.
        arrive: Rows that come in over time, as in "20%/10 rounds"; for simulations.
        faults: Fault injection: drop-outs, stragglers and Byzantine sites.
        policy: What every simulated site allows: a `kohort.Policy`, or a mapping of its keys.

    Raises:
        ConfigError: A keyword is unknown or does not fit.
    """

    def __init__(
        self,
        table: Any,
        *,
        target: str | None = None,
        sites: int | None = None,
        split: str = UNSET,
        quasi: Sequence[str] = UNSET,
        sensitive: Sequence[str] = UNSET,
        identifiers: Sequence[str] = UNSET,
        person: str | None = UNSET,
        drop: Sequence[str] = UNSET,
        keep: Sequence[str] = UNSET,
        features: Sequence[str] | Literal["rest"] = UNSET,
        items: Sequence[str] = UNSET,
        task: Literal["classification", "regression"] | None = UNSET,
        missing: Literal["impute", "category", "drop"] = UNSET,
        weight: str | None = UNSET,
        consent: str | None = UNSET,
        unseen: Literal["other", "error"] = UNSET,
        preflight: Literal["none", "first", "only"] = UNSET,
        encoding: Literal["label", "onehot"] = UNSET,
        test: float | str = UNSET,
        kinds: Mapping[str, str] = UNSET,
        bounds: Mapping[str, tuple[float, float]] = UNSET,
        categories: Mapping[str, Sequence[str]] = UNSET,
        bins: Mapping[str, Sequence[float]] = UNSET,
        hierarchies: Mapping[str, str | Sequence[Sequence[str]]] = UNSET,
        ancestors: Sequence[str] = UNSET,
        ordered: Sequence[str] = UNSET,
        other: Sequence[str] = UNSET,
        nullable: Sequence[str] = UNSET,
        reading: Mapping[str, Any] | None = UNSET,
        query: str | None = UNSET,
        mapping: str | Path | Mapping[str, Any] | None = UNSET,
        validation: float | None = UNSET,
        clusters: int | str | None = UNSET,
        alpha: float | Sequence[float] = UNSET,
        low_risk: float | str | None = UNSET,
        min_rows: int = UNSET,
        quorum: float = UNSET,
        deadline: float | None = UNSET,
        arrive: str | None = UNSET,
        faults: Mapping[str, Any] = UNSET,
        policy: Policy | Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in _NOT_KEYS and value is not UNSET}
        with speaks_python():
            data, layout = _sort_out({**given, **options}, {"data": DataSection, "sites": SitesSection})
            self._tables: dict[str, pl.DataFrame] | None = None
            if isinstance(table, str | Path):
                data["table"] = str(table)
            else:
                data["table"] = IN_MEMORY
                self._tables = _as_tables(table)
            if isinstance(data.get("mapping"), Path):
                data["mapping"] = str(data["mapping"])
            data = with_hierarchies(with_mapping({"data": data}, Path()), Path())["data"]
            data.setdefault("features", "rest")
            if sites is not None:
                layout["count"] = sites
            if self._tables is not None and len(self._tables) > 1:
                layout.setdefault("split", "files")
            self._raw: dict[str, Any] = {"data": data, "sites": layout, "policy": _as_mapping(policy)}

    def __repr__(self) -> str:
        """What it is over, in one line."""
        data, count = self._raw["data"], self._site_count()
        where = f"{len(self._tables)} tables" if self._tables and len(self._tables) > 1 else data["table"]
        return f"Federation({where}, target={data.get('target')!r}, sites={count or 'by the rows'})"

    def plan(self, method: str = "auto", *, model: Mapping[str, Any] | str | None = None, **options: Any) -> Plan:
        """The plan `run` would carry out. Keywords are those of `run`.

        "auto" is an additive model, or "fedavg" where keywords say how a network is trained; `Plan.notes` says why.
        With `model` "additive", "trees" or "auto", which looks at the policy, it is the method of that name.

        Raises:
            ConfigError: A keyword is unknown, does not fit, or needs each site's own update, which a secure sum hides.
        """
        if method == "auto" and isinstance(model, str):
            chosen_by_policy, because = with_automatic_model({**self._raw, "model": {"kind": model}})
            model = str(chosen_by_policy["model"]["kind"])
            if model in LEARNED_KINDS:
                return replace(self.plan(model, model=model, **options), because=because)
        if method == "auto" and model is None and _is_additive(options):
            raw = {**self._raw, **_sections_of_additive(options)}
            name, because = default_method(raw)
            own = with_default_sum(raw["method"], self._site_count())
            return replace(load_plan({**raw, "method": {"name": name, **own}}), because=because)
        method = NETWORKS if method == "auto" else method
        known = {item.name for item in fields(find_method(method).config)}
        # A method that trains no network may have a key of the same name, such as rounds.
        train_keys = {item.name for item in fields(TrainSection)} - (set() if trains_network(method) else known)
        train = {key: value for key, value in options.items() if key in train_keys}
        own = {key: value for key, value in options.items() if key not in train_keys}
        chosen = {"kind": model} if isinstance(model, str) else dict(model or {})
        unknown = set(chosen) - {item.name for item in fields(ModelSection)}
        if unknown:
            word = sorted(unknown)[0]
            raise ConfigError(f"unknown key {word!r} of the model", hint=nearest(word, _keys(ModelSection)))
        for word in own:
            if key_of(word) not in {key_of(name) for name in known}:
                in_model = word in _keys(ModelSection)
                hint = f'Give model={{"{word}": ...}}' if in_model else nearest(word, train_keys | known)
                raise ConfigError(f"run({method!r}) has no keyword {word!r}", hint=hint)
        raw = {**self._raw, "train": train, "model": chosen, "method": {"name": method, **own}}
        return self._with_settings(raw)

    def _with_settings(self, raw: dict[str, Any]) -> Plan:
        """The plan of these sections, with settings and a secure sum where nobody asked for others."""
        sites = self._site_count()
        filled, because = with_default_settings(raw, sites=sites, besides=SAYS_NOTHING)
        if "encoding" not in filled["data"] and trains_network(str(raw["method"]["name"])):
            filled = {**filled, "data": {**filled["data"], "encoding": "onehot"}}
        made = with_secure_sum(filled, sites=sites)
        unread = dotted_keys(made) - dotted_keys(only_read(made)) - dotted_keys(raw)
        plan = load_secured(without_keys(made, unread), asked=raw, plainly="secure=None")
        return replace(plan, because=because)

    def _site_count(self) -> int | None:
        """How many sites there will be; None when the table's rows decide."""
        layout = self._raw["sites"]
        split = layout.get("split", SitesSection.split)
        if split == "files":
            return None if self._tables is None else len(self._tables)
        return None if split.startswith("column:") else int(layout.get("count", SitesSection.count))

    def check(self, method: str = "auto", **options: Any) -> Checked:
        """What a run would start from, without training anything.

        Args:
            method: As in `run`.
            **options: As in `run`.

        Returns:
            Roles of the columns, the task and why, rows per site, what is left out, what sites disagree about, and
            which sites' policy would refuse the plan.

        Raises:
            KohortError: The plan or the data is at fault.
        """
        with speaks_python():
            found = check_plan(self.plan(method, **options), tables=self._tables)
        return replace(found, notes=tuple(in_python_words(note) for note in found.notes))

    def run(
        self,
        method: str = "auto",
        *,
        seed: int | None = None,
        out: str | Path | None = None,
        force: bool = False,
        progress: bool = False,
        model: Mapping[str, Any] | str | None = None,
        rounds: int = UNSET,
        dp: float | Mapping[str, Any] | None = UNSET,
        secure: str | Mapping[str, Any] | None = UNSET,
        class_weights: Mapping[str, float] | Literal["balanced"] | None = UNSET,
        local_epochs: int = UNSET,
        batch: int = UNSET,
        optimizer: Literal["sgd", "momentum", "adam"] = UNSET,
        lr: float = UNSET,
        momentum: float = UNSET,
        l2: float = UNSET,
        fraction: float = UNSET,
        stop: Mapping[str, Any] | None = UNSET,
        aggregate: str | Mapping[str, Any] = UNSET,
        hub: str | Mapping[str, Any] = UNSET,
        correction: str | Mapping[str, Any] = UNSET,
        gate: Mapping[str, Any] = UNSET,
        anonymise: Mapping[str, Any] = UNSET,
        phases: Sequence[Mapping[str, Any]] = UNSET,
        **options: Any,
    ) -> Outcome:
        """Train one model.

        Args:
            method: "auto" (an additive model), or a name that `kohort methods` lists.
            seed: The same seed gives the same bytes; 0 when none is given.
            out: A folder for model, ledger, report data and run.json; without it nothing is written.
            force: Overwrite what is in `out`.
            progress: Print a line per round on stderr.
            model: For methods that train a network: its kind ("mlp", "logistic", "linear", "svm"), or a mapping such as
                {"kind": "mlp", "hidden": [24]}.
            rounds: Rounds of training.
            dp: A privacy budget: epsilon, or a mapping with epsilon, delta, unit, mechanism, clip.
            secure: The secure sum: "masks", "bfv", "ckks", or a mapping; None averages updates in clear.
            class_weights: How much a row of each class counts, as public numbers, or "balanced".
            local_epochs: Passes over a site's rows per round.
            batch: Rows per step; 0 is the whole site.
            optimizer: The local optimizer.
            lr: The learning rate.
            momentum: Of optimizer "momentum".
            l2: Weight decay.
            fraction: Share of the sites asked per round.
            stop: Early stopping, such as {"patience": 10}.
            aggregate: "mean", "median", "trimmed:0.2", "krum", ...; others than "mean" need `secure=None`.
            hub: The server optimizer: "plain", "momentum", "fedadam", "fedyogi", "fedadagrad".
            correction: "none", "fedprox:0.1" or "scaffold".
            gate: Of method "partial": its rule and k.
            anonymise: Of methods "silo" and "syntactic": k, l, t and the algorithm.
            phases: Of method "hybrid".
            **options: Further keys of `[train]` or of the method's own section of a plan (`kohort schema`).

        Returns:
            The model, its measures, and everything that was disclosed.

        Raises:
            KohortError: The plan or the data is at fault, sites refuse, or training diverged.
        """
        given = {name: value for name, value in locals().items() if name not in _NOT_KEYS and value is not UNSET}
        with speaks_python():
            return run(
                self.plan(method, model=model, **given, **options),
                seed=seed,
                out=None if out is None else Path(out),
                force=force,
                tables=self._tables,
                watch=_print_round if progress else _silent,
                baselines=True,
            )

    def compare(self, *variants: str | Mapping[str, Any], seed: int | None = None, seeds: int = 1) -> Comparison:
        """Run several methods or settings on the same rows.

        Args:
            *variants: Names of methods, or mappings of the keywords of `run`, such as {"method": "fedavg", "lr": 0.1}.
            seed: The first seed; 0 when none is given.
            seeds: How many seeds each variant runs with.

        Returns:
            The outcomes by name, and a table of their measures.

        Raises:
            KohortError: A variant cannot run.

        Example:
            federation.compare("additive", "trees", {"dp": 1.0})
        """
        found: dict[str, tuple[Outcome, ...]] = {}
        for variant in variants or ("auto",):
            keys = {"method": variant} if isinstance(variant, str) else dict(variant)
            name = ", ".join(str(value) if key == "method" else f"{key}={value}" for key, value in keys.items())
            found[name] = tuple(self.run(**keys, seed=(seed or 0) + place) for place in range(seeds))
        return Comparison(found)


@dataclass(frozen=True)
class Comparison:
    """Outcomes of several variants on the same rows.

    Attributes:
        outcomes: One outcome per seed, by variant.
    """

    outcomes: Mapping[str, tuple[Outcome, ...]]

    def table(self) -> pl.DataFrame:
        """One row per variant: means of its measures over the seeds, its epsilon, bytes sent and seconds."""
        return pl.DataFrame([{"variant": name, **_means(some)} for name, some in self.outcomes.items()])

    def __repr__(self) -> str:
        """The table."""
        with pl.Config(tbl_rows=-1, tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True):
            return repr(self.table())

    def _repr_html_(self) -> str:
        return str(self.table()._repr_html_())


_NOT_KEYS = frozenset({"self", "table", "sites", "policy", "options", "method", "seed", "out", "force", "progress",
                       "model"})  # fmt: skip
_MEASURES = ("accuracy", "f1", "auc", "rmse", "r2")


def _means(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    measures = {name: [one.metrics.get(name) for one in outcomes] for name in _MEASURES}
    return {
        **{name: mean(values) for name, values in measures.items() if any(value is not None for value in values)},
        "epsilon": mean([one.epsilon for one in outcomes]),
        "bytes_up": mean([one.bytes["up"] for one in outcomes]),
        "seconds": mean([one.seconds["cpu_total"] for one in outcomes]),
    }


def _print_round(now: Progress) -> None:
    measured = "" if now.accuracy is None else f", {now.measure} {now.accuracy:.3f}"
    print(f"round {now.round} of {now.rounds}{measured}, {now.seconds:.1f} s", file=sys.stderr)


def _silent(now: Progress) -> None:
    del now


def _as_mapping(policy: Policy | Mapping[str, Any] | None) -> dict[str, Any]:
    """The keys of a policy that are not at their defaults."""
    if not is_dataclass(policy):
        return dict(policy or {})
    usual = Policy()
    return {
        item.name: value
        for item in fields(Policy)
        if (value := getattr(policy, item.name)) != getattr(usual, item.name)
    }


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
    return open_table(table).frame if isinstance(table, str | Path) else with_dates(from_native(table)[0])


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
