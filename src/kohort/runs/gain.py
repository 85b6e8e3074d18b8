"""How much of what anonymised columns tell is left after anonymisation.

Two references are run on the same rows, sites and seed: the same training on rows as they are (100 %), and the same
without the quasi-identifiers and items (0 %). The measure is the AUC of two classes, else the accuracy, or R2.

Only in a simulation: real sites do not train on rows that a plan has them anonymise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kohort.models.base import Remarks
from kohort.runs.config import Plan, load_plan, only_read

__all__ = ["MEASURES", "ColumnsGain", "reference_plans"]

MEASURES = ("auc", "accuracy", "r2")
BY_COLUMN = ("kinds", "bins", "bounds", "categories", "hierarchies")
LISTS = ("other", "nullable", "ancestors", "ordered", "keep")


@dataclass(frozen=True, kw_only=True)
class ColumnsGain:
    """A measure of a run, of the same on rows as they are, and of the same without the anonymised columns."""

    measure: str
    ours: float
    plain: float
    deleted: float

    @classmethod
    def of(cls, ours: Mapping[str, Any], plain: Mapping[str, Any], deleted: Mapping[str, Any]) -> ColumnsGain | None:
        """From the metrics of three runs; None where they share no measure."""
        for name in MEASURES:
            if all(isinstance(one.get(name), float) for one in (ours, plain, deleted)):
                return cls(measure=name, ours=ours[name], plain=plain[name], deleted=deleted[name])
        return None

    @property
    def kept(self) -> float | None:
        """The share of the columns' own gain that is kept; None where they have none."""
        gain = self.plain - self.deleted
        return (self.ours - self.deleted) / gain if gain > 0 else None

    def added_to(self, remarks: Remarks) -> Remarks:
        """The remarks of a run with this beside them."""
        kept = "they add nothing" if self.kept is None else f"{self.kept:.1%} of what they add is kept"
        note = (
            f"{self.measure} {self.ours:.4f}; {self.deleted:.4f} without the anonymised columns and {self.plain:.4f} "
            f"with them as they are: {kept}"
        )
        facts = {
            "gain_measure": self.measure,
            "gain_deleted": self.deleted,
            "gain_plain": self.plain,
            "gain_kept": self.kept,
        }
        return Remarks(notes=(*remarks.notes, note), facts={**remarks.facts, **facts})


def reference_plans(plan: Plan) -> tuple[Plan, Plan]:
    """Federated averaging on rows as they are, and without quasi-identifiers and items; otherwise as the plan says.

    Args:
        plan: A plan whose method anonymises quasi-identifiers and items.

    Returns:
        The two plans.
    """
    raw = plan.to_mapping()
    raw["method"] = {"name": "fedavg"}
    gone = {*plan.data.quasi, *plan.data.items}
    data = dict(raw["data"])
    data |= {"quasi": [], "items": [], "drop": [*data["drop"], *sorted(gone)]}
    for key in BY_COLUMN:
        data[key] = {name: value for name, value in data[key].items() if name not in gone}
    for key in LISTS:
        data[key] = [name for name in data[key] if name not in gone]
    return load_plan(only_read(raw)), load_plan(only_read({**raw, "data": data}))
