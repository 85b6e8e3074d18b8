"""What a method says it reads of `[train]` and `[model]` is what it reads: runs that differ in one key are compared.

`Method.reads` is a declaration, and a plan, a report and a model card believe it. Here it is held against what happens:
a plan's hash is held constant, because requests carry it and noise is drawn by it, so that a key which nothing else
reads leaves the same replies, model and contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from unittest import mock

from kohort.errors import ConfigError, KohortError, RefusedError
from kohort.methods.registry import find_method
from kohort.runs.config import Plan
from kohort.runs.explain import explain_plan
from kohort.runs.run import run
from kohort.testing.federation import listening, plan_of, tables

__all__ = ["TRIES", "Try", "misdeclared_keys"]

SEED = 5


@dataclass(frozen=True)
class Try:
    """A key of `[train]` or `[model]`, another value for it, and what else a plan has to say for the key to matter."""

    key: str
    value: object
    beside: Mapping[str, object] = field(default_factory=dict)


TRIES: tuple[Try, ...] = (
    Try("train.rounds", 4),
    Try("train.local_epochs", 3),
    Try("train.batch", 8),
    Try("train.optimizer", "sgd"),
    Try("train.lr", 0.2),
    Try("train.momentum", 0.5, {"train.optimizer": "momentum"}),
    Try("train.l2", 0.5),
    Try("train.class_weights", {"ill": 3.0}),
    Try("train.state", "keep", {"train.optimizer": "momentum"}),
    Try("train.fraction", 0.5),
    Try("train.select", "poisson", {"train.fraction": 0.5}),
    Try("train.stop", {"patience": 1, "min_delta": 10.0}, {"train.rounds": 6}),
    Try("train.aggregate", "clip:0.001"),
    Try("train.hub", "fedadam:lr=0.1"),
    Try("train.correction", "fedprox:1.0"),
    Try("train.average", 1.0),
    Try("train.reject", 0.1, {"data.validation": 0.2, "train.reject": 1000.0}),
    Try("model.kind", "logistic", {"model.hidden": None}),
    Try("model.hidden", [4]),
    Try("model.activation", "tanh"),
    Try("model.dtype", "float64"),
    Try("model.init", "pytorch"),
)
"""`model.loss` is for modules of torch alone and not among them."""
_BY_ITSELF = frozenset({"model.dtype", "train.correction"})
"""Keys that act where no method reads them: the type of encoded rows, and the proximal term of `train.training()`, half
of what `train.correction` may ask for. A method that does not list them refuses plans that give them."""


def misdeclared_keys(method: str) -> tuple[list[str], list[str]]:
    """Where `Method.reads` and what a method reads differ, over the small plan of `kohort.testing`.

    Args:
        method: The method's name.

    Returns:
        The keys that plans may give although nothing reads them, and the keys that change what happens although
        `reads` leaves them out, so that no plan may give them.

    Raises:
        ConfigError: No such method is registered, or its `example` makes no plan.
    """
    because, traces = set(find_method(method).reads(plan_of(method).config).because), _Traces()
    dead, silent = [], []
    with mock.patch.object(Plan, "digest", return_value="0" * 64):
        for one in TRIES:
            declared = _is_declared(method, one)
            if declared:
                dead += [one.key] if traces.differ(method, one) is False else []
            elif declared is not None and one.key not in because | _BY_ITSELF:
                with mock.patch.object(Plan, "require_read", return_value=None):
                    silent += [one.key] if traces.differ(method, one) else []
    return dead, silent


def _is_declared(method: str, one: Try) -> bool | None:
    """Whether plans may give a key; None where they may not give what the key needs beside it."""
    try:
        return one.key in _plan_with(method, one.beside).reads()
    except (ConfigError, RefusedError):
        return None


class _Traces:
    """What runs of plans leave, each made once."""

    def __init__(self) -> None:
        self._known: dict[str, object] = {}

    def differ(self, method: str, one: Try) -> bool | None:
        """Whether a key makes a difference; None where no run can be made with it."""
        try:
            with_it = self._of(method, {**one.beside, one.key: one.value})
            return with_it != self._of(method, one.beside)
        except KohortError:
            return None

    def _of(self, method: str, keys: Mapping[str, object]) -> object:
        name = repr(sorted(keys.items()))
        if name not in self._known:
            self._known[name] = _trace(_plan_with(method, keys))
        return self._known[name]


def _plan_with(method: str, keys: Mapping[str, object]) -> Plan:
    sections: dict[str, dict[str, object]] = {"train": {}, "model": {}, "data": {}}
    for key, value in keys.items():
        section, _, name = key.partition(".")
        sections[section][name] = value
    return plan_of(method, **sections)


def _trace(plan: Plan) -> object:
    """Every request's count and every reply, the model, and what sites may be asked and may release."""
    with listening() as carried:
        outcome = run(plan, seed=SEED, tables=tables())
    saved = outcome.model.save()
    claims = find_method(plan.method).claims(plan.config, 50)
    arrays = {name: (value.dtype.str, value.tolist()) for name, value in saved.arrays.items()}
    said = repr((arrays, saved.facts, explain_plan(plan).to_mapping(), claims))
    return carried.requests, tuple(carried.replies), said
