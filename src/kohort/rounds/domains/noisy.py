"""Learn the domains of undeclared columns under a budget: by noisy counts, with a threshold that delta pays for.

Every unit (a row, or a person with one row) has at most one value per column, one cell of the public grid for a number
(`kohort.tables.grid`), and `MOST_ITEMS` items. Names of categories are each site's own release: it adds noise to its
counts and names those above the threshold (`kohort.privacy.dp.histogram` has the proof). Cells of numbers are a closed
list, so with a secure sum the sites add noise in shares and only the total opens; without one, each site releases its
own. Hub and sites take what came out; other categories are "other", other numbers are clipped.

Names are not counted in shares: a site that lies about its counts could then carry any name over the threshold, and so
find out whether one person has it. A site's own release stays private whatever the other sites do.

Guarantee: DP, paid into the plan's account before anything else of the plan: `method.dp.domain_share` of the budget. A
domain that a lying hub chooses itself takes nothing from that, because all later releases of such a plan are private
for any domain. Not hidden: the types of columns (number, text, items), which are taken as public.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Final, NamedTuple, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.crypto.sums.scheme import Integers, SumContext
from kohort.errors import ConfigError, DataError, IntegrityError, RefusedError, SiteError
from kohort.privacy.contract import Step
from kohort.privacy.dp.account import Shares
from kohort.privacy.dp.accounting import describe
from kohort.privacy.dp.budget import account_name
from kohort.privacy.dp.histogram import DomainBudget
from kohort.privacy.guarantee import DP
from kohort.privacy.ledger.ledger import canonical
from kohort.protocol.enrolment import DomainState
from kohort.protocol.hub import Ask, Coordinator, Expect, Replies, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.domains.columns import disagreement, learned_column, learned_domain
from kohort.rounds.dp_accounts import domain_budget
from kohort.rounds.phase_rows import first_of_each_person
from kohort.rounds.summing import secure_sum, sum_steps, sum_task
from kohort.tables.domain import (
    MAX_INTEGER_CLASSES,
    ColumnDomain,
    Domain,
    category_text,
    column_kind,
    item_lists,
    number,
    undeclared_columns,
)
from kohort.tables.grid import Cell, cells_at_level, grid_bounds, grid_cells, with_wider

__all__ = ["NOISY_CELLS", "NOISY_VALUES", "check_noisy_domains", "noisy_domain", "noisy_domain_steps"]

LEVEL = 3
"""Of the grid: four cells per decade."""
MOST_ITEMS = 8
"""Items of one row that are counted, at most; which ones is drawn."""
_SCALE = 2**10
"""Grid units per count in a sum: rounding is fine compared with any share of the noise."""
_CLASSES_HOLD = 0.75
"""An integer target is classes if the frequent ones hold this part of its rows."""
_LONGEST = 1024
"""Characters of a category's name; a longer one is "other"."""
_KEYS: Final = {"category": 1, "items": MOST_ITEMS, "number": 1, "integer": 2}
"""To how many counts one unit adds 1, at most, by kind. An integer target may be classes or a number: both count."""


class _Found(NamedTuple):
    """What one site releases, in places of the undeclared columns."""

    kinds: tuple[str, ...]
    """One of `_KEYS` per column."""
    values: list[tuple[int, str, int]]
    """Place, value, and its noisy count."""
    cells: list[tuple[int, Cell, int]]
    """Place, cell of the grid, and its noisy count."""


def check_noisy_domains(approved: ApprovedPlan) -> None:
    """Refuse a plan with a budget whose domains cannot be learned under it, before anything is asked.

    Args:
        approved: The approved plan, which has undeclared columns.

    Raises:
        ConfigError: Its budget protects whole sites, or has no delta that could pay for a threshold.
    """
    if domain_budget(approved) is None:
        columns = ", ".join(undeclared_columns(approved.schema))
        raise ConfigError(
            "this budget cannot pay for learning domains: they need dp.unit row or person, and a delta",
            hint=f"Declare them in data.bounds and data.categories: {columns}",
        )


def noisy_domain_steps(approved: ApprovedPlan) -> list[Step]:
    """What learning the domains under a budget asks of a site.

    Args:
        approved: The approved plan. Without columns, as at a key-holder, its sums are allowed in any case.

    Returns:
        The steps; none where nothing is undeclared, or nothing can be learned.
    """
    budget = domain_budget(approved)
    if budget is None:
        return []
    epsilon, delta = budget.cost
    says = (
        "values of columns that the plan declares none for, if so many persons share them that noisy counts show it, "
        f"for epsilon {epsilon:.3g} and delta {delta:.3g} out of the plan's"
    )
    claims = (DP(epsilon=epsilon, delta=delta, unit=_unit(approved)),)
    values = Step(task=NOISY_VALUES.name, says=says, claims=claims, required=True)
    if not approved.sums_securely:
        return [values]
    cells = "noisy counts of cells of a public grid that numbers of undeclared columns fall into, paid for by the same"
    return [values, *sum_steps(approved, NOISY_CELLS, says=cells)]


def _unit(approved: ApprovedPlan) -> str:
    """The weakest unit of the plan's budgets."""
    return "row" if any(phase.dp is not None and phase.dp.unit == "row" for phase in approved.phases) else "person"


def _budget_of(site: Site) -> DomainBudget:
    budget = domain_budget(site.plan)
    if budget is None:
        raise RefusedError("the approved plan learns no domain under a budget")
    return budget


def _units(site: Site) -> pl.DataFrame:
    """One row per unit, whatever the site does with the others."""
    rows = site.table.rows()
    if _unit(site.plan) == "row":
        return rows
    return rows.filter(pl.Series(first_of_each_person(site)))


@dataclass(frozen=True)
class _Column:
    """An undeclared column of a site."""

    place: int
    values: pl.Series
    kind: str
    """One of `_KEYS`."""


def _columns(site: Site) -> list[_Column]:
    frame, schema = _units(site), site.plan.schema
    found = []
    for place, name in enumerate(undeclared_columns(schema)):
        column, spec = frame[name], schema.columns[name]
        kind: str = column_kind(spec, column.dtype)
        if name == schema.target and kind == "number" and column.dtype.is_integer() and spec.kind is None:
            kind = "integer"
        found.append(_Column(place, column, kind))
    return found


def _keys(kinds: Iterable[str]) -> int:
    """The most counts that one unit can change by 1."""
    return sum(_KEYS[kind] for kind in kinds)


def _texts(site: Site, column: _Column) -> pl.Series:
    """The categories of a column, or its items: at most so many of a row."""
    if column.kind != "items":
        return category_text(column.values).drop_nulls()
    order = site.streams.generator("domain items", str(column.place))
    lists = item_lists(column.values).drop_nulls().to_list()
    few = [order.permutation(items).tolist()[:MOST_ITEMS] if len(items) > MOST_ITEMS else items for items in lists]
    return pl.Series(few, dtype=pl.List(pl.String)).explode().drop_nulls()


def _value_counts(site: Site, column: _Column) -> dict[str, int]:
    counts = _texts(site, column).cast(pl.String).value_counts(name="count")
    values, numbers = counts.get_columns()
    return dict(zip(values.to_list(), numbers.to_list(), strict=True))


def _cell_counts(column: _Column) -> dict[Cell, int]:
    numbers = number(column.values).drop_nulls().drop_nans().to_numpy()
    _, sign, interval = next(found for found in grid_cells(numbers) if found[0] == LEVEL)
    pairs, counts = np.unique(np.stack([sign, interval]), axis=1, return_counts=True)
    return {Cell(LEVEL, *pair): count for pair, count in zip(pairs.T.tolist(), counts.tolist(), strict=True)}


def _counts(site: Site) -> dict[tuple[int, str | Cell], int]:
    """What the site releases itself, by place: values, and cells where no sum adds them."""
    counted: dict[tuple[int, str | Cell], int] = {}
    own_cells = {"integer"} if site.plan.sums_securely else {"integer", "number"}
    for column in _columns(site):
        if column.kind != "number":
            counted |= {(column.place, text): count for text, count in _value_counts(site, column).items()}
        if column.kind in own_cells:
            counted |= {(column.place, cell): count for cell, count in _cell_counts(column).items()}
    return counted


def _release_values(site: Site, request: Request) -> Release:
    """The values whose noisy counts are above the threshold."""
    from kohort.models.dp_sgd.fit import gaussian

    budget, counted = _budget_of(site), _counts(site)
    kinds = tuple(column.kind for column in _columns(site))
    keys = _keys(kinds)
    listed = sorted(counted, key=lambda key: (key[0], isinstance(key[1], Cell), key[1]))
    noise = budget.deviation(keys) * gaussian(site.streams.bytes("dp", request.digest), len(listed))
    least = max(budget.threshold(keys), site.policy.min_cell)
    above = {
        key: round(noisy)
        for key, noisy in zip(listed, np.asarray([counted[key] for key in listed]) + noise, strict=True)
        if noisy > least and (isinstance(key[1], Cell) or len(key[1]) <= _LONGEST)
    }
    found = _Found(
        kinds=kinds,
        values=[(place, key, count) for (place, key), count in above.items() if not isinstance(key, Cell)],
        cells=[(place, key, count) for (place, key), count in above.items() if isinstance(key, Cell)],
    )
    site.state(DomainState).named = {
        name: tuple(text for at, text, _ in found.values if at == place)
        for place, name in enumerate(undeclared_columns(site.plan.schema))
    }
    blob = canonical([found.kinds, found.values, found.cells]).encode()
    return Release(payload=Payload(blobs={"domain": blob}), guarantee=_claim(site, budget), rows=site.count)


def _claim(site: Site, budget: DomainBudget) -> DP:
    approved, (epsilon, delta) = site.plan, budget.cost
    return DP(
        epsilon=epsilon,
        delta=delta,
        unit=_unit(approved),
        event=describe(budget.events),
        simulated=not site.streams.is_secure,
        accountant="pld",
        account=account_name(approved.run, approved.plan_hash),
    )


def _require_paid(site: Site, budget: DomainBudget) -> None:
    """Refuse counts that the site's own release, which pays for both, has not paid for."""
    paid = site.chain.budget.paid_by(_claim(site, budget))
    if any(spent < cost for spent, cost in zip(paid, budget.cost, strict=True)):
        raise RefusedError("noisy counts were asked for before they were paid for")


NOISY_VALUES = Task(name="domain.values", one=_release_values, public=False)


def _read(approved: ApprovedPlan, blob: bytes) -> _Found:
    """What a site released.

    Raises:
        IntegrityError: It is malformed.
    """
    columns = len(undeclared_columns(approved.schema))
    try:
        kinds, values, cells = json.loads(blob)
        found = _Found(
            kinds=tuple(kinds),
            values=[(int(place), str(text), int(count)) for place, text, count in values],
            cells=[(int(place), Cell(*map(int, cell)), int(count)) for place, cell, count in cells],
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise IntegrityError("a received domain is malformed") from error
    places = {place for place, _, _ in (*found.values, *found.cells)}
    right = len(kinds) == columns and {*found.kinds} <= _KEYS.keys() and places <= {*range(columns)}
    if not right or not {cell for _, cell, _ in found.cells} <= {*cells_at_level(LEVEL)}:
        raise IntegrityError("a received domain is malformed")
    return found


def _add_cells(site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]) -> tuple[Integers, int]:
    """The site's counts of all cells of its number columns, with its share of the noise."""
    from kohort.models.dp_sgd.fit import gaussian

    budget, secure, columns = _budget_of(site), site.plan.secure, _columns(site)
    _require_paid(site, budget)
    summed, listed = [column for column in columns if column.kind == "number"], cells_at_level(LEVEL)
    if secure is None or inputs.get("columns", b"") != _places(column.place for column in summed):
        raise SiteError("cells of other columns were asked for than this site has numbers in")
    if context.length != len(summed) * len(listed):
        raise SiteError("the hub asked for another number of cells")
    values = np.concatenate([_dense(_cell_counts(column), listed) for column in summed])
    needed = Shares(len(context.sites), secure.colluders).needed
    if needed < 1:
        raise RefusedError("too few sites share the noise", hint="Add sites, or lower method.secure.colluders")
    deviation = budget.deviation(_keys(column.kind for column in columns)) / sqrt(needed)
    values += deviation * gaussian(site.streams.bytes("dp", request.digest), len(values))
    return np.rint(_SCALE * values).astype(np.int64).view(np.uint64), site.count


def _dense(counts: Mapping[Cell, int], listed: Sequence[Cell]) -> NDArray[np.float64]:
    return np.asarray([counts.get(cell, 0) for cell in listed], dtype=np.float64)


def _places(places: Iterable[int]) -> bytes:
    return np.asarray([*places], dtype="<u4").tobytes()


NOISY_CELLS = sum_task("domain.cells", _add_cells, scheme=ApprovedPlan.sum_scheme)


def noisy_domain(hub: Coordinator) -> Generator[Ask | RoundEnd, Any, tuple[Domain, tuple[str, ...]]]:
    """Learn the domain of the undeclared columns under the plan's budget.

    Args:
        hub: The coordinator.

    Returns:
        The domain of all columns, and the sites that released theirs.

    Raises:
        DataError: No value of a column is above the threshold, or sites disagree about its kind.
        SiteError: No site released anything.
    """
    approved = hub.approved
    expect = Expect(blobs=("domain",), check=lambda payload: _read(approved, payload.blobs["domain"]))
    replies: Replies = yield Ask(task=NOISY_VALUES, to=hub.sites, expect=expect)
    released = [_read(approved, payload.blobs["domain"]) for payload in replies.payloads()]
    kinds = _kinds(undeclared_columns(approved.schema), released)
    cells = [(place, cell) for found in released for place, cell, _ in found.cells]
    summed = [place for place, kind in enumerate(kinds) if kind == "number" and approved.sums_securely]
    if summed:
        cells += yield from _summed_cells(replace(hub, sites=replies.sites), summed, kinds)
    return _domain(approved, kinds, released, cells), replies.sites


def _kinds(names: Sequence[str], released: Sequence[_Found]) -> tuple[str, ...]:
    """The kind of every column, on which all sites must agree."""
    if not released:
        raise SiteError("no site released a domain")
    for place, name in enumerate(names):
        if len({found.kinds[place] for found in released}) > 1:
            raise disagreement(name)
    return released[0].kinds


def _summed_cells(
    hub: Coordinator, places: Sequence[int], kinds: Sequence[str]
) -> Generator[Ask | RoundEnd, Any, list[tuple[int, Cell]]]:
    """The cells whose noisy totals are above the threshold."""
    approved, listed = hub.approved, cells_at_level(LEVEL)
    budget = cast("DomainBudget", domain_budget(approved))
    inputs = {"columns": _places(places)}
    total = yield from secure_sum(hub, NOISY_CELLS, length=len(places) * len(listed), inputs=inputs)
    counts = total.values.view(np.int64).reshape(len(places), -1) / _SCALE
    least = max(budget.threshold(_keys(kinds)), approved.min_cell)
    return [(places[row], listed[at]) for row, at in np.argwhere(counts > least).tolist()]


def _domain(
    approved: ApprovedPlan, kinds: Sequence[str], released: Sequence[_Found], cells: Sequence[tuple[int, Cell]]
) -> Domain:
    """The domain that the frequent values and cells make, with the declared columns as they are."""

    def learned(place: int, name: str) -> ColumnDomain | None:
        texts = sorted({text for found in released for at, text, _ in found.values if at == place})
        if kinds[place] not in {"number", "integer"}:
            return learned_column(approved, name, kinds[place], texts, None) if texts else None
        inside = [cell for at, cell in cells if at == place]
        if kinds[place] == "integer" and not _are_classes(place, released):
            texts = []
        return learned_column(approved, name, "number", texts, grid_bounds(with_wider(inside))) if inside else None

    made = learned_domain(approved, learned, unknown=_unknown)
    target = str(approved.schema.target)
    classes = made.columns[target].categories if target in made.columns else None
    if classes is not None and len(classes) < 2:
        raise DataError(
            f"noisy counts show fewer than two classes of {target!r}",
            hint=f'Declare them: data.categories.{target} = ["a", "b"], or raise method.dp.epsilon or dp.domain_share',
        )
    return made


def _unknown(names: Sequence[str]) -> DataError:
    return DataError(
        f"no value in {', '.join(names)} is shared by so many that noisy counts show it",
        hint="Declare data.bounds or data.categories, drop the column, or raise method.dp.epsilon or dp.domain_share",
    )


def _are_classes(place: int, released: Sequence[_Found]) -> bool:
    """Whether an integer target is classes: few values hold most rows of all sites, as far as noisy counts show it."""
    values = [(text, count) for found in released for at, text, count in found.values if at == place]
    inside = sum(count for found in released for at, _, count in found.cells if at == place)
    held = sum(count for _, count in values)
    return held >= _CLASSES_HOLD * inside and len({text for text, _ in values}) <= MAX_INTEGER_CLASSES
