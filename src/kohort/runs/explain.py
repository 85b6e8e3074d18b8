"""Explain a plan: its contract in words, derived from the plan alone.

The table is not read, because a site's operator approves a plan before a run, and hub and sites must get the same
text. Columns that the plan does not name are assumed to have no declared domain, so the text lists at least what a
site is asked.
"""

from __future__ import annotations

from typing import Final

from kohort.methods.registry import find_method
from kohort.privacy.explain import Explanation, explain
from kohort.protocol.enrolment import DESCRIBE
from kohort.protocol.key_holder import key_holder_contract, needs_key_holder
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.rounds.domains.learning import learning_steps
from kohort.runs.agreed import approved_plan_for
from kohort.runs.config import Plan
from kohort.tables.schema import ColumnSpec, Role, Schema

__all__ = ["explain_plan", "plan_schema"]

_SCHEMA_KEYS: Final = (
    "target", "quasi", "sensitive", "identifiers", "items", "features", "drop",
    "kinds", "bins", "bounds", "categories", "other", "nullable", "person", "hierarchies", "ancestors", "ordered",
    "consent",
)  # fmt: skip
_OTHERS: Final = "columns that the plan does not name"


def explain_plan(plan: Plan) -> Explanation:
    """Put everything a plan may ever ask of a site into words.

    Args:
        plan: The plan.

    Returns:
        The explanation; equal for equal plan hashes.

    Raises:
        ConfigError: The plan contradicts itself.
    """
    approved = approved_plan_for(plan, schema=plan_schema(plan), run="")
    method = find_method(plan.method)
    return explain(
        approved.contract,
        method=plan.method,
        plan_hash=plan.digest(),
        keep_days=method.keep_days(plan.config),
        key_holder=key_holder_contract(approved) if needs_key_holder(approved) else None,
        optional=_learns_domains(approved),
        planned=method.planned(approved, 0),
        consent=plan.data.consent,
    )


def _learns_domains(approved: ApprovedPlan) -> set[str]:
    """The tasks that are not asked for when every domain turns out to be declared."""
    return {step.task for step in learning_steps(approved)} if approved.hides_domains else {DESCRIBE.name}


def plan_schema(plan: Plan) -> Schema:
    """The columns that a plan names, and one more that stands for all it does not name.

    Args:
        plan: The plan.

    Returns:
        A schema without a table. Its last column has no declared domain unless the plan lists every column.
    """
    declared = Schema.of(**{key: getattr(plan.data, key) for key in _SCHEMA_KEYS})
    named = {name: spec for name, spec in declared.columns.items() if spec.roles}
    if plan.data.features and plan.data.features != "rest":
        return Schema(columns=named)
    return Schema(columns={**named, _OTHERS: ColumnSpec(roles=frozenset({Role.FEATURE}))})
