"""Everything that a plan of partially-federated learning may ask of a site: the gate's stages, then training."""

from __future__ import annotations

from kohort.crypto.sums.scheme import find_scheme
from kohort.errors import ConfigError, RefusedError, nearest
from kohort.methods.learners import Learners, learner_of
from kohort.methods.partial.config import Gate, config_of, release_claim, require_key, rules_at
from kohort.methods.partial.tasks import COUNT, NEWS, ROW_COUNTS, SHARE, TELL_COUNTS
from kohort.privacy.contract import Contract, Step
from kohort.privacy.guarantee import Guarantee, Raw
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.rounds.dp_accounts import reserve_step, spends
from kohort.rounds.group_secrets import secret_step
from kohort.rounds.totals.summed_tasks import summed_steps
from kohort.rounds.training import training_step

__all__ = ["LEARN", "contract"]

LEARN = Learners("partial", hub_knows_rows=True)


def contract(approved: ApprovedPlan) -> Contract:
    """Before the first round and whenever rows arrive: news, a count, rows. Then weights once per round.

    With `kept = "sum"` sites give a share of a secure sum per round instead of weights; with a learner, its totals.

    Args:
        approved: The approved plan.

    Returns:
        All that the plan may ever ask of a site.

    Raises:
        RefusedError: The plan is one of another method, its key function is not the one installed here, or it has a
            budget for rows of declared persons.
        ConfigError: The plan has rules for a site that takes no part, or a key-holder is to count rows that are
            appended.
    """
    gate, train = config_of(approved).gate, training_step(approved)
    arrival, learns = approved.arrival, learner_of(config_of(approved)) is not None
    stages = [0] if arrival is None else [number for number in train.rounds if arrival.brings_rows(number)]
    news = Step(task=NEWS.name, says=_news_in_words(approved), claims=(ROW_COUNTS,), rounds=stages)
    require_key(gate)
    says = "rows that pass the gate, generalised"
    if gate.released == "raw":
        says = "rows that pass the gate, as they are"
    says += _key_in_words(gate)
    share = Step(
        task=SHARE.name,
        says=says,
        claims=(release_claim(gate, approved.schema), ROW_COUNTS),
        rounds=stages,
        rows=True,
        per_site=_stricter_claims(gate, approved),
    )
    count: list[Step] = []
    if gate.count == "secure":
        count = COUNT.steps(approved, says=_counted_in_words(gate), stages=stages)
    elif gate.count == "global":
        clear = f"{_counted_in_words(gate)}, in clear"
        count = [Step(task=TELL_COUNTS.name, says=clear, claims=(Raw(rows=0),), rounds=stages)]
    if learns:
        return Contract.of([news, *count, share]) + LEARN.contract(approved)
    if config_of(approved).kept == "sum":
        return _summed_contract(approved, [news, *count, share])
    return Contract.of([news, *count, share, train])


def _counted_in_words(gate: Gate) -> str:
    """What is counted; `exact` keys are the quasi-identifiers as they are."""
    return "how often each combination of quasi-identifiers occurs" + _key_in_words(gate)


def _key_in_words(gate: Gate) -> str:
    if gate.key == "exact":
        return ""
    code = f", version {gate.key_version}" if gate.key_version else ""
    return f" (a row counts by its key, {gate.key}{code}: a rule of the gate, and no proof that rows are alike)"


def _news_in_words(approved: ApprovedPlan) -> str:
    """What a site says of rows that arrived.

    Raises:
        ConfigError: Tables are read again, and a key-holder opens the counts.
    """
    arrival, config = approved.arrival, config_of(approved)
    if arrival is None or not arrival.appended:
        return "how many rows arrived"
    if config.gate.count == "secure" and find_scheme(config.secure.sum).key_holder:
        raise ConfigError(
            "a key-holder's book of totals does not know which sites have new rows",
            hint='Set method.secure.sum = "masks" where sites.arrive is "appended/..."',
        )
    return (
        "how many rows your table has now, and how many of them are new. Your site reads its table again at this step, "
        "but for the first, and takes the rows that were appended to its end"
    )


def _stricter_claims(gate: Gate, approved: ApprovedPlan) -> tuple[tuple[str, tuple[Guarantee, ...]], ...]:
    """What sites with rules of their own claim of the rows they release.

    Raises:
        ConfigError: The plan has rules for a site that takes no part.
    """
    for site in gate.per_site if approved.sites else ():
        if site not in approved.sites:
            raise ConfigError(
                f"method.gate.per_site has rules for {site!r}, which is no site of the run",
                hint=nearest(site, approved.sites),
            )
    own = {site: release_claim(rules_at(gate, site), approved.schema) for site in gate.per_site}
    return tuple((site, (claim, ROW_COUNTS)) for site, claim in own.items())


def _summed_contract(approved: ApprovedPlan, opening: list[Step]) -> Contract:
    """The gate, a reservation where there is a budget, and then a share of one sum per round."""
    config = config_of(approved)
    if config.dp is not None and approved.schema.identifiers:
        raise RefusedError(
            "a budget for kept rows counts rows, and the plan says whom rows are about",
            hint="Drop method.dp, or data.identifiers where every row is another person",
        )
    budget = [reserve_step(approved)] if spends(approved.phase(0), config.secure) is not None else []
    secret = [secret_step()] if approved.sums_securely else []
    what = "updates" if config.dp is None else "clipped gradients, with noise,"
    says = f"the sum of all sites' {what} on the rows they kept; what the hub trained decides on the next weights, too"
    return Contract.of(opening, budget, secret, summed_steps(approved, 0, says=says))
