"""Methods are discovered: every module of this package, and every entry point of the group `kohort.methods`.

A method is one file: its config, its tasks, its protocol, its claims, what it reads of a plan, its citation.
Registering it here gives it the command line, the plan's schema, the report and the contract tests.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from kohort.errors import ConfigError, nearest
from kohort.privacy.contract import Contract
from kohort.privacy.guarantee import Guarantee
from kohort.protocol.hub import Ask, Hub, ProtocolGenerator
from kohort.protocol.plan.approved import ApprovedPlan, TrainSection
from kohort.protocol.plan.phases import JudgeSection, SecureSumSection, TrainingPhase
from kohort.protocol.plan.reads import FEDERATED_ROUNDS, NETWORK, Reads
from kohort.registry import discover, find_namesake
from kohort.tables.encoder import Encoder

__all__ = ["GROUP", "Method", "find_method", "methods"]

GROUP = "kohort.methods"


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way to train a model over many sites."""

    name: str
    summary: str
    """One line for people: what it does."""
    config: type[Any]
    """A frozen, keyword-only dataclass: the keys of `[method]` besides `name`."""
    protocol: Callable[[Any, Hub], ProtocolGenerator]
    claims: Callable[[Any, int], Sequence[Guarantee]]
    """What a site with so many rows will be asked to release; judged by its policy before anything leaves."""
    contract: Callable[[ApprovedPlan], Contract]
    """Everything it may ever ask of a site under an approved plan, besides the enrolment."""
    cites: str
    own_rows: bool = False
    """Whether a task of its own makes the rows sites train on; until it ran, a site has none to train on."""
    reads: Callable[[Any], Reads] = lambda _: Reads(FEDERATED_ROUNDS | NETWORK)
    """Which keys of `[train]` and `[model]` it reads under a config, and whether it reads `sites.arrive`. A plan that
    gives another one is refused. Unless a method says otherwise, it reads what the shared loop of rounds reads."""
    never_reads: frozenset[str] = frozenset()
    """Keys that its config shares with other methods and that it does not read, as in `method.secure.colluders`. They
    are refused, and no part of the plan's hash."""
    phases: Callable[[Any, TrainSection], tuple[TrainingPhase, ...]] = lambda *_: ()
    """What sites train, phase by phase; for methods with the tasks of `kohort.rounds.phase_training`."""
    secure: Callable[[Any], SecureSumSection | None] = lambda _: None
    """How sums are protected, for methods that have any."""
    judge: Callable[[Any], JudgeSection | None] = lambda _: None
    """How held-out rows judge the model, for methods that ask them."""
    clusters: Callable[[Any], Mapping[str, tuple[str, ...]] | None] = lambda _: None
    """The clusters of sites the config itself names, if it does."""
    opening: Callable[[ApprovedPlan, Encoder, tuple[str, ...]], Ask | None] = lambda *_: None
    """What sites are asked along with their enrolment, to save a message; the plan finds the answers in `Hub.opened`.
    Nothing computed from a row may be asked for here: the hub has judged nothing yet."""
    example: str = ""
    """TOML lines of `[method]`, and after them of `[sites]`, that the demo and the contract tests run it with."""
    demo: str | None = None
    """The same for the demo alone, where the example is too small to show what the method can do."""

    def example_keys(self) -> dict[str, Any]:
        """The sections of a plan its `example` fills: `method`, with its name, and perhaps `sites`."""
        return self._keys(self.example)

    def demo_keys(self) -> dict[str, Any]:
        """The sections of a plan that the demo runs it with."""
        return self._keys(self.example if self.demo is None else self.demo)

    def _keys(self, lines: str) -> dict[str, Any]:
        return tomllib.loads(f"[method]\nname = {json.dumps(self.name)}\n{lines}")


@cache
def methods() -> dict[str, Method]:
    """Every registered method by name."""
    return discover("kohort.methods", attribute="METHOD", kind=Method, group=GROUP)


@cache
def find_method(name: str) -> Method:
    """The method a plan names; the others are not even imported, unless it is none of ours.

    Args:
        name: `method.name` of a plan.

    Returns:
        The registered method.

    Raises:
        ConfigError: No method has this name; the message names the nearest one.
    """
    found = find_namesake("kohort.methods", name, attribute="METHOD", kind=Method, group=GROUP)
    if found is not None:
        return found
    known = methods()
    if name not in known:
        raise ConfigError(f"unknown method {name!r}", hint=nearest(name, known))
    return known[name]
