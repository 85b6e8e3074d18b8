"""What a hub can say about rows that real sites left out: totals of a secure count, or that there are none.

Guarantee: nothing here was told by a single site, and a total of fewer persons than the minimum cell is a text.
"""

from __future__ import annotations

from kohort.protocol.hub import Hub
from kohort.runs.left_out import LeftOut, rows_of_sites
from kohort.runs.simulation import Population

__all__ = ["left_out_at_sites", "uncounted_notes"]


def left_out_at_sites(hub: Hub, population: Population) -> list[LeftOut]:
    """The rows that real sites left out, by reason.

    Args:
        hub: The hub, with what a secure count told.
        population: The rows of a simulation, which counts them itself; without rows in a deployment.

    Returns:
        Totals over all sites; "<10" for those that fewer than the minimum of persons are behind, perhaps none.
    """
    if population.frame.height or not hub.unused:
        return []
    schema, least = hub.encoder.schema, hub.approved.min_cell
    found = rows_of_sites(hub.unused, schema.target, drops=hub.approved.missing == "drop", min_cell=least)
    target = None if schema.target is None else hub.encoder.domain.columns[schema.target]
    if target is not None and target.counted and hub.encoder.classes is not None:
        why = f"a class of {schema.target} that fewer than {least} persons share"
        found.append(LeftOut(what="rows", why=why, count=f"<{least}"))
    return found


def uncounted_notes(hub: Hub, population: Population) -> list[str]:
    """Says that rows which real sites left out are not counted, where that is so.

    Args:
        hub: The hub.
        population: The rows of a simulation.

    Returns:
        One sentence, or none.
    """
    if population.frame.height or hub.unused or hub.approved.has_budget:
        return []
    how = "kohort harmonise PLAN.toml --hub HUB counts them" if hub.approved.sums_securely else "no sum is secure"
    return [f"rows that sites left out are counted in their own logs alone, because nothing is counted here: {how}"]
