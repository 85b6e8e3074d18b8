"""Private training of torch modules: row gradients of Opacus, batches and noise from kohort's own keys.

Guarantee: what is drawn, added and charged is as for the dense kernel. A module whose score of one row depends on other
rows has no row gradients: Opacus refuses the layers it knows to be so (BatchNorm), but cannot see into a module that
mixes rows by hand, and no guarantee holds for one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kohort.errors import ConfigError, SiteError
from kohort.models.dense.training import as_matrix, check_targets, moments_for
from kohort.models.dp_sgd.draws import KeyStream, RowSampler, fill_normals, normal_words
from kohort.models.dp_sgd.options import LEAST_CLIP, MOST_CLIP, PrivateFit, PrivateSteps
from kohort.models.options import FloatArray, OptimiserState, Training
from kohort.models.rows import Rows, StackedRows
from kohort.models.torch.module import TorchModule, pinned, tensor
from kohort.models.torch.parts import require_vector
from kohort.models.torch.training import SiteTraining, noise_seed

__all__ = ["fit_private_module"]

_GRADIENT_NUMBERS = 1 << 24
"""Row gradients in memory at once, rows times parameters."""


def fit_private_module(
    model: TorchModule,
    weights: FloatArray,
    rows: StackedRows,
    *,
    training: Training,
    private: PrivateSteps,
    state: OptimiserState | None = None,
    keep_state: bool = False,
) -> PrivateFit:
    """Train a module privately at every site: row gradients by Opacus, batches and noise from the keys.

    Args:
        model: What is trained.
        weights: Starting weights, [parameters] for all alike or [sites, parameters].
        rows: The rows of all sites. A site without rows takes no step.
        training: As for `kohort.models.dp_sgd.fit.fit_private`.
        private: Clip, noise, sampling, steps and noise keys.
        state: What the optimiser remembers of the last call for the same sites; None to begin anew.
        keep_state: Whether the optimiser's state is wanted back, though none was given.

    Returns:
        The trained weights, [sites, parameters], the steps taken, the optimiser's state, and the clips of all steps.

    Raises:
        ConfigError: Opacus is not installed, or the module has no gradient of a single row or keeps something of its
            rows.
        DataError: A target is no class code.
        SiteError: The weights have another length, or the gradient of a row is not finite.
    """
    sites = rows.sites
    check_targets(model, rows)
    require_vector(weights, model.parts, model.factory)
    start = as_matrix("weights", weights, model, sites)
    trained = np.array(np.broadcast_to(start, (sites, model.parameter_count)), order="C")
    moments = moments_for(training, model, state, sites, keep_state)
    taken = np.where(private.divisors(rows.counts) > 0, private.steps, 0).astype(np.int64)
    clips, shares = private.histories(taken)
    with pinned():
        for site in np.flatnonzero(taken).tolist():
            own = tensor(trained[site])
            local = SiteTraining(
                own=own,
                home=own.clone(),
                shift=None,
                first=tensor(moments.first[site]) if len(moments.first) else torch.zeros_like(own),
                second=tensor(moments.second[site]) if len(moments.second) else torch.zeros_like(own),
                done=int(moments.steps[site]),
            )
            _fit_private_site(model, local, rows.site(site), training, private, site, clips[site], shares[site])
            moments.steps[site] = local.done
    return PrivateFit(trained, None, taken, moments if len(moments.first) == sites else None, clips, shares)


def _fit_private_site(
    model: TorchModule,
    local: SiteTraining,
    rows: Rows,
    training: Training,
    private: PrivateSteps,
    site: int,
    clips: NDArray[np.float64],
    shares: NDArray[np.float64],
) -> None:
    """Take a site's steps in place."""
    key, rate, steps = private.keys[site], float(private.rate[site]), len(clips) - 1
    quantile, clip_rate, count_sigma = private.moving
    sampler, noise = RowSampler(key, rate=rate, count=rows.count), KeyStream(key, b"noise")
    words = np.empty(normal_words(model.parameter_count + 1), dtype=np.uint64)
    normals = np.empty(len(words))
    module = model.attached(local.own)
    module.train()
    clipper = _Clipper(model, module)
    before = {name: item.detach().clone() for name, item in module.named_buffers()}
    torch.default_generator.manual_seed(noise_seed(int.from_bytes(key[:8], "little"), 0, 0))
    expected = rate * (rows.count if private.declared is None else int(private.declared[site]))
    average_from = steps - math.ceil(private.average * steps)
    summed = np.zeros(model.parameter_count)
    for step in range(steps):
        order, begins, ends = sampler.batches(1)
        batch = order[begins[0] : ends[0]]
        total, inside = clipper.clipped_sum(rows, batch, float(clips[step]))
        noise.fill(words)
        fill_normals(words, normals)
        total += float(private.sigma[site]) * clips[step] * normals[: model.parameter_count]
        if clip_rate:
            shares[step] = 0.5 + (inside - 0.5 * len(batch) + count_sigma * normals[model.parameter_count]) / expected
            moved = clips[step] * math.exp(-clip_rate * (shares[step] - quantile))
            clips[step + 1] = min(MOST_CLIP, max(LEAST_CLIP, moved))
        local.step(tensor((total / expected).astype(model.dtype)), training, model.frozen)
        if step >= average_from:
            summed += local.own.numpy()
    changed = [name for name, item in module.named_buffers() if not torch.equal(before[name], item)]
    if changed:
        raise ConfigError(
            f"module {model.factory!r} keeps something of its rows in {len(changed)} buffers: {', '.join(changed)}",
            hint="What noise does not cover must not travel: train it without DP, or drop the buffers",
        )
    if average_from < steps:
        local.own[:] = tensor((summed / (steps - average_from)).astype(model.dtype))


class _Clipper:
    """Sums of clipped row gradients of one module."""

    def __init__(self, model: TorchModule, module: torch.nn.Module) -> None:
        try:
            from opacus import GradSampleModule
            from opacus.validators import ModuleValidator
        except ImportError as error:
            raise ConfigError(
                "private training of a torch module needs Opacus, which cannot be imported",
                hint="Install it with: pip install 'kohort[torch]'",
            ) from error
        wrong = ModuleValidator.validate(module, strict=False)
        try:
            wrapped = GradSampleModule(module, loss_reduction="sum")
        except NotImplementedError as error:
            wrong = [*wrong, error]
        if wrong:
            raise ConfigError(
                f"module {model.factory!r} has no gradient of a single row: {wrong[0]}",
                hint="Replace BatchNorm by GroupNorm or LayerNorm, and other layers that mix rows",
            )
        self._model, self._module = model, wrapped
        owners: dict[str, Any] = dict(module.named_parameters())  # Opacus gives them another attribute
        self._owners = [(part.place, owners[part.name]) for part in model.parts if part.trained]

    def clipped_sum(self, rows: Rows, batch: NDArray[np.int64], clip: float) -> tuple[NDArray[np.float64], int]:
        """The sum [parameters] over the rows of a batch, and how many of their norms were at most the clip."""
        total = np.zeros(self._model.parameter_count)
        at_once = max(1, _GRADIENT_NUMBERS // self._model.parameter_count)
        inside = 0
        for begin in range(0, len(batch), at_once):
            part = batch[begin : begin + at_once]
            with self._model.hiding_cells(len(part)):
                gradients = self._row_gradients(rows, part)
            norms = gradients.norm(dim=1)
            if not bool(torch.isfinite(norms).all()):
                raise SiteError(
                    "the gradient of a row is not finite, so no bound holds for it and nothing was released",
                    hint="Scale features to a few units around 0, or use a smaller train.lr",
                )
            inside += int((norms <= clip).sum())
            total += ((clip / norms.clamp(min=clip)) @ gradients).numpy()
        return total, inside

    def _row_gradients(self, rows: Rows, part: NDArray[np.int64]) -> torch.Tensor:
        """[rows, parameters] in float64; zero for what the module does not use or does not train."""
        losses = self._model.row_losses(self._model.row_scores(self._module, rows.x[part]), tensor(rows.y[part]))
        if rows.weight is not None:
            losses = losses * tensor(rows.weight[part])
        torch.autograd.backward(losses.sum())
        gradients = torch.zeros(len(part), self._model.parameter_count, dtype=torch.float64)
        for place, owner in self._owners:
            if owner.grad_sample is not None:
                gradients[:, place] = owner.grad_sample.reshape(len(part), -1)
            owner.grad = owner.grad_sample = None
        return gradients
