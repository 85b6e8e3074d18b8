"""`[method]` of partially-federated learning: which rows are sent, how they are counted, in which form they go out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from kohort.anonymity.gate.gate import GateRule, count_unit, find_rule
from kohort.anonymity.gate.keys import key_version
from kohort.errors import ConfigError, RefusedError
from kohort.methods.learners import LearnerKeys
from kohort.methods.partial.release import sensitive_of
from kohort.privacy.guarantee import Guarantee, KAnonymous, Raw
from kohort.privacy.policy import Policy
from kohort.protocol.plan.approved import ApprovedPlan, ModelSection, TrainSection
from kohort.protocol.plan.phases import DPSection, SecureSumSection
from kohort.tables.schema import Schema

__all__ = [
    "Gate",
    "Partial",
    "SiteRules",
    "claim_at",
    "config_of",
    "count_cap",
    "person_column",
    "raised",
    "release_claim",
    "require_key",
    "rules_at",
    "threshold_of",
    "unread_keys",
    "with_key_version",
]


@dataclass(frozen=True, kw_only=True)
class SiteRules:
    """`[method.gate.per_site.NAME]`: where one site is stricter than the plan; what it leaves out is as in the plan."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    k: Annotated[int, Ge(1)] | None = None
    l: Annotated[int, Ge(1)] | None = None  # noqa: E741 - the literature's own letter
    t: Annotated[float, Gt(0), Le(1)] | None = None
    release_k: Annotated[int, Ge(2)] | None = None
    release_l: Annotated[int, Ge(1)] | None = None

    def given(self) -> dict[str, Any]:
        """The keys that are set."""
        return {item.name: value for item in fields(self) if (value := getattr(self, item.name)) is not None}


@dataclass(frozen=True, kw_only=True)
class Gate:
    """`[method.gate]`: which rows are sent to the hub, how they are counted, and in which form they are sent."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    rule: str = "k-anonymity"
    k: Annotated[int, Ge(1)] = 100
    """Fewest rows per key. Not used by paper-l, which has l instead."""
    l: Annotated[int, Ge(1)] | None = None  # noqa: E741 - the literature's own letter
    t: Annotated[float, Gt(0), Le(1)] | None = None
    strict: bool = False
    """Demand more than k, as the paper's text says, instead of at least k."""
    overlap: Annotated[int, Ge(1)] = 1
    """At how many sites one person may occur: a count across sites then demands this many times k."""
    key: str = "exact"
    """When two rows are the same to the gate: exact, bins:..., mask:..., similarity:..., the name of an installed key
    function, or function:package.module:NAME."""
    key_version: str = ""
    """Which code of a key function from elsewhere is meant: a digest, filled in where the plan is made. Sites that have
    other code refuse the plan."""
    count: Literal["secure", "local", "global"] = "secure"
    """secure: over all sites in a secure sum | local: over the site's own rows | global: over all sites in clear
    (simulation only)"""
    released: Literal["generalised", "raw"] = "generalised"
    release_k: Annotated[int, Ge(2)] = 10
    release_l: Annotated[int, Ge(1)] = 2
    keep_days: Annotated[int, Ge(1)] = 365
    """Days the hub may keep the rows it receives. Sites approve it with the plan."""
    per_site: Mapping[str, SiteRules] = field(default_factory=dict)
    """Sites with stricter rules than the plan's, by name."""

    def __post_init__(self) -> None:
        rule = find_rule(self.rule)
        missing = [f"method.gate.{name}" for name in rule.needs if getattr(self, name) is None]
        if missing:
            raise ConfigError(f"the rule {rule.name!r} needs {missing[0]}", hint="Set it")
        for site, own in self.per_site.items():
            for key, value in own.given().items():
                _require_stricter(self, f"method.gate.per_site.{site}", key, value)


@dataclass(frozen=True, kw_only=True)
class Partial(LearnerKeys):
    """`[method]` of partially-federated learning."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    gate: Gate = field(default_factory=Gate)
    secure: SecureSumSection = field(default_factory=SecureSumSection)
    """How the counts are summed, and the totals of a learner; by masks unless it says otherwise."""
    kept: Literal["weights", "sum"] = "weights"
    """What a site with kept rows gives in every round: its own weights, or a share of a secure sum of updates, so that
    sites with few kept rows take part, too."""
    dp: DPSection | None = None
    """A budget for the kept rows, with `kept = "sum"`: noise in shares, on the sum of clipped gradients."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "secure", self.secure.or_scheme("masks"))
        _check_budget(self)
        for name, keys in (("additive", self.additive), ("trees", self.trees)):
            if keys is not None and keys.secure not in (SecureSumSection(sum="masks"), self.secure):
                raise ConfigError(f"method.{name}.secure is not read", hint="Write method.secure, which holds for all")
            if keys is not None:
                object.__setattr__(self, name, replace(keys, secure=self.secure))


def _check_budget(config: Partial) -> None:
    """Refuse a budget that would not hold for the kept rows.

    A kept row that is removed must change nothing for other rows. Its key was too rare at its own site, and stays so.
    But in a count over all sites it helps rows elsewhere, and under rules about sensitive values its own class.
    """
    if config.dp is None:
        return
    if config.kept != "sum":
        raise ConfigError("method.dp is for kept rows in a sum", hint='Set method.kept = "sum", or drop method.dp')
    config.dp.refuse_sample(config.secure)
    if config.dp.mechanism != "dp-sgd":
        raise ConfigError("noise goes on the sum of clipped gradients", hint="Drop method.dp.mechanism")
    gate = config.gate
    least_values = max(rules.release_l for rules in _all_rules(gate))
    if (gate.rule, gate.count, least_values) != ("k-anonymity", "local", 1):
        raise ConfigError(
            "the budget would not hold: one kept row would decide whether others are kept",
            hint='Set method.gate.rule = "k-anonymity", count = "local" and release_l = 1',
        )
    if gate.key_version:
        raise ConfigError(
            f"the budget would not hold: the key function {gate.key!r} is not kohort's own, and may look at other rows",
            hint="Choose a key of kohort's own, or drop method.dp",
        )


def with_key_version(
    config: Partial, train: TrainSection, model: ModelSection, given: frozenset[str]
) -> tuple[Partial, TrainSection]:
    """`[method]` with the version of a key function that is not kohort's own, where the plan leaves it open.

    Args:
        config: `[method]` as it was given.
        train: `[train]`, which stays as it is.
        model: `[model]`; not read.
        given: The keys that the plan gives.

    Returns:
        The config, and `[train]`.

    Raises:
        ConfigError: The key function is not installed here.
    """
    del model
    if "method.gate.key_version" in given or config.gate.key_version:
        return config, train
    return replace(config, gate=replace(config.gate, key_version=key_version(config.gate.key))), train


def require_key(gate: Gate) -> None:
    """Refuse a plan whose key function is made by other code than is installed here.

    Args:
        gate: `[method.gate]` of the plan.

    Raises:
        RefusedError: It is, or nothing of its name is installed.
    """
    try:
        installed = key_version(gate.key)
    except ConfigError as error:
        raise RefusedError(error.message, hint=error.hint, code="version") from error
    if installed != gate.key_version:
        raise RefusedError(
            f"the key function {gate.key!r} that is installed here is not the one that the plan was made with",
            hint=f"Install the same version everywhere. Here method.gate.key_version is {installed!r}",
            code="version",
        )


def config_of(approved: ApprovedPlan) -> Partial:
    """The method's part of an approved plan.

    Args:
        approved: The approved plan.

    Returns:
        Its `[method]`.

    Raises:
        RefusedError: The plan is one of another method.
    """
    config = approved.config
    if not isinstance(config, Partial):
        raise RefusedError("the approved plan is not a partial federation")
    return config


def _require_stricter(gate: Gate, place: str, key: str, value: float) -> None:
    """Refuse a site's own rule that is looser than the plan's, or that nothing reads.

    Raises:
        ConfigError: It is.
    """
    unread = key == "k" and count_unit(gate.rule) == "key+sensitive"
    unread |= key.startswith("release_") and gate.released == "raw"
    plans = getattr(gate, key)
    if unread or plans is None:
        raise ConfigError(f"{place}.{key} is not read: the plan's own gate has no {key}", hint="Drop it")
    if value > plans if key == "t" else value < plans:
        raise ConfigError(
            f"{place}.{key} = {value} is looser than the plan's {plans}",
            hint=f"A site can only be stricter. Change method.gate.{key} for all sites, or drop it",
        )


def rules_at(gate: Gate, site: str) -> Gate:
    """The gate as the plan has it for one site.

    Args:
        gate: `[method.gate]`.
        site: The site's name.

    Returns:
        The gate with that site's own rules in place of the plan's.
    """
    own = gate.per_site.get(site)
    return gate if own is None else replace(gate, per_site={}, **own.given())


def _all_rules(gate: Gate) -> list[Gate]:
    return [gate, *(rules_at(gate, site) for site in gate.per_site)]


def unread_keys(config: Partial) -> dict[str, str]:
    """Keys of `[method]` that are not read under this config, and why.

    Args:
        config: `[method]`.

    Returns:
        The reason for each, by its dotted name.
    """
    gate, rule = config.gate, find_rule(config.gate.rule)
    taken = (*rule.needs, *rule.takes)
    found = {f"method.gate.{key}": _taken_by(rule) for key in ("k", "l", "t") if key not in taken}
    if gate.count == "local":
        found["method.gate.overlap"] = "counts are of the site's own rows"
    return found


def _taken_by(rule: GateRule) -> str:
    return f"the rule {rule.name!r} takes {' and '.join((*rule.needs, *rule.takes))}"


def threshold_of(gate: Gate) -> int:
    """What the count of a key must reach: k or, for the paper's second algorithm, l; plus 1 if strict.

    A count across sites must reach it as many times as one person may occur at several sites (`overlap`).

    Args:
        gate: The rules, of the plan or of one site.

    Returns:
        The least count of a key whose rows may be sent.
    """
    least = gate.l if count_unit(gate.rule) == "key+sensitive" and gate.l is not None else gate.k
    return (least + gate.strict) * (1 if gate.count == "local" else gate.overlap)


def count_cap(gate: Gate) -> int:
    """The threshold of the strictest site. No site says more of a key than that its own count reaches it.

    Totals of counts that are cut off there are exact for the thresholds of all sites.

    Args:
        gate: `[method.gate]`, with the rules of single sites.

    Returns:
        The largest count of a key that a site reports.
    """
    return max(threshold_of(rules) for rules in _all_rules(gate))


def release_claim(gate: Gate, schema: Schema | None = None, *, rows: int = 0) -> KAnonymous | Raw:
    """What rows that pass a gate are released under.

    Args:
        gate: The rules, of the plan or of one site.
        schema: The columns, which say whom a row is about, and what is sensitive; None where they are not known yet.
        rows: How many rows.

    Returns:
        The claim: what the classes of a batch hold, of which units and over which sensitive columns, or raw rows; and
        how often every released key was counted.
    """
    if gate.released == "raw":
        return Raw(rows=rows, counted_by="" if gate.count == "local" else "other sites", gate_k=threshold_of(gate))
    claim = KAnonymous(k=gate.release_k, l=gate.release_l, rows=rows, verified=True, gate_k=threshold_of(gate))
    if schema is None:
        return claim
    unit = "row" if person_column(schema) is None else "person"
    return replace(claim, unit=unit, sensitive=sensitive_of(schema) if gate.release_l > 1 else ())


def claim_at(config: Partial, site: str, policy: Policy, claim: Guarantee) -> Guarantee:
    """A planned claim as one site keeps it: by the plan's rules for that site, and by its own policy.

    Args:
        config: `[method]`.
        site: The site's name.
        policy: Its policy, whose `min_k` and `min_l` raise the k and l of released classes. Under a budget l is not
            raised, because a kept row would then decide on others: the policy refuses the plan instead.
        claim: What the plan claims.

    Returns:
        The claim, equal or stronger.
    """
    rules = raised(config, rules_at(config.gate, site), policy)
    if isinstance(claim, KAnonymous):
        return replace(claim, k=rules.release_k, l=rules.release_l, gate_k=threshold_of(rules))
    if isinstance(claim, Raw) and claim.gate_k is not None:
        return replace(claim, gate_k=threshold_of(rules))
    return claim


def raised(config: Partial, rules: Gate, policy: Policy) -> Gate:
    """A site's rules, with what its policy demands of released classes.

    Args:
        config: `[method]`. Under a budget l is not raised, because a kept row would then decide on others.
        rules: The rules of that site (`rules_at`).
        policy: Its policy, whose `min_k` and `min_l` raise `release_k` and `release_l`, and never lower them.

    Returns:
        The rules that the site applies.
    """
    least_values = rules.release_l if config.dp is not None else max(rules.release_l, policy.min_l)
    return replace(rules, per_site={}, release_k=max(rules.release_k, policy.min_k), release_l=least_values)


def person_column(schema: Schema) -> str | None:
    """The column that says whom a row is about.

    Args:
        schema: The roles of the columns.

    Returns:
        The first identifier; None where every row is its own person.
    """
    return schema.identifiers[0] if schema.identifiers else None
