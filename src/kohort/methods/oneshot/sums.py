"""The sites' part of a one-shot fit: statistics of their rows as integers of the agreed grid, for a secure sum.

What a site sums is determined by the plan that its operator approved. Under differential privacy a site clips its rows
and adds its share of the noise before rounding. The total has the planned noise if at least `quorum` sites answer and
at most `colluders` of them disclose their shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from kohort.crypto.sums.checked import CHECKS, from_residues, proven_total, to_residues, with_check
from kohort.crypto.sums.modular import P61
from kohort.crypto.sums.scheme import Integers, SumContext, find_scheme
from kohort.errors import ConfigError, IntegrityError, RefusedError, SiteError
from kohort.methods.oneshot.cells import cells_at, folds_at, needs_cells, rows_at
from kohort.methods.oneshot.design import BITS, InputCells, Layout, OneShotSection, section_of
from kohort.methods.oneshot.newton import newton_length, newton_statistics
from kohort.methods.oneshot.newton_path import NewtonPath, curvature_of
from kohort.models.closed_form.design import Floats
from kohort.models.closed_form.statistics import statistics_of_sites
from kohort.models.rows import Rows, stack
from kohort.protocol.hub import Ask
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.plan.phases import DPSection
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.task import Request
from kohort.rounds.dp_accounts import Shares, account_of, answer_once, shares_of
from kohort.rounds.group_secrets import secret_of
from kohort.rounds.summing import SumTask, set_up_request, sum_task
from kohort.tables.encoder import Encoder

__all__ = [
    "CHECKED_STATISTICS",
    "NEWTON",
    "STATISTICS",
    "begin_session",
    "checks_of",
    "deviation_of",
    "dp_of",
    "is_checked",
    "layout_at",
    "layout_of",
    "rows_taking_part",
    "scheme_of",
    "statistics_at",
    "statistics_task",
]


def scheme_of(approved: ApprovedPlan) -> str:
    """How the approved plan protects its sums.

    Args:
        approved: The approved plan.

    Returns:
        The name of the scheme; "none" where the hub sees each site's own statistics.
    """
    return approved.sum_scheme()


def dp_of(approved: ApprovedPlan) -> DPSection | None:
    """The budget of the approved plan.

    Args:
        approved: The approved plan.

    Returns:
        The budget, or None without one.
    """
    return approved.phase(0).dp


def layout_of(approved: ApprovedPlan, encoder: Encoder, cells: InputCells) -> Layout:
    """The layout of the sums for these columns; rows are clipped if there is a budget.

    Args:
        approved: The approved plan.
        encoder: The encoder that all sites share.
        cells: Which features are inputs.

    Returns:
        The layout, the same at the hub and at every site.

    Raises:
        RefusedError: The plan is one of another method.
    """
    dp = dp_of(approved)
    return Layout.of(section_of(approved), encoder, cells, clip=None if dp is None else dp.clip)


def deviation_of(layout: Layout, sigma: float, shares: Shares) -> float:
    """Standard deviation of the noise that one site adds, so that the shares of the least number of sites have all of
    it.

    Args:
        layout: What is summed, with a clip if `sigma` is above 0.
        sigma: The noise multiplier of the whole sum, in units of its sensitivity; 0 without a budget.
        shares: Over how many sites the noise is spread.

    Returns:
        The deviation in each number of the site's vector; 0 without a budget.
    """
    return sigma * layout.sensitivity / sqrt(shares.needed) if sigma else 0.0


def rows_taking_part(site: Site) -> Rows:
    """The site's rows without those of rare categories; one row per person if the budget protects persons.

    Args:
        site: The site, which has enrolled and knows the rare categories.

    Returns:
        The rows that are summed.

    Raises:
        ConfigError: The budget protects persons and no identifier is declared.
        RefusedError: Rare categories have not been counted yet, or a class has too few persons.
    """
    every, chosen = rows_at(site), _chosen_rows(site)
    return every if chosen is None else every.take(chosen)


def _parts_of_rows(site: Site) -> list[Rows]:
    """The rows taking part, in the folds that are opened: the folds that categories were counted in."""
    folds = section_of(site.plan).deals
    if folds == 1:
        return [rows_taking_part(site)]
    every, chosen, dealt = rows_at(site), _chosen_rows(site), folds_at(site, folds)
    here = np.ones(every.count, dtype=bool) if chosen is None else chosen
    return [every.take(here & (dealt == fold)) for fold in range(folds)]


def _chosen_rows(site: Site) -> NDArray[np.bool_] | None:
    """Which of the site's rows take part; None for all."""
    _, chosen = cells_at(site)
    dp = dp_of(site.plan)
    if dp is not None and dp.unit == "person":
        identifiers = site.schema.identifiers
        if not identifiers:
            raise ConfigError('unit = "person" needs a column that tells persons apart', hint="Name data.identifiers")
        first = site.table.rows()[identifiers[0]].is_first_distinct().to_numpy()
        chosen = first if chosen is None else chosen & first
    return chosen


@dataclass
class StatisticsState(TaskState):
    """What a site keeps of the statistics it sends."""

    layout: Layout | None = None
    """What the approved plan makes of the site's columns."""
    own: tuple[Integers, int] | None = None
    """Its own statistics and the rows behind them, when its peers add them up."""


def layout_at(site: Site) -> Layout:
    """The layout of the sums at this site, by the approved plan.

    Args:
        site: The site, which has enrolled and knows the rare categories.

    Returns:
        The layout; made once, then the same object.

    Raises:
        RefusedError: Rare categories have not been counted yet, or a class has too few persons.
    """
    state = site.state(StatisticsState)
    if state.layout is None:
        cells, _ = cells_at(site)
        state.layout = layout_of(site.plan, site.encoder, cells)
    return state.layout


def _refuse_few(site: Site, members: Sequence[str], section: OneShotSection, rows: int) -> None:
    """Take no part in a sum over too few sites, or with too few rows where no sum hides them."""
    if scheme_of(site.plan) == "none":
        if rows < section.min_rows:
            raise RefusedError(
                f"site {site.name!r} has {rows} rows, fewer than {section.min_rows}, and sits out: nothing hides them",
                hint="Use a secure sum, or lower method.oneshot.min_rows",
            )
    elif len(members) < section.min_sites:
        raise RefusedError(f"a sum over {len(members)} sites is below the plan's {section.min_sites}")


def _statistics(site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]) -> tuple[Integers, int]:
    del inputs  # what is summed is in the approved plan
    if section_of(site.plan).statistics_to != "hub":
        raise RefusedError("the approved plan sends statistics to peers, and none to the hub")
    if context.length != layout_at(site).length:
        raise SiteError("statistics were asked for that are not in the approved plan")
    return statistics_at(site, request, context.sites)


def statistics_at(site: Site, request: Request, members: Sequence[str]) -> tuple[Integers, int]:
    """The site's statistics as integers of the grid for a sum over `members`.

    Args:
        site: The site.
        request: What it replies to; under a budget, noise is keyed by it.
        members: The sites of the sum.

    Returns:
        The integers, and the rows behind them.

    Raises:
        RefusedError: There are too few sites, or too few rows where no sum hides them.
    """
    approved, layout, rows = site.plan, layout_at(site), rows_taking_part(site)
    section = layout.section
    _refuse_few(site, members, section, rows.count)
    parts = [
        statistics_of_sites(layout.design, stack([fold]), transform=partial(layout.transform, part=part))[0]
        for part in range(layout.parts)
        for fold in _parts_of_rows(site)
    ]
    values: Floats = np.concatenate(parts)
    dp, secure = dp_of(approved), approved.secure
    if dp is not None and secure is not None:
        from kohort.models.dp_sgd.fit import gaussian

        answer_once(site, request)
        deviation = deviation_of(layout, account_of(site).sigmas[0], shares_of(site, members, secure.colluders))
        values = values + deviation * gaussian(site.streams.bytes("dp", request.digest), layout.length)
    return layout.grid(len(members)).encode(values), rows.count


def is_checked(approved: ApprovedPlan) -> bool:
    """Whether sites verify the totals: where Newton steps follow, each site computes the weights of a step itself.

    Args:
        approved: The approved plan.

    Returns:
        False for a single round, and where no sum hides a site's numbers anyway.
    """
    return section_of(approved).rounds > 1 and scheme_of(approved) != "none"


def statistics_task(approved: ApprovedPlan) -> SumTask:
    """The sum of statistics that a plan has.

    Args:
        approved: The approved plan.

    Returns:
        The checked one where Newton steps follow.
    """
    return CHECKED_STATISTICS if is_checked(approved) else STATISTICS


def checks_of(approved: ApprovedPlan) -> int:
    """How many check values the sums of a plan have.

    Args:
        approved: The approved plan.

    Returns:
        The check values that each site appends to its vector; 0 where sites do not verify totals (`is_checked`).
    """
    return CHECKS if is_checked(approved) else 0


@dataclass
class NewtonState(TaskState):
    """A site's own Newton steps."""

    path: NewtonPath | None = field(default=None, repr=False)
    round: int = -1
    """The latest round it took part in: 0 for the statistics, then one per step."""
    transcript: bytes = b""
    """What bound that round's sum."""


def _checked_statistics(
    site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]
) -> tuple[Integers, int]:
    del inputs
    if not is_checked(site.plan) or context.length != layout_at(site).length + CHECKS:
        raise SiteError("statistics were asked for that are not in the approved plan")
    vector, rows = statistics_at(site, request, context.sites)
    state = site.state(NewtonState)
    state.round, state.transcript = 0, context.transcript
    return with_check(secret_of(site), context.transcript, site.name, to_residues(vector)), rows


def _announced(site: Site, inputs: Mapping[str, bytes]) -> Integers:
    """The total of the round before, if it is what the sites contributed."""
    state, data = site.state(NewtonState), inputs.get("total", b"")
    if len(data) % 8:
        raise IntegrityError("the total of a round cannot be read")
    total = np.frombuffer(data, dtype="<u8").astype(np.uint64)
    if is_checked(site.plan):
        names = site.plan.sites_at(inputs.get("sites", b""))
        total = proven_total(secret_of(site), state.transcript, names, total)
    return from_residues(total)


def _path_at(site: Site, round_number: int, inputs: Mapping[str, bytes]) -> NewtonPath:
    """The steps up to a round, computed here; a site that missed a round takes no part in later ones."""
    state = site.state(NewtonState)
    if not is_checked(site.plan) and round_number == 1:
        state.round = 0  # without protection the statistics need no state of their own
    if state.round != round_number - 1:
        raise SiteError(f"site {site.name!r} took no part in round {round_number - 1}, so it has no weights")
    total = _announced(site, inputs)
    if round_number == 1:
        state.path = NewtonPath.start(layout_at(site), total)
    elif state.path is not None:
        state.path.take(total)
    if state.path is None:
        raise SiteError(f"site {site.name!r} was asked for a Newton step before the statistics")
    return state.path


def _newton(site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]) -> tuple[Integers, int]:
    layout, rows = layout_at(site), rows_taking_part(site)
    design, curvature = layout.design, curvature_of(layout)
    if not 1 <= request.round < section_of(site.plan).rounds:
        raise SiteError("a Newton step was asked for that is not in the approved plan")
    if context.length != newton_length(design, curvature) + checks_of(site.plan):
        raise SiteError("a Newton step was asked for that is not in the approved plan")
    _refuse_few(site, context.sites, layout.section, rows.count)
    path, state = _path_at(site, request.round, inputs), site.state(NewtonState)
    values = newton_statistics(design, stack([rows]), path.at, curvature=curvature, transform=layout.transform)[0]
    grid = layout.grid(len(context.sites))
    vector = to_residues(grid.encode(values))
    state.round, state.transcript = request.round, context.transcript
    if is_checked(site.plan):
        vector = with_check(secret_of(site), context.transcript, site.name, vector)
    return vector, rows.count


def begin_session(approved: ApprovedPlan, encoder: Encoder, sites: tuple[str, ...]) -> Ask | None:
    """The set-up of the sum, where it can be sent together with the enrolment.

    Args:
        approved: The approved plan.
        encoder: The encoder that all sites share.
        sites: The sites that enrol.

    Returns:
        The request. None if the scheme needs no set-up, if a count or the reservation of a budget comes first, if no
        such sum is taken, or if there are too few sites.
    """
    section = section_of(approved)
    if (
        section.mode == "paper"
        or section.features == "bins"
        or section.statistics_to == "peers"
        or dp_of(approved) is not None
        or needs_cells(approved, encoder)
    ):
        return None
    if len(sites) < section.min_sites:
        return None  # the plan says why this cannot be summed
    return set_up_request(approved, sites) if find_scheme(scheme_of(approved)).sets_up else None


def _small_cells(approved: ApprovedPlan) -> tuple[int, int]:
    """The unit of a count in the totals, and the least persons of a pair of categories that opens as it is."""
    section = section_of(approved)
    return 4**section.precision, section.min_cell


STATISTICS = sum_task(
    "oneshot.statistics", _statistics, scheme=scheme_of, bits=BITS, family="rows", small_cells=_small_cells
)
CHECKED_STATISTICS = sum_task(
    "oneshot.statistics.checked", _checked_statistics, scheme=scheme_of, modulus=P61, family="rows"
)
NEWTON = sum_task("oneshot.newton", _newton, scheme=scheme_of, modulus=P61, family="rows")
