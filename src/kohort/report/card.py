"""The model card: one page of Markdown beside a model that says what it is, where it came from and what it gave away.

It is written from what the run knows: the schema, the plan, the ledger's summary and the measures. It holds column
names, class names, counts and measures, no cell and no clock, so the same run writes the same card.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kohort.models.base import Model
from kohort.models.cluster_names import NoCommonModel
from kohort.registry import version
from kohort.report import words
from kohort.report.sealed import described
from kohort.tables.blocks import CategoryBlock, NumberBlock

__all__ = ["model_card"]

MOST_CLASSES = 20
MOST_NAMES = 10
_SAID_ELSEWHERE = {"target", "classes", "columns"}
_SHOWN_OF_PLAN = {
    "data": ("table", "missing", "encoding", "test"),
    "sites": ("count", "split", "quorum"),
    "model": ("kind", "hidden", "activation", "init", "dtype"),
    "train": ("rounds", "local_epochs", "batch", "optimizer", "lr", "fraction", "aggregate", "hub", "correction"),
    "policy": ("raw", "domain", "min_rows", "min_k", "min_l", "max_t", "epsilon", "delta"),
}
_MEASURES = {
    "accuracy": "accuracy",
    "f1": "F1",
    "f1_macro": "F1, mean over classes",
    "precision": "precision",
    "recall": "recall",
    "specificity": "specificity",
    "auc": "AUC",
    "r2": "R²",
    "rmse": "RMSE",
    "mae": "MAE",
}


def model_card(model: Model, *, run: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """The model card of a run's model.

    Args:
        model: The model that the card describes.
        run: The run that made it, as its JSON object.
        plan: The plan of that run, as the sections of its TOML file.

    Returns:
        Markdown that ends in a line break. It holds names, counts and measures, no cell and no date.
    """
    parts = [
        [f"# A model of {_code(model.target)}", "", _lead(model, run)],
        ["## What it is", "", *_what(model)],
        ["## How to use it", "", *_use(model, clusters=bool(run.get("clusters")))],
        ["## What it reads", "", *_columns(model)],
        ["## How it was trained", "", *_training(run, plan)],
        ["## What left the sites", "", *_disclosed(run, plan)],
        ["## How good it is", "", *_measures(run["metrics"])],
        ["## What it cannot promise", "", *_limits(model, run)],
        ["## Proof", "", *_proof(run)],
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _lead(model: Model, run: Mapping[str, Any]) -> str:
    if model.task == "regression":
        what = "a number"
    elif len(model.classes) <= MOST_CLASSES:
        what = "one of " + ", ".join(_code(name) for name in model.classes)
    else:
        what = f"one of {len(model.classes)} classes"
    rows = sum(run["site_rows"].values())
    begins = "No common model: the run ended among peers, and each cluster's sites have a model of their own, which "
    lead = f"{begins}predicts" if isinstance(model, NoCommonModel) else "Predicts"
    return (
        f"{lead} {_code(model.target)}, {what}, from {len(model.encoder.schema.inputs)} columns. "
        f"{_counted(run['sites'], 'site')} with {words.count(rows)} rows in all trained it together by the method "
        f"{_code(run['method'])}, in {_counted(run['rounds'], 'round')}."
    )


def _what(model: Model) -> list[str]:
    """What its kind says of it, except what the lead and the table of columns say already."""
    described = {name: value for name, value in model.describe().items() if name not in _SAID_ELSEWHERE}
    rows = [(_text(name.replace("_", " ")), _code(_plain(value))) for name, value in described.items()]
    return _table(("", "value"), rows)


def _use(model: Model, *, clusters: bool) -> list[str]:
    target = model.target
    common = ["kohort predict FOLDER TABLE --out FILE", "kohort evaluate FOLDER TABLE"]
    own = ["kohort predict FOLDER TABLE --out FILE --cluster NAME"] if clusters else []
    return [
        "```",
        *(() if isinstance(model, NoCommonModel) else common),
        *own,
        "```",
        "",
        f"FOLDER is the folder of this file. TABLE needs the columns below, in any order; predictions are written to "
        f"{_code(f'predicted_{target}')}. In Python: `kohort.load_model(FOLDER).predict(frame)`"
        + (", with `load_model(FOLDER, cluster=NAME)` for the model of a cluster of peers." if clusters else "."),
    ]


def _columns(model: Model) -> list[str]:
    rows = []
    for block in model.encoder.blocks:
        spec, domain = model.encoder.schema.columns[block.name], model.encoder.domain.columns[block.name]
        if isinstance(block, CategoryBlock):
            how = f"one of {len(block.categories)} categories"
        elif isinstance(block, NumberBlock):
            how = f"number in {len(spec.bins) + 1} bins" if spec.bins is not None else "number, scaled by its range"
        else:
            how = f"set of {len(domain.categories or ())} codes"
        other = spec.other or (domain.counted and domain.categories is not None)
        unseen = "become other" if other else "refused" if domain.categories is not None else "-"
        learned = "learned by a secure count" if domain.counted else "learned from rows"
        rows.append(
            (
                _code(block.name),
                ", ".join(sorted(spec.roles)),
                how,
                _counted(len(block.features), "input"),
                "declared" if domain.declared else learned,
                "known" if domain.missing or domain.kind == "items" else "refused",
                unseen,
            )
        )
    titles = ("column", "role", "read as", "inputs", "its values were", "missing cells", "unseen values")
    return [
        *_table(titles, rows),
        "",
        f"Categories are encoded as {_code(model.encoder.encoding)}. Values learned from rows are a disclosure of the "
        "sites, listed below as value ranges; they are stored with the model, which cannot read a table without them.",
    ]


def _training(run: Mapping[str, Any], plan: Mapping[str, Any]) -> list[str]:
    lines = [
        (f"`{section}.{key}`", _code(_plain(value)))
        for section, keys in _SHOWN_OF_PLAN.items()
        for key in keys
        if (value := plan.get(section, {}).get(key)) not in (None, [], ())
    ]
    named = {
        "name",
        *({"link"} if run["task"].get("kind") == "classification" else ()),
    }  # link is read of numbers alone
    own = {key: value for key, value in plan.get("method", {}).items() if key not in named}
    lines += [(f"`method.{key}`", _code(_plain(value))) for key, value in own.items()]
    return [*_table(("key", "value"), lines), "", f"Ended by: {_text(run['stopped_by'])}."]


def _disclosed(run: Mapping[str, Any], plan: Mapping[str, Any]) -> list[str]:
    entries = described(run["disclosed"], plan)
    rows = [
        (
            _text(item["recipient"]),
            _text(item["what"]),
            _held(item) + words.kind_named(_shown(item)).label,
            item["in_words"] if "shown_as" in item else _code(item["guarantee"]),
            words.count(item["rows"]) if item["rows"] else "-",
            words.count(item["releases"]),
            words.size(item["size"]),
        )
        for item in entries
    ]
    lines = _table(("to", "task", "kind", "guarantee", "rows", "releases", "bytes"), rows)
    kinds = words.kinds_in_order({_shown(item) for item in entries})
    lines += ["", *(f"- **{kind.label}**: {kind.sentence}" for kind in kinds)]
    if any("shown_as" in item for item in entries):
        lines.append(f"- **not protected by sealed totals**: {words.SEALED[0].lower()}{words.SEALED[1:]}")
    if run.get("epsilon") is not None:
        lines.append(f"- **privacy budget**: {words.budget(run)}.")
    return lines


def _held(item: Mapping[str, Any]) -> str:
    found = words.held(item["kind"], rows=item["rows"], size=item["size"], releases=item["releases"])
    return f"{found} of " if found else ""


def _shown(item: Mapping[str, Any]) -> str:
    return str(item.get("shown_as") or item["kind"])


def _measures(metrics: Mapping[str, Any]) -> list[str]:
    if not metrics:
        return ["Not measured: the plan kept no test rows. Measure it with `kohort evaluate FOLDER TABLE`."]
    intervals = metrics.get("intervals") or {}
    rows = [
        (title, words.measure(metrics[name]), _range(intervals.get(name)))
        for name, title in _MEASURES.items()
        if name in metrics
    ]
    lines = _table(("measure", "value", "95 % interval"), rows)
    lines += ["", "Measured on rows that no site trained on; intervals: a bootstrap over these or, if named, persons."]
    by_site: Mapping[str, Mapping[str, Any]] = metrics.get("by_site") or {}
    scores = sorted(
        found[name] for found in by_site.values() for name in ("accuracy", "r2") if found.get(name) is not None
    )
    if len(scores) > 1:
        lines.append(
            f"Over {len(scores)} sites it lies between {words.measure(scores[0])} and {words.measure(scores[-1])}."
        )
    return lines


def _limits(model: Model, run: Mapping[str, Any]) -> list[str]:
    lines = [
        "It is as good as the table says only on rows drawn like the test rows. Another seed, other sites or another "
        "year of data move it further than the intervals do.",
    ]
    if run["engine"] == "local":
        lines.append(
            "The sites and their policies were simulated in one process; the ledger shows what such sites would send."
        )
    open_ended = [
        block.name for block in model.encoder.blocks if isinstance(block, NumberBlock) and not block.domain.declared
    ]
    if open_ended:
        lines.append("Numbers outside the range of the training rows are read on the same scale: a guess lies there.")
    kinds = {item["kind"] for item in run["disclosed"]}
    if kinds & {"raw", "aggregate"}:
        lines.append("Part of what left the sites has no formal protection; see the kinds above.")
    lines.append("A model can reveal something of the rows it was trained on.")
    for what, sites in (("refused to take part", run["refused"]), ("were dropped", run["dropped"])):
        if sites:
            shown = ", ".join(_text(name) for name in list(sites)[:MOST_NAMES])
            more = f" and {len(sites) - MOST_NAMES} more" if len(sites) > MOST_NAMES else ""
            lines.append(f"{_counted(len(sites), 'site')} {what}: {shown}{more}.")
    lines += [f"{_text(note)}." for note in run["notes"]]
    return [f"- {line}" for line in lines]


def _proof(run: Mapping[str, Any]) -> list[str]:
    seed = "none, randomness of the operating system" if run["seed"] is None else str(run["seed"])
    made_with = ", ".join(f"{name} {version(name)}" for name in ("kohort", "numpy", "polars"))
    return [
        f"- Head of the ledgers: `{run['ledger_head']}`. `kohort ledger verify` on the run folder arrives at it "
        "as long as no line was changed.",
        f"- Seed: {seed}. Engine: {_text(run['engine'])}.",
        f"- Made with {made_with}, Python {platform.python_version()}.",
    ]


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}", *(f"| {' | '.join(row)} |" for row in rows)]


def _range(interval: Sequence[float] | None) -> str:
    return "-" if interval is None else f"{words.measure(interval[0])} to {words.measure(interval[1])}"


def _counted(count: int, noun: str) -> str:
    return f"{words.count(count)} {noun}{'' if count == 1 else 's'}"


def _plain(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_plain(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_plain(item)}" for key, item in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(value: object) -> str:
    """Untrusted text in a line of Markdown: nothing in it may end the line, the cell or start markup."""
    plain = str(words.printable(str(value)))
    return "".join(f"\\{char}" if char in r"\`*_{}[]<>|#" else char for char in plain)


def _code(value: object) -> str:
    """Untrusted text as code: fenced by more backticks than it holds, and without the bar that ends a cell."""
    plain = str(words.printable(str(value))).replace("|", "\\|")
    if "`" not in plain:
        return f"`{plain}`"
    fence = "`" * (plain.count("`") + 1)
    return f"{fence} {plain} {fence}"
