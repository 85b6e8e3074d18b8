"""The profile of a real site's table, released through its door, so that sites can be compared before there is a plan.

Guarantee: the file holds what `kohort.tables.harmonise.profiles` says, with the site's own minimum cell count, and
nothing of identifiers, suspected ones among them, and of dropped columns. It leaves only if the site's policy lets
domains out, and its ledger lists it before the bytes are handed over.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from secrets import token_hex
from typing import Final

import polars as pl

from kohort.errors import RefusedError
from kohort.privacy.contract import Step
from kohort.privacy.door import door
from kohort.privacy.guarantee import DomainClaim
from kohort.privacy.ledger.ledger import Chain, LedgerContext
from kohort.privacy.policy import Policy
from kohort.tables.harmonise.profiles import profile_table
from kohort.tables.roles import suspected
from kohort.tables.schema import Schema
from kohort.transport.site_ledger import SiteLedger

__all__ = ["PROFILE", "release_profile"]

PROFILE: Final = "harmonise.profile"
"""What the ledger, limits and policies call it."""


@dataclass
class _AtDoor:
    """What the door reads of a site."""

    name: str
    policy: Policy
    chain: Chain
    count: int


def release_profile(
    frame: pl.DataFrame, *, site: str, declared: Schema, policy: Policy, ledger: SiteLedger, secret: bytes
) -> bytes:
    """Make the profile of a site's table and pass it through the door.

    Args:
        frame: The table, with the site's mapping applied.
        site: The site's name.
        declared: The roles that `site.toml` declares, for whatever names the columns have at home.
        policy: The site's policy.
        ledger: The site's ledger.
        secret: The key of its chain.

    Returns:
        The profile as JSON. Its ledger line is written.

    Raises:
        RefusedError: The policy does not let it out; the refusal is in the ledger.
    """
    person = next((name for name in declared.identifiers if name in frame.columns), None)
    hidden = {*declared.identifiers, *declared.dropped, *suspected(frame, declared=declared.columns)}
    columns = [name for name in frame.columns if name not in hidden]
    profile = profile_table(frame, site=site, least=policy.min_cell, columns=columns, person=person)
    payload = (json.dumps(profile.to_plain(), indent=1, ensure_ascii=False) + "\n").encode()
    binding = {
        "schema": declared.fingerprint(),
        "policy": policy.to_mapping(),
        "rows_public": "rows" in policy.public,
    }
    chain = ledger.open_chain(site, secret=secret, binding=binding)
    claim = DomainClaim(columns=tuple(columns))
    refusals = door(
        [_AtDoor(site, policy, chain, frame.height)],
        [payload],
        ledger=ledger,
        ledger_context=LedgerContext(what=PROFILE, request=token_hex(16)),  # nobody's request but the operator's
        guarantees=[claim],
        rows=[frame.height],
        step=Step(task=PROFILE, says="types, frequent values and ranges of your columns", claims=(claim,)),
    )
    if refusals[0] is not None:
        raise RefusedError(f"the profile may not leave: {refusals[0].reason}", hint="See [policy] in site.toml")
    return payload
