"""kohort: many sites, each with a private table, train one model together.

Every fact that leaves a site is either refused or written down with the guarantee it carries.

    import kohort
    outcome = kohort.Federation(table, target="income", sites=10).run("fedavg", rounds=60)

Names are loaded when they are first used, so that importing kohort costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kohort.anonymity.checker.measures import measure as check
    from kohort.anonymity.relational.anonymise import anonymise as anonymize
    from kohort.anonymity.relational.anonymiser import Anonymiser
    from kohort.api import Comparison, Federation
    from kohort.errors import KohortError
    from kohort.estimator import FederatedClassifier, FederatedRegressor
    from kohort.models.base import Model
    from kohort.models.files import load_model, save_model
    from kohort.privacy.policy import Policy
    from kohort.runs.run import Outcome, run
    from kohort.tables.schema import Schema

__version__: str

__all__ = [
    "Anonymiser",
    "Comparison",
    "FederatedClassifier",
    "FederatedRegressor",
    "Federation",
    "KohortError",
    "Model",
    "Outcome",
    "Policy",
    "Schema",
    "__version__",
    "anonymize",
    "check",
    "load_model",
    "run",
    "save_model",
]

_HOMES = {
    "Anonymiser": "kohort.anonymity.relational.anonymiser",
    "Comparison": "kohort.api",
    "FederatedClassifier": "kohort.estimator",
    "FederatedRegressor": "kohort.estimator",
    "Federation": "kohort.api",
    "KohortError": "kohort.errors",
    "Model": "kohort.models.base",
    "Outcome": "kohort.runs.run",
    "Policy": "kohort.privacy.policy",
    "Schema": "kohort.tables.schema",
    "anonymize": "kohort.anonymity.relational.anonymise",
    "check": "kohort.anonymity.checker.measures",
    "load_model": "kohort.models.files",
    "run": "kohort.runs.run",
    "save_model": "kohort.models.files",
}


_NAMES = {"anonymize": "anonymise", "check": "measure"}
"""What they are called at home."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # which takes longer than all else here

        return version("kohort")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), _NAMES.get(name, name))
    raise AttributeError(f"module 'kohort' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
