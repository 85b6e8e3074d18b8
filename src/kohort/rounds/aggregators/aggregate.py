"""How the hub turns many weight vectors into one. Pure functions over stacks [site, parameter].

A breakdown point is the number of lying sites, of S, from which on they can move the result without bound; `tests`
hold every aggregator to its own, just below and at it. The robust ones count sites, not rows: liars lie about
rows too. NaN and infinity never come here: replies are validated before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol, TypeVar

import numpy as np
from annotated_types import Ge, Gt, Lt
from numpy.typing import NDArray

from kohort.errors import ConfigError, SiteError, nearest
from kohort.models.dense.network import FloatArray, Network
from kohort.models.trainable import Trainable
from kohort.protocol.options import bind, named
from kohort.rounds.aggregators import robust
from kohort.rounds.aggregators.matching import in_order_of, match_units

__all__ = [
    "Aggregator",
    "aggregator",
    "aggregators",
    "clip",
    "fedma",
    "find_aggregator",
    "krum",
    "mean",
    "median",
    "multi_krum",
    "trimmed",
    "weighted_mean",
]

Rows = NDArray[np.int64]
Aggregate = Callable[[FloatArray, Rows, FloatArray, Trainable], FloatArray]
"""(stack [S, P], rows [S], start [P], network) -> weights [P]: an aggregator whose options are set."""


class Aggregator(Protocol):
    """A function a plan can name in `train.aggregate`; further keyword-only parameters are its options."""

    def __call__(
        self, stack: FloatArray, rows: Rows, /, *, start: FloatArray, network: Trainable, **options: Any
    ) -> FloatArray:
        """One weight vector from a `stack` [S, P] of sites that began at `start` [P] and trained on `rows` [S] rows."""
        ...


F = TypeVar("F", bound=Callable[..., FloatArray])
_AGGREGATORS: dict[str, Callable[..., FloatArray]] = {}
_GIVEN = ("start", "network")


def aggregator(name: str) -> Callable[[F], F]:
    """Register an aggregator under the name plans use."""

    def register(function: F) -> F:
        if name in _AGGREGATORS:
            raise ConfigError(f"two aggregators are called {name!r}", hint="Rename one of them")
        _AGGREGATORS[name] = function
        return function

    return register


def aggregators() -> dict[str, Callable[..., FloatArray]]:
    """Every registered aggregator by name."""
    return dict(_AGGREGATORS)


def find_aggregator(spec: str | Mapping[str, Any]) -> Aggregate:
    """The aggregator a plan names, its options checked and set."""
    name, options = named(spec)
    if name not in _AGGREGATORS:
        raise ConfigError(f"unknown aggregator {name!r} in train.aggregate", hint=nearest(name, _AGGREGATORS))
    ready = bind(_AGGREGATORS[name], options, f"aggregator {name!r}", later=_GIVEN)

    def aggregate(stack: FloatArray, rows: Rows, start: FloatArray, network: Trainable) -> FloatArray:
        return ready(stack, rows, start=start, network=network)

    return aggregate


def weighted_mean(stack: FloatArray, rows: Rows) -> FloatArray:
    """The mean weighted by rows."""
    mean: NDArray[Any] = _shares(rows) @ stack.astype(np.float64)
    return mean.astype(stack.dtype)


@aggregator("mean")
def mean(stack: FloatArray, rows: Rows, *, start: FloatArray, network: Trainable) -> FloatArray:
    """The mean weighted by rows (McMahan et al. 2017).

    Breakdown point 1: a single lying site moves it anywhere. Assumes every site honest.
    """
    del start, network
    return weighted_mean(stack, rows)


@aggregator("median")
def median(stack: FloatArray, rows: Rows, *, start: FloatArray, network: Trainable) -> FloatArray:
    """The median of every coordinate over the sites (Yin et al., ICML 2018), every site counting once.

    Breakdown point ceil(S / 2), the highest there is: with fewer Byzantine sites every coordinate stays between the
    smallest and largest honest value. Assumes sites alike enough that the median site speaks for all; rows of rare
    sites weigh nothing.
    """
    del rows, start, network
    _need(stack, 1, "the median", "Ask sites that are up")
    return robust.coordinate_median(stack)


@aggregator("trimmed")
def trimmed(
    stack: FloatArray,
    rows: Rows,
    *,
    start: FloatArray,
    network: Trainable,
    share: Annotated[float, Gt(0), Lt(0.5)] = 0.2,
) -> FloatArray:
    """The mean of every coordinate without its smallest and largest `share` of the sites (Yin et al., ICML 2018).

    floor(share * S) sites are cut at each end, and never fewer than one. Breakdown point: one more than that. Assumes
    that no more than this share lies, and sites alike enough that extreme values are no loss. Every site counts once.
    """
    del rows, start, network
    _need(stack, 3, "a trimmed mean", "Ask more sites, or use train.aggregate = 'mean'")
    return robust.trimmed_mean(stack, _cut(stack.shape[0], share))


@aggregator("krum")
def krum(
    stack: FloatArray,
    rows: Rows,
    *,
    start: FloatArray,
    network: Trainable,
    colluders: Annotated[int, Ge(0)] | None = None,
) -> FloatArray:
    """The one site nearest to its S - f - 2 nearest others (Blanchard et al., NeurIPS 2017), f = `colluders`.

    Needs S >= 2f + 3; by default f is the most S allows, floor((S - 3) / 2). Breakdown point: f + 2. The
    paper promises f; one more still cannot win, but f + 2 that agree on a vector are enough when S <= 2f + 4, as by
    default. Assumes honest sites close together compared with a harmful lie; the rows of all other sites are left
    unused, so expect it to be noisier than any mean.
    """
    del rows, network
    scores = _krum_scores(stack, start, _colluders(stack, colluders))
    chosen: FloatArray = stack[int(np.argmin(scores))].copy()
    return chosen


@aggregator("multi-krum")
def multi_krum(
    stack: FloatArray,
    rows: Rows,
    *,
    start: FloatArray,
    network: Trainable,
    colluders: Annotated[int, Ge(0)] | None = None,
    keep: Annotated[int, Ge(1)] | None = None,
) -> FloatArray:
    """The plain mean of the `keep` sites with the best Krum scores (Blanchard et al., NeurIPS 2017).

    By default keeps S - f of them, f = `colluders`, itself by default floor((S - 3) / 2); needs S >= 2f + 3. Breakdown
    point: f + 1 with these defaults, since S - f sites cannot all be honest then. Assumes what `krum` assumes.
    """
    del rows, network
    byzantine_sites = _colluders(stack, colluders)
    wanted = stack.shape[0] - byzantine_sites if keep is None else keep
    if wanted > stack.shape[0] - byzantine_sites:
        raise SiteError(
            f"multi-krum cannot keep {wanted} of {stack.shape[0]} sites and leave out {byzantine_sites} colluders",
            hint="Lower keep or colluders, or ask more sites",
        )
    best = np.argsort(_krum_scores(stack, start, byzantine_sites), kind="stable")[:wanted]
    chosen = stack[np.sort(best)].astype(np.float64)
    average: FloatArray = chosen.mean(axis=0).astype(stack.dtype)
    return average


@aggregator("clip")
def clip(
    stack: FloatArray,
    rows: Rows,
    *,
    start: FloatArray,
    network: Trainable,
    norm: Annotated[float, Gt(0)] | None = None,
) -> FloatArray:
    """The mean weighted by rows of the updates `weights - start`, longer ones shortened to `norm`.

    By default `norm` is the median length of this round's updates. Breakdown point: with a given norm none, nobody
    moves the result further than their share of the rows times the norm; with the median ceil(S / 2), from where on
    the byzantine_sites say what is long. Assumes honest updates of about the same length. Bounds harm, does not remove
    it: byzantine_sites still steer by their share of the rows.
    """
    del network
    norms = robust.update_norms(stack, start)
    bound = float(np.median(norms)) if norm is None else norm
    return robust.clipped_mean(stack, _shares(rows), start, norms=norms, bound=bound)


@aggregator("fedma")
def fedma(stack: FloatArray, rows: Rows, *, start: FloatArray, network: Trainable) -> FloatArray:
    """Matched averaging of dense layers (Wang et al., ICLR 2020): hidden units are matched, then averaged by rows.

    Units are matched layer by layer with the Hungarian algorithm, every site to the running mean of the sites with more
    rows. The number of units stays as it is, where the paper lets layers grow, so that every round has the
    same model; and units come back in the order of `start`, so that hub optimisers see the same unit in the same place.
    Equals `mean` without hidden layers. Breakdown point 1, as of the mean. Assumes honest sites.
    """
    if not isinstance(network, Network):
        raise ConfigError(
            "fedma matches units of dense networks, and this model is none",
            hint="Use train.aggregate = 'mean', or a model of kind 'mlp'",
        )
    if not network.hidden:
        return weighted_mean(stack, rows)
    _shares(rows)
    return in_order_of(network, weighted_mean(match_units(network, stack, rows), rows), start)


def _shares(rows: Rows) -> NDArray[np.float64]:
    total = rows.sum()
    if total <= 0:
        raise SiteError(f"none of the {len(rows)} sites that answered has rows", hint="Ask sites that hold data")
    shares: NDArray[np.float64] = rows / total
    return shares


def _need(stack: FloatArray, least: int, what: str, hint: str) -> None:
    if stack.shape[0] < least:
        raise SiteError(f"{what} needs {least} or more sites, and {stack.shape[0]} answered", hint=hint)


def _cut(sites: int, share: float) -> int:
    """How many sites are cut at each end: floor(share * S), but a trimmed mean that cuts nobody protects nobody."""
    # 0.29 * 100 is a little less than 29 in floating point.
    return max(1, int(share * sites + 1e-9))


def _colluders(stack: FloatArray, colluders: int | None) -> int:
    sites = stack.shape[0]
    byzantine_sites = max(0, (sites - 3) // 2) if colluders is None else colluders
    hint = "Lower colluders, ask more sites, or use train.aggregate = 'median'"
    _need(stack, 2 * byzantine_sites + 3, f"krum against {byzantine_sites} colluders", hint)
    return byzantine_sites


def _krum_scores(stack: FloatArray, start: FloatArray, colluders: int) -> NDArray[np.float64]:
    return robust.krum_scores(robust.squared_distances(stack, start), stack.shape[0] - colluders - 2)
