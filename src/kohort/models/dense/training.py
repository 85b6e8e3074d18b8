"""Training dense networks at many sites at once.

Guarantees: `fit_many` gives every site exactly the weights that it gets alone, bit for bit, on any number of threads.
The order of rows is a function of (key, round, epoch) only: nothing is remembered between calls, so a run can be
resumed at any round. Rows, weights and states that are passed in are never changed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError
from kohort.models.dense.shape import DenseShape
from kohort.models.options import Fitted, FloatArray, OptimiserState, Optimizer, Training
from kohort.models.rows import StackedRows, read_only
from kohort.models.trainable import Scorer

__all__ = [
    "Fitted",
    "OptimiserState",
    "Optimizer",
    "Training",
    "as_matrix",
    "check_rows",
    "check_targets",
    "fit_many",
    "moments_for",
    "row_order",
    "shape_of",
]

# Arrays of nothing and of constants, made once: ten small arrays per round cost as much as a mini-batch.
_NO_LOSSES = np.empty(0)


@lru_cache(maxsize=32)
def _no_rows(parameters: int, dtype: str) -> FloatArray:
    return np.empty((0, parameters), dtype=dtype)


@lru_cache(maxsize=32)
def shape_of(network: DenseShape) -> tuple[NDArray[np.int64], int, int]:
    """Layers, activation and loss, as kernels take them.

    Args:
        network: The network.

    Returns:
        The sizes of the layers from inputs to outputs, and the codes of activation and loss.
    """
    from kohort.models.dense import kernel

    sizes = np.array(network.sizes, dtype=np.int64)
    return sizes, kernel.ACTIVATIONS[network.activation], kernel.LOSSES[network.loss]


def fit_many(
    network: DenseShape,
    weights: FloatArray,
    rows: StackedRows,
    *,
    training: Training,
    keys: NDArray[np.uint64],
    round: int,
    state: OptimiserState | None = None,
    anchor: FloatArray | None = None,
    shift: FloatArray | None = None,
    measure_loss: bool = False,
    keep_state: bool = True,
    threads: int = 1,
) -> Fitted:
    """Train the network at every site of `rows`, each from its own starting weights or all from the same.

    Args:
        network: What is trained.
        weights: Starting weights, [parameters] for all alike or [sites, parameters].
        rows: The rows of all sites. A site without rows keeps its weights.
        training: Passes, mini-batches, optimiser and penalties.
        keys: A key per site, [sites], from which its row orders follow.
        round: The number of the round, from 0; another round has other row orders.
        state: What the optimiser remembers of the last call for the same sites; None to begin anew.
        anchor: Where `prox` pulls to, of the shapes of `weights`; by default the starting weights.
        shift: Added to every mini-batch gradient, [sites, parameters]: the correction c - c_i of SCAFFOLD.
        measure_loss: Whether to report the mean loss of each site.
        keep_state: False saves the memory of the optimiser state when no `state` was given and none is wanted back.
        threads: How many threads train sites side by side; their number changes no bit of the result.

    Returns:
        The trained weights, [sites, parameters], the losses if asked for, the steps taken, and the optimiser's state.

    Raises:
        ConfigError: A shape, the number type, the round or the number of threads does not fit.
        DataError: The rows have another width, or a target is no class code.
    """
    from kohort.models.dense import kernel

    sites, parameters = rows.sites, network.parameter_count
    check_rows(network, rows)
    if round < 0 or threads < 1:
        raise ConfigError(f"round {round} on {threads} threads", hint="Use round 0 or later and 1 thread or more")
    if keys.shape != (sites,):
        raise ConfigError(f"{keys.size} row-order keys for {sites} sites", hint="Give one key per site")
    start = as_matrix("weights", weights, network, sites)
    home = start if anchor is None else as_matrix("anchor", anchor, network, sites)
    trained = np.empty((sites, parameters), dtype=network.dtype)
    trained[:] = start
    moments = moments_for(training, network, state, sites, keep_state)
    losses = np.full(sites, np.nan) if measure_loss else _NO_LOSSES
    taken = np.zeros(sites, dtype=np.int64)
    misfits = np.zeros(sites, dtype=np.int64)
    shape = shape_of(network)
    given = (*rows.for_kernels, read_only(keys, np.uint64), int(round))
    options = (int(training.epochs), int(training.batch), kernel.OPTIMIZERS[training.optimizer], *training.rates)
    shifts = _no_rows(parameters, network.dtype) if shift is None else as_matrix("shift", shift, network, sites)
    corrections = (read_only(home), read_only(shifts))
    results = (moments.first, moments.second, moments.steps, taken, losses, misfits)

    def train(begin: int, end: int) -> None:
        kernel.train_sites(begin, end, *given, *shape, *options, trained, *corrections, *results, bool(measure_loss))

    if threads == 1:
        train(0, sites)
    else:
        parts = _even_parts(rows.counts, threads)
        with ThreadPoolExecutor(max_workers=len(parts)) as pool:
            for job in [pool.submit(train, begin, end) for begin, end in parts]:
                job.result()
    _refuse_misfits(misfits, network)
    remembers = training.optimizer != "sgd" and moments.first.shape[0] == sites
    return Fitted(trained, losses if measure_loss else None, taken, moments if remembers else None)


def row_order(key: int, round: int, epoch: int, n: int) -> NDArray[np.int64]:
    """The order in which a site reads its rows in one pass, when a mini-batch is less than all of them.

    Args:
        key: The site's key.
        round: The round.
        epoch: The pass within the round, from 0.
        n: How many rows the site has.

    Returns:
        A permutation of 0 to n - 1, a function of the four arguments alone.
    """
    from kohort.models.dense.compiled import shuffled

    order = np.empty(n, dtype=np.int64)
    shuffled(order, n, np.uint64(key), round, epoch)
    return order


def check_rows(network: Scorer, rows: StackedRows) -> None:
    """Refuse rows of another width or number type than the network reads.

    Args:
        network: The network.
        rows: The rows.

    Raises:
        DataError: The width differs.
        ConfigError: The number type differs.
    """
    if rows.x.shape[1] != network.inputs:
        raise DataError(
            f"rows with {rows.x.shape[1]} features do not fit a network with {network.inputs} inputs",
            hint="Build the network from the encoder of the table",
        )
    if rows.x.dtype != np.dtype(network.dtype):
        raise ConfigError(
            f"rows are {rows.x.dtype.name} and the network is {network.dtype}",
            hint="Make the rows with the dtype of the network",
        )


def check_targets(network: Scorer, rows: StackedRows) -> None:
    """Refuse targets that are no class codes, as the kernel does while it trains.

    Args:
        network: The network. With a numeric target nothing is refused.
        rows: The rows of all sites.

    Raises:
        DataError: A target is not a whole number from 0 to classes - 1.
    """
    if network.classes:
        parts = [rows.site(site).y for site in range(rows.sites)]
        misfits = [int(((y < 0) | (y >= network.classes) | (y != np.floor(y))).sum()) for y in parts]
        _refuse_misfits(np.array(misfits, dtype=np.int64), network)


def _refuse_misfits(misfits: NDArray[np.int64], network: Scorer) -> None:
    if np.count_nonzero(misfits):
        raise DataError(
            f"{int(misfits.sum())} rows at {int((misfits > 0).sum())} sites have a target that is no class code",
            hint=f"Encode the target as 0 to {network.classes - 1}",
        )


def as_matrix(name: str, given: FloatArray, network: Scorer, sites: int) -> FloatArray:
    """A vector or matrix with one row for all sites or one row each.

    Args:
        name: What it is, for the error; a "shift" has one row each.
        given: The numbers.
        network: Whose dtype and length it has.
        sites: How many.

    Returns:
        A contiguous matrix.

    Raises:
        ConfigError: The shape does not fit.
    """
    matrix = np.ascontiguousarray(given, dtype=network.dtype)
    if matrix.ndim == 1:
        matrix = matrix[None]
    shared = given.ndim == 1 and name != "shift"
    if matrix.shape != (1 if shared else sites, network.parameter_count):
        raise ConfigError(
            f"{name} of shape {given.shape} do not fit {sites} sites of {network.parameter_count} parameters",
            hint=f"Use [{sites}, {network.parameter_count}]" + ("" if name == "shift" else ", or one vector for all"),
        )
    return matrix


def moments_for(
    training: Training, network: Scorer, state: OptimiserState | None, sites: int, keep: bool
) -> OptimiserState:
    """A fresh or copied optimizer state that training may write to.

    Args:
        training: How sites train.
        network: What they train.
        state: A former state; None: begin anew.
        sites: How many.
        keep: Whether the state is wanted back.

    Returns:
        The state; no rows where nothing is to be kept.

    Raises:
        ConfigError: The former state has other shapes.
    """
    parameters = network.parameter_count
    rows = sites if training.optimizer != "sgd" and (keep or state is not None) else 0
    second_rows = rows if training.optimizer == "adam" else 0
    if state is None or training.optimizer == "sgd":
        none = _no_rows(parameters, network.dtype)
        return OptimiserState(
            np.zeros((rows, parameters), dtype=network.dtype) if rows else none,
            np.zeros((second_rows, parameters), dtype=network.dtype) if second_rows else none,
            np.zeros(sites, dtype=np.int64),
        )
    given = (state.first.shape, state.second.shape, state.steps.shape)
    if given != ((rows, parameters), (second_rows, parameters), (sites,)):
        raise ConfigError(
            f"an optimiser state of shapes {given} does not fit {sites} sites trained with {training.optimizer}",
            hint="Pass the state of the last call for the same sites, or None to restart",
        )
    return OptimiserState(
        np.array(state.first, dtype=network.dtype, order="C"),
        np.array(state.second, dtype=network.dtype, order="C"),
        np.array(state.steps, dtype=np.int64),
    )


def _even_parts(counts: NDArray[np.int64], parts: int) -> list[tuple[int, int]]:
    """Consecutive ranges of sites, at most `parts`, with about the same number of rows each."""
    sites = len(counts)
    rows_before = np.concatenate([[0], np.cumsum(counts)])
    goals = rows_before[-1] * np.arange(1, parts) / parts
    cuts = np.unique(np.concatenate([[0], np.searchsorted(rows_before, goals), [sites]]))
    return [(int(begin), int(end)) for begin, end in pairwise(cuts)]
