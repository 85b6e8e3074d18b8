"""Training torch modules by the rules of the dense kernel: the same row orders, mini-batches, losses and optimisers.

Guarantee: what a site learns depends on its own rows, key and starting weights alone, so sites one by one equal many at
once, bit for bit.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kohort.errors import ConfigError
from kohort.models.dense.training import as_matrix, check_rows, check_targets, moments_for, row_order
from kohort.models.options import Fitted, FloatArray, OptimiserState, Training
from kohort.models.rows import Rows, StackedRows
from kohort.models.torch.module import TorchModule, pinned, refuse_changed, tensor, whole_numbers
from kohort.models.torch.parts import require_vector

__all__ = ["SiteTraining", "fit_module", "noise_seed"]


@dataclass
class SiteTraining:
    """One site while it trains: its weights and what its optimiser remembers, in memory shared with the result."""

    own: torch.Tensor
    home: torch.Tensor
    shift: torch.Tensor | None
    first: torch.Tensor
    second: torch.Tensor
    done: int

    def step(self, gradient: torch.Tensor, training: Training, frozen: Sequence[slice], portion: float = 1.0) -> None:
        """One optimiser step with the conventions of torch.optim, and of the dense kernel.

        Args:
            gradient: Of the mean loss of a mini-batch; changed in place.
            training: How to train.
            frozen: The places that no gradient moves.
            portion: The mini-batch's rows over those of a full one: a shorter last one counts by its rows.
        """
        if self.shift is not None:
            gradient.add_(self.shift)
        if training.l2:
            gradient.add_(self.own, alpha=training.l2)
        if training.prox:
            gradient.add_(self.own - self.home, alpha=training.prox)
        if portion < 1:
            gradient.mul_(portion)
        for part in frozen:
            gradient[part] = 0
        self.done += 1
        if training.optimizer == "sgd":
            self.own.sub_(gradient, alpha=training.lr)
        elif training.optimizer == "momentum":
            self.first.mul_(training.momentum).add_(gradient)
            self.own.sub_(self.first, alpha=training.lr)
        else:
            self.first.mul_(training.beta1).add_(gradient, alpha=1 - training.beta1)
            self.second.mul_(training.beta2).addcmul_(gradient, gradient, value=1 - training.beta2)
            rate = training.lr / (1 - training.beta1**self.done)
            spread = self.second.sqrt().div_(math.sqrt(1 - training.beta2**self.done)).add_(training.epsilon)
            self.own.addcdiv_(self.first, spread, value=-rate)


def fit_module(
    model: TorchModule,
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
    """Train a module at every site, as `kohort.models.dense.training.fit_many` trains dense networks.

    Args:
        model: What is trained.
        weights: Starting weights, [parameters] for all alike or [sites, parameters].
        rows: The rows of all sites. A site without rows keeps its weights.
        training: As for `fit_many`.
        keys: As for `fit_many`.
        round: As for `fit_many`; dropout follows from it too.
        state: As for `fit_many`.
        anchor: As for `fit_many`.
        shift: As for `fit_many`.
        measure_loss: As for `fit_many`.
        keep_state: As for `fit_many`.
        threads: Not used: sites train one after another.

    Returns:
        The trained weights, [sites, parameters], the losses if asked for, the steps taken, and the optimiser's state.

    Raises:
        ConfigError: A shape, the number type or the round does not fit, or the module changes buffers that do not
            travel.
        DataError: The rows have another width, or a target is no class code.
        SiteError: The weights have another length than the module's parts.
    """
    del threads
    sites = rows.sites
    check_rows(model, rows)
    check_targets(model, rows)
    if round < 0 or np.shape(keys) != (sites,):
        raise ConfigError(f"{np.size(keys)} row-order keys for {sites} sites in round {round}", hint="One per site")
    for given in (weights, *(() if anchor is None else (anchor,)), *(() if shift is None else (shift,))):
        require_vector(given, model.parts, model.factory)
    start = as_matrix("weights", weights, model, sites)
    home = start if anchor is None else as_matrix("anchor", anchor, model, sites)
    shifts = None if shift is None else as_matrix("shift", shift, model, sites)
    trained = np.array(np.broadcast_to(start, (sites, model.parameter_count)), order="C")
    moments = moments_for(training, model, state, sites, keep_state)
    losses = np.full(sites, np.nan)
    taken = np.zeros(sites, dtype=np.int64)
    with pinned():
        for site in np.flatnonzero(rows.counts > 0).tolist():
            own = tensor(trained[site])
            local = SiteTraining(
                own=own,
                home=tensor(np.array(home[site if len(home) > 1 else 0])),
                shift=None if shifts is None else tensor(np.array(shifts[site])),
                first=tensor(moments.first[site]) if len(moments.first) else torch.zeros_like(own),
                second=tensor(moments.second[site]) if len(moments.second) else torch.zeros_like(own),
                done=int(moments.steps[site]),
            )
            losses[site] = _fit_site(model, local, rows.site(site), training, int(keys[site]), round)
            taken[site] = local.done - moments.steps[site]
            moments.steps[site] = local.done
    remembers = len(moments.first) == sites
    return Fitted(trained, losses if measure_loss else None, taken, moments if remembers else None)


def _fit_site(model: TorchModule, local: SiteTraining, rows: Rows, training: Training, key: int, round: int) -> float:
    """Train one site in place; its mean loss."""
    size = min(training.batch, rows.count) if training.batch else rows.count
    module = model.attached(local.own)
    module.train()
    owners = dict(module.named_parameters())
    movers = [owners[part.name] for part in model.parts if part.trained]
    counts = whole_numbers(module)
    total = 0.0
    for epoch in range(training.epochs):
        order = row_order(key, round, epoch, rows.count) if size < rows.count else np.arange(rows.count)
        torch.default_generator.manual_seed(noise_seed(key, round, epoch))
        for begin in range(0, rows.count, size):
            loss, gradient = _differentiate(model, module, movers, rows, order[begin : begin + size])
            local.step(gradient, training, model.frozen, portion=min(1.0, (rows.count - begin) / size))
            total += loss
    refuse_changed(counts, whole_numbers(module), model.factory)
    buffers = dict(module.named_buffers())
    for part in model.parts:
        if part.name in buffers:  # some modules replace a buffer instead of writing into it
            local.own[part.place] = buffers[part.name].detach().reshape(-1)
    return total / (rows.count * training.epochs)


def _differentiate(
    model: TorchModule, module: torch.nn.Module, movers: Sequence[torch.Tensor], rows: Rows, batch: NDArray[np.int64]
) -> tuple[float, torch.Tensor]:
    """The sum of the losses of a mini-batch's rows, and the gradient of their mean as a flat vector."""
    with model.hiding_cells(len(batch)):
        # Indexing copies, so a module that works in place cannot change the site's rows.
        losses = model.row_losses(model.row_scores(module, rows.x[batch]), tensor(rows.y[batch]))
        if rows.weight is not None:
            losses = losses * tensor(rows.weight[batch])
        slopes = iter(torch.autograd.grad(losses.sum() / len(batch), movers, materialize_grads=True))
    still = torch.zeros(model.parameter_count, dtype=model.number)
    flat = [next(slopes).to_dense().reshape(-1) if part.trained else still[part.place] for part in model.parts]
    return float(losses.detach().double().sum()), torch.cat(flat)


def noise_seed(key: int, round: int, epoch: int) -> int:
    """The seed of dropout in one pass over one site's rows.

    Args:
        key: The site's key, 0 to 2^64 - 1.
        round: The round.
        epoch: The pass within the round, from 0.

    Returns:
        A number of 64 bits, a function of the three arguments alone.
    """
    return int.from_bytes(hashlib.blake2b(struct.pack("<QQQ", key, round, epoch), digest_size=8).digest(), "little")
