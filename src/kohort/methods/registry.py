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
from typing import TYPE_CHECKING, Any

from kohort.errors import ConfigError, nearest
from kohort.methods.strengths import Strength
from kohort.privacy.contract import Contract
from kohort.privacy.guarantee import Guarantee, Pairs
from kohort.privacy.policy import Policy
from kohort.protocol.hub import Ask, Hub, ProtocolGenerator
from kohort.protocol.plan.approved import ApprovedPlan, TrainSection
from kohort.protocol.plan.phases import JudgeSection, SecureSumSection, TrainingPhase
from kohort.protocol.plan.reads import Reads
from kohort.protocol.plan.sections import LEARNED_KINDS, ModelSection
from kohort.registry import discover, find_namesake
from kohort.tables.encoder import Encoder

if TYPE_CHECKING:
    from kohort.rounds.totals.checked_training import CheckedTraining

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
    reads: Callable[[Any], Reads] = lambda _: Reads(frozenset())
    """Which keys of `[train]` and `[model]` it reads under a config, and whether it reads `sites.arrive`. A plan that
    gives another one is refused. Unless a method says otherwise, it reads none of them; one that is built on the shared
    loop of rounds says `Reads(FEDERATED_ROUNDS | NETWORK)`."""
    fill: Callable[[Any, TrainSection, ModelSection, frozenset[str]], tuple[Any, TrainSection]] = (
        lambda config, train, *_: (
            config,
            train,
        )
    )
    """What config and `[train]` become where a plan leaves keys open: it gets both, `[model]` and the dotted names of
    the keys that are given. A plan that spells everything out stays as it is."""
    never_reads: frozenset[str] = frozenset()
    """Keys that its config shares with other methods and that it does not read, as in `method.secure.colluders`. They
    are refused, and no part of the plan's hash."""
    phases: Callable[[Any, TrainSection], tuple[TrainingPhase, ...]] = lambda *_: ()
    """What sites train, phase by phase; for methods with the tasks of `kohort.rounds.phase_training`."""
    secure: Callable[[Any], SecureSumSection | None] = lambda _: None
    """How sums are protected, for methods that have any."""
    judge: Callable[[Any], JudgeSection | None] = lambda _: None
    """How held-out rows judge the model, for methods that ask them."""
    claim_at: Callable[[Any, str, Policy, Guarantee], Guarantee] = lambda _config, _site, _policy, claim: claim
    """A claim as one site keeps it, by the plan's rules for that site and its own policy: equal or stronger."""
    clusters: Callable[[Any], Mapping[str, tuple[str, ...]] | None] = lambda _: None
    """The clusters of sites the config itself names, if it does."""
    needs: Callable[[Any], frozenset[str]] = lambda _: frozenset()
    """Keys of `[data]` and `[sites]` that a simulation cannot do without under a config, as in "data.quasi"; of keys
    joined by "or" one suffices."""
    refuses_consent: Callable[[Any], str | None] = lambda _: None
    """Why a plan under this config cannot respect consent per row (`data.consent`); None where it can."""
    least_pair: Callable[[ApprovedPlan], int | None] = lambda _: None
    """The fewest persons of a pair of categories whose count opens as it is; smaller ones are rounded. 1 where all
    open, which a policy must name; None where no total counts pairs."""
    opening: Callable[[ApprovedPlan, Encoder, tuple[str, ...]], Ask | None] = lambda *_: None
    """What sites are asked along with their enrolment, to save a message; the plan finds the answers in `Hub.opened`.
    Nothing computed from a row may be asked for here: the hub has judged nothing yet."""
    with_model: Callable[[Any, ModelSection], Any] | None = None
    """The config under a plan's `[model]`, for methods that leave the choice between networks and other learners."""
    example: str = ""
    """TOML lines of `[method]`, and after them of `[sites]`, that the demo and the contract tests run it with."""
    totals: Callable[[Any], CheckedTraining | None] = lambda _: None
    """The training over totals of a config; None where it trains or solves in another way. `kohort audit` makes shadow
    models with it."""
    strengths: tuple[Strength, ...] = ()
    """Settings from its least protection to its most, for `kohort compare --strengths`; none: it is not compared so."""
    keep_days: Callable[[Any], int | None] = lambda _: None
    """How many days the hub may keep rows that it receives; None where a config says nothing about it."""
    gain: Callable[[Any], bool] = lambda _: False
    """Whether a simulation also says how much of what anonymised columns tell is left, by two runs to compare with."""
    demo: str | None = None
    """The same for the demo alone, where the example is too small to show what the method can do."""

    def require_consent(self, config: Any, column: str | None) -> None:
        """Refuse a plan that names a column with consent per row where the method sends something of all rows.

        Args:
            config: `[method]` as it was read.
            column: `data.consent`.

        Raises:
            ConfigError: The method cannot respect it.
        """
        reason = None if column is None else self.refuses_consent(config)
        if reason is not None:
            hint = "Choose another method, or take rows without consent to share out of the tables, and drop the key"
            raise ConfigError(f"method {self.name!r} does not respect data.consent: {reason}", hint=hint)

    def planned(
        self, approved: ApprovedPlan, rows: int, *, site: str = "", policy: Policy | None = None
    ) -> Sequence[Guarantee]:
        """Everything that a site's policy judges before anything leaves.

        Args:
            approved: The approved plan.
            rows: How many rows the site has.
            site: The site's name; empty: what is claimed at any site.
            policy: Its policy, which may raise what the method claims.

        Returns:
            The method's claims, and from how many persons on pairs of categories open, where they are counted.
        """
        least = self.least_pair(approved)
        made = self.claims(approved.config, rows)
        if policy is not None:
            made = [self.claim_at(approved.config, site, policy, claim) for claim in made]
        return (*made, *([] if least is None else [Pairs(least=least)]))

    def for_model(self, config: Any, model: ModelSection) -> Any:
        """The config under a plan's `[model]`.

        Args:
            config: `[method]` as it was given.
            model: `[model]`.

        Returns:
            The config.

        Raises:
            ConfigError: The method learns no model of this kind.
        """
        if self.with_model is not None:
            return self.with_model(config, model)
        if model.kind in LEARNED_KINDS and self.reads(config).model_kind != model.kind:
            raise ConfigError(
                f"method {self.name!r} does not learn a model of kind {model.kind!r}",
                hint=f'Set method.name = "{model.kind}", or silo, partial or syntactic for anonymised rows',
            )
        return config

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
