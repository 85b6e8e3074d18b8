"""Which totals of a run sites alone read, and what they told the hub of them instead.

A ledger line of a secure sum says at most who opens the total. Additive models and forests seal their totals: the hub
opens numbers that it cannot read, and is told by task `NAME.disclose` what follows from them (docs/methods/additive.md,
trees.md). Both are found by the tasks that the ledger lists; in runs of earlier versions, whose sums the hub did read,
it was `NAME.tell`. Counts of pairs of bins (`metric = "gram"`) are totals that the hub does read; a run with them is
described as if the hub read all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kohort.report.words import DISCLOSED, DISCLOSED_SPLITS, SEALED_TOTALS

__all__ = ["described", "sealed_totals"]

_ADDITIVE, _TREES = "additive", "trees"
_SAME: Final = "read by the hub, and the same from every site:"
_DISCLOSED: Final = {
    _ADDITIVE: (
        DISCLOSED,
        f"{_SAME} the bins over all sites, how many persons each holds and, at the end, the model, its values rounded",
    ),
    _TREES: (
        DISCLOSED_SPLITS,
        f"{_SAME} the bins over all sites, how the trees of the model grow, which child of a node has fewer rows, and "
        "the loss of held-out rows",
    ),
}
"""By learner: how a page calls what the hub is told, and what that is."""
_TOTAL: Final = "sites alone can read the totals over all sites; the hub cannot, unless a site helps it"


def sealed_totals(disclosed: Sequence[Mapping[str, Any]], plan: Mapping[str, Any] | None) -> frozenset[str]:
    """The tasks of secure sums whose totals sites alone read.

    Args:
        disclosed: What left, by task (`what`) and kind of guarantee.
        plan: The plan of the run.

    Returns:
        Names of tasks; none where the hub reads the totals, or a part of them.
    """
    keys = (plan or {}).get("method") or {}
    if any(section.get("metric") == "gram" for section in (keys, keys.get(_ADDITIVE)) if isinstance(section, Mapping)):
        return frozenset()
    return frozenset(f"{_name(item)}.total" for item in disclosed if _is_disclosed(item))


def described(disclosed: Sequence[Mapping[str, Any]], plan: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """What left, with `shown_as` and `in_words` of sealed totals and of what sites told of them.

    Args:
        disclosed: As in `sealed_totals`.
        plan: The plan of the run.

    Returns:
        The same, where `shown_as` is `words.SEALED_TOTALS`, `words.DISCLOSED` or `words.DISCLOSED_SPLITS`; other
        releases have none.
    """
    sealed = sealed_totals(disclosed, plan)
    return [_described(item, sealed) for item in disclosed]


def _described(item: Mapping[str, Any], sealed: frozenset[str]) -> dict[str, Any]:
    if item["kind"] == "secure-sum" and item["what"] in sealed:
        return {**item, "shown_as": SEALED_TOTALS, "in_words": _TOTAL}
    if _is_disclosed(item) and f"{_name(item)}.total" in sealed:
        kind, text = _DISCLOSED[_learner(_name(item))]
        return {**item, "shown_as": kind, "in_words": text}
    return dict(item)


def _is_disclosed(item: Mapping[str, Any]) -> bool:
    name = _name(item)
    return item["kind"] == "secure-sum" and item["what"] == f"{name}.disclose" and _learner(name) in _DISCLOSED


def _learner(name: str) -> str:
    """The learner of a task, which may be a part of another method."""
    return name.rpartition(".")[2]


def _name(item: Mapping[str, Any]) -> str:
    return str(item.get("what", "")).rpartition(".")[0]
