"""Which keys of a plan are read: names of groups that methods put their declarations together from.

Keys have dotted names, as in a plan and in `--set`: `train.lr`, `model.kind`. `[policy]`, `[costs]` and the roles of
columns in `[data]` are read by every run, so no declaration lists them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

__all__ = [
    "AGGREGATION",
    "ARRIVALS",
    "AVERAGED",
    "CORRECTION",
    "EARLY_STOPPING",
    "FEDERATED_ROUNDS",
    "LOCAL_TRAINING",
    "NETWORK",
    "ROUNDS",
    "SELECTION",
    "START",
    "Reads",
    "unread_by_optimizers",
]

ROUNDS = frozenset({"train.rounds", "train.average"})
LOCAL_TRAINING = frozenset(
    {
        "train.local_epochs",
        "train.batch",
        "train.optimizer",
        "train.lr",
        "train.momentum",
        "train.l2",
        "train.class_weights",
        "train.state",
    }
)
CORRECTION = frozenset({"train.correction"})
SELECTION = frozenset({"train.fraction", "train.select"})
AGGREGATION = frozenset({"train.aggregate", "train.hub", "train.reject"})
EARLY_STOPPING = frozenset({"train.stop"})
FEDERATED_ROUNDS = ROUNDS | LOCAL_TRAINING | CORRECTION | SELECTION | AGGREGATION | EARLY_STOPPING
"""Everything the shared loop of rounds reads, which is all of `[train]`."""
START = frozenset({"model.init"})
"""Starting weights."""
NETWORK = START | {"model.kind", "model.hidden", "model.activation", "model.dtype", "model.loss"}
"""All of `[model]`; of these, a model kind reads its own."""
AVERAGED = {"train.average": "dp.average says which rounds are averaged"}
"""Why nothing reads `train.average` where every budget says it."""
ARRIVALS = frozenset({"sites.arrive"})
"""For methods that go on with rows that arrive between rounds."""


@dataclass(frozen=True)
class Reads:
    """What a method reads of `[train]`, `[model]` and `[sites]` under one config.

    Of `[method]` it reads everything but `unread`, and but how many sites may collude in sums that are in clear. A
    method that shares a secret among sites there, too, lists that key.

    Example:
        >>> Reads(ROUNDS | LOCAL_TRAINING | NETWORK, when="with method.secure").keys >= {"train.lr"}
        True
    """

    keys: frozenset[str]
    when: str = ""
    """What of the config this holds for, in the words of an error: "with method.secure"."""
    because: Mapping[str, str] = field(default_factory=dict)
    """Why a key is not read, by its name, for the same error; keys without an entry need no reason."""
    model_kind: str = ""
    """The one kind of model the method fits, if it leaves no choice: `model.kind` may say so, and nothing else."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Keys of `[method]` that are not read under this config, by dotted name, and why: "method.gate.t"."""


def unread_by_optimizers(names: Iterable[str], *, at_sites: Collection[str] | None = None) -> Mapping[str, str]:
    """Keys of `[train]` that none of some optimizers reads, and why.

    Args:
        names: The optimizers of all phases.
        at_sites: Those of the phases in which sites take the steps; by default all.

    Returns:
        Why, in the words of an error, by dotted name.
    """
    found, unread = set(names), {}
    if "momentum" not in found:
        unread["train.momentum"] = 'train.optimizer is not "momentum"'
    stateful = found if at_sites is None else set(at_sites)
    if not stateful:
        unread["train.state"] = "the hub takes the steps, on sums, and no site has a state to keep"
    elif stateful <= {"sgd"}:
        unread["train.state"] = "sgd has no state to keep"
    return unread
