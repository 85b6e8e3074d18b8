"""Any `torch.nn.Module` as one flat vector, trained by the rules of the dense kernel. Needs the extra `kohort[torch]`.

Guarantees: rows come in the order, mini-batches and with the losses and optimisers of `models.dense.training`; what a
site learns depends on its own rows, key and starting weights alone, because every site gets a module the factory has
just built, one thread and random numbers keyed by (key, round, epoch). So sites one by one equal many at once, bit for
bit, and a run can be resumed at any round. torch's global settings and random state are left as they were found.

The flat vector holds the parameters in the order of `named_parameters()`, each row by row, then the persistent float
buffers in the order of `named_buffers()`. Buffers are not trained by the optimiser: what the module itself makes of
them (the running means of BatchNorm) travels and is averaged with the rest. Buffers of whole numbers stay as the
factory makes them and do not travel; a module that changes one while it trains is refused, save for the count of
batches that BatchNorm keeps and only needs when it has no momentum.

Private training is in `torch_private`.

It is slower than the dense kernel: a Python loop and an automatic derivative for every mini-batch of every site, where
the kernel trains all sites in one compiled call.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from kohort.errors import ConfigError, KohortError, SiteError
from kohort.models.dense.network import DType, FloatArray, Loss, Network
from kohort.models.dense.training import (
    Fitted,
    OptimiserState,
    Training,
    as_matrix,
    check_rows,
    check_targets,
    moments_for,
    row_order,
)
from kohort.models.rows import Rows, StackedRows
from kohort.models.torch.parts import ParameterSlice, lay_out, require_same, require_vector
from kohort.models.trainable import find_factory

__all__ = ["TorchModel"]

_BUILD_SEED = 0
"""Modules for training and scoring are built with this seed, so that what does not travel is alike everywhere."""


@dataclass(frozen=True, kw_only=True)
class TorchModel:
    """A module by the name of its factory, "package.module:factory": `factory(inputs=, outputs=)` gives the module.

    The module maps rows [n, inputs] to raw scores [n, outputs], without a softmax or a sigmoid at the end.
    """

    factory: str
    inputs: int
    outputs: int
    loss: Loss = "softmax"
    dtype: DType = "float32"
    parts: tuple[ParameterSlice, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        Network(inputs=self.inputs, outputs=self.outputs, loss=self.loss, dtype=self.dtype)  # the same rules
        with _pinned():
            module = self._build()
            object.__setattr__(self, "parts", _parts_of(module, self.factory))
            self._try_out(module)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> TorchModel:
        """The inverse of `to_mapping`; refuses a factory that makes another module by now."""
        model = cls(**{name: mapping[name] for name in ("factory", "inputs", "outputs", "loss", "dtype")})
        require_same([(str(name), tuple(shape)) for name, shape in mapping["parts"]], model.parts, model.factory)
        return model

    def to_mapping(self) -> dict[str, Any]:
        """Plain values: the factory's name, what it is called with, and what the vector consists of."""
        return {
            "kind": "torch",
            "factory": self.factory,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "loss": self.loss,
            "dtype": self.dtype,
            "parts": [[part.name, list(part.shape)] for part in self.parts],
        }

    @property
    def parameter_count(self) -> int:
        """Length of the flat vector, buffers included."""
        return self.parts[-1].end

    @property
    def classes(self) -> int:
        """How many classes the module tells apart; 0 when it predicts a number."""
        return 0 if self.loss == "squared" else max(2, self.outputs)

    @property
    def notes(self) -> tuple[str, ...]:
        """That this is the slow way."""
        return (
            f"the torch module {self.factory!r} trains slower than a network of kohort's own: a Python loop and "
            "autograd a site and mini-batch, where the dense kernel trains all sites in one compiled call",
        )

    def start(self, generator: np.random.Generator) -> FloatArray:
        """The numbers the factory's module is made with, under a seed drawn from `generator`."""
        seed = int(generator.integers(0, 2**63))
        with _pinned():
            modules = [self._build(seed), self._build(seed)]
            parts = [[item.detach().reshape(-1).numpy() for item in _travelling(made).values()] for made in modules]
            numbers, again = (np.concatenate(numbers) for numbers in parts)
        if modules[0] is modules[1] or not np.array_equal(numbers, again, equal_nan=True):
            raise ConfigError(
                f"factory {self.factory!r} does not start alike twice from one seed",
                hint="Make a new module in every call, and draw its numbers from torch alone",
            )
        return numbers

    def tensors(self, weights: FloatArray) -> dict[str, FloatArray]:
        """Parameters and buffers by their names in the module, as its `state_dict` has them."""
        require_vector(weights, self.parts, self.factory)
        return {f"module.{part.name}": weights[part.place].reshape(part.shape).copy() for part in self.parts}

    def forward(self, weights: FloatArray, x: FloatArray) -> FloatArray:
        """Raw scores [rows, outputs], in evaluation mode."""
        require_vector(weights, self.parts, self.factory)
        with _pinned(), torch.no_grad():
            module = self._attached(_tensor(np.array(weights, dtype=self.dtype)))
            module.eval()
            with self._telling_no_cell(x.shape[0]):
                scores: FloatArray = self._scores(module, np.array(x, dtype=self.dtype)).numpy()
        return scores

    def fit(
        self,
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
        """`fit_many` for this module. `threads` has no effect: sites train one after another."""
        del threads
        sites = rows.sites
        check_rows(self, rows)
        check_targets(self, rows)
        if round < 0 or np.shape(keys) != (sites,):
            raise ConfigError(f"{np.size(keys)} row-order keys for {sites} sites in round {round}", hint="One a site")
        for given in (weights, *(() if anchor is None else (anchor,)), *(() if shift is None else (shift,))):
            require_vector(given, self.parts, self.factory)
        start = as_matrix("weights", weights, self, sites)
        home = start if anchor is None else as_matrix("anchor", anchor, self, sites)
        shifts = None if shift is None else as_matrix("shift", shift, self, sites)
        trained = np.array(np.broadcast_to(start, (sites, self.parameter_count)), order="C")
        moments = moments_for(training, self, state, sites, keep_state)
        losses = np.full(sites, np.nan)
        taken = np.zeros(sites, dtype=np.int64)
        with _pinned():
            for site in np.flatnonzero(rows.counts > 0).tolist():
                own = _tensor(trained[site])
                local = _Local(
                    own=own,
                    home=_tensor(np.array(home[site if len(home) > 1 else 0])),
                    shift=None if shifts is None else _tensor(np.array(shifts[site])),
                    first=_tensor(moments.first[site]) if len(moments.first) else torch.zeros_like(own),
                    second=_tensor(moments.second[site]) if len(moments.second) else torch.zeros_like(own),
                    done=int(moments.steps[site]),
                )
                losses[site] = self._fit_site(local, rows.site(site), training, int(keys[site]), round)
                taken[site] = local.done - moments.steps[site]
                moments.steps[site] = local.done
        remembers = len(moments.first) == sites
        return Fitted(trained, losses if measure_loss else None, taken, moments if remembers else None)

    def _fit_site(self, local: _Local, rows: Rows, training: Training, key: int, round: int) -> float:
        """Train one site in place; its mean loss."""
        size = min(training.batch, rows.count) if training.batch else rows.count
        module = self._attached(local.own)
        module.train()
        owners = dict(module.named_parameters())
        movers = [owners[part.name] for part in self.parts if part.trained]
        counts = _whole_numbers(module)
        total = 0.0
        for epoch in range(training.epochs):
            order = row_order(key, round, epoch, rows.count) if size < rows.count else np.arange(rows.count)
            torch.default_generator.manual_seed(_noise_seed(key, round, epoch))
            for begin in range(0, rows.count, size):
                loss, gradient = self._differentiate(module, movers, rows, order[begin : begin + size])
                local.step(gradient, training, self._frozen)
                total += loss
        _refuse_changed(counts, _whole_numbers(module), self.factory)
        buffers = dict(module.named_buffers())
        for part in self.parts:
            if part.name in buffers:  # some modules replace a buffer instead of writing into it
                local.own[part.place] = buffers[part.name].detach().reshape(-1)
        return total / (rows.count * training.epochs)

    def _differentiate(
        self, module: torch.nn.Module, movers: Sequence[torch.Tensor], rows: Rows, batch: NDArray[np.int64]
    ) -> tuple[float, torch.Tensor]:
        """The sum of the losses of a mini-batch's rows, and the gradient of their mean as a flat vector."""
        with self._telling_no_cell(len(batch)):
            # Indexing copies, so a module that works in place cannot change the site's rows.
            losses = self._row_losses(self._scores(module, rows.x[batch]), _tensor(rows.y[batch]))
            if rows.weight is not None:
                losses = losses * _tensor(rows.weight[batch])
            slopes = iter(torch.autograd.grad(losses.sum() / len(batch), movers, materialize_grads=True))
        still = torch.zeros(self.parameter_count, dtype=self._number)
        flat = [next(slopes).to_dense().reshape(-1) if part.trained else still[part.place] for part in self.parts]
        return float(losses.detach().double().sum()), torch.cat(flat)

    @contextmanager
    def _telling_no_cell(self, rows: int) -> Iterator[None]:
        """Messages of torch can hold values of cells ("index 17 is out of range"), so only their type is told."""
        try:
            yield
        except (KohortError, MemoryError):
            raise
        except Exception as error:
            raise SiteError(
                f"module {self.factory!r} failed with {type(error).__name__} on {rows} rows",
                hint="BatchNorm cannot train on one row: choose another train.batch"
                if rows == 1
                else "Try the module on rows of your own",
            ) from None

    def _scores(self, module: torch.nn.Module, x: FloatArray) -> torch.Tensor:
        scores = module(_tensor(x))
        wanted = (x.shape[0], self.outputs)
        if not isinstance(scores, torch.Tensor) or tuple(scores.shape) != wanted or scores.dtype != self._number:
            given = (
                f"{scores.dtype} {tuple(scores.shape)}" if isinstance(scores, torch.Tensor) else type(scores).__name__
            )
            raise ConfigError(
                f"module {self.factory!r} answers {x.shape[0]} rows with {given} instead of {self._number} {wanted}",
                hint="Return raw scores [rows, outputs] in the number type of the rows",
            )
        return scores

    def _row_losses(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.loss == "softmax":
            return functional.cross_entropy(scores, y.long(), reduction="none")
        if self.loss == "logistic":
            return functional.binary_cross_entropy_with_logits(scores[:, 0], y, reduction="none")
        if self.loss == "squared":
            return torch.square(scores[:, 0] - y)
        codes = torch.arange(self.outputs) if self.outputs > 1 else torch.ones(1)
        side = (y[:, None] == codes).to(scores.dtype) * 2 - 1
        # clamp, unlike relu, has a slope on the edge itself, as the dense kernel does.
        return torch.clamp((1.0 if self.loss == "hinge" else 0.0) - side * scores, min=0.0).sum(dim=1)

    def _build(self, seed: int = _BUILD_SEED) -> torch.nn.Module:
        make = find_factory(self.factory)
        torch.default_generator.manual_seed(seed)
        try:
            with torch.device("cpu"):
                module = make(inputs=self.inputs, outputs=self.outputs)
        except Exception as error:
            raise ConfigError(
                f"factory {self.factory!r} failed with {type(error).__name__}: {error}",
                hint=f"It was asked for {self.inputs} inputs and {self.outputs} outputs",
            ) from error
        if not isinstance(module, torch.nn.Module):
            raise ConfigError(
                f"factory {self.factory!r} gave a {type(module).__name__}", hint="Return a torch.nn.Module"
            )
        _refuse_strange(module, self.factory)
        return module.to(self._number)

    def _try_out(self, module: torch.nn.Module) -> None:
        """Train and score made-up rows once: what fails here would fail at every site, and may be told in full."""
        counts = _whole_numbers(module)
        try:
            for mode, count in ((True, 2), (False, 1)):
                module.train(mode)
                scores = self._scores(module, np.zeros((count, self.inputs), dtype=self.dtype))
                if mode:
                    owners = [item for item in module.parameters() if item.requires_grad]
                    losses = self._row_losses(scores, torch.zeros(count, dtype=self._number))
                    torch.autograd.grad(losses.sum(), owners, allow_unused=True)
        except KohortError:
            raise
        except Exception as error:
            raise ConfigError(
                f"module {self.factory!r} cannot be trained: {type(error).__name__}: {error}",
                hint=f"It was given 2 rows of {self.inputs} zeros",
            ) from error
        _refuse_changed(counts, _whole_numbers(module), self.factory)

    def _attached(self, flat: torch.Tensor) -> torch.nn.Module:
        """A new module that lives in `flat`: what is written there is the module's."""
        module = self._build()
        require_same([(part.name, part.shape) for part in self.parts], _parts_of(module, self.factory), self.factory)
        owners = _travelling(module)
        for part in self.parts:
            owners[part.name].data = flat[part.place].view(part.shape)
        return module

    @property
    def _number(self) -> torch.dtype:
        return torch.float32 if self.dtype == "float32" else torch.float64

    @property
    def _frozen(self) -> tuple[slice, ...]:
        return tuple(part.place for part in self.parts if not part.trained)


@dataclass
class _Local:
    """One site while it trains: its weights and what its optimiser remembers, in memory shared with the result."""

    own: torch.Tensor
    home: torch.Tensor
    shift: torch.Tensor | None
    first: torch.Tensor
    second: torch.Tensor
    done: int

    def step(self, gradient: torch.Tensor, training: Training, frozen: Sequence[slice]) -> None:
        """One optimiser step with the conventions of torch.optim, and of the dense kernel."""
        if self.shift is not None:
            gradient.add_(self.shift)
        if training.l2:
            gradient.add_(self.own, alpha=training.l2)
        if training.prox:
            gradient.add_(self.own - self.home, alpha=training.prox)
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


@contextmanager
def _pinned() -> Iterator[None]:
    """One thread, repeatable algorithms, gradients on, and random numbers to seed; afterwards all as it was before."""
    threads, number = torch.get_num_threads(), torch.get_default_dtype()
    strictness = torch.get_deterministic_debug_mode()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    torch.set_deterministic_debug_mode("error")
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(number)
        torch.set_deterministic_debug_mode(strictness)


def _noise_seed(key: int, round: int, epoch: int) -> int:
    """The seed of dropout in one pass over one site's rows."""
    return int.from_bytes(hashlib.blake2b(struct.pack("<QQQ", key, round, epoch), digest_size=8).digest(), "little")


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """A tensor in the memory of `array`."""
    return torch.from_numpy(array)


def _travelling(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, then persistent buffers that are not whole numbers: what the flat vector holds, in its order."""
    kept = module.state_dict(keep_vars=True)
    buffers = {name: item for name, item in module.named_buffers() if name in kept and not _is_whole(item)}
    return {**dict(module.named_parameters()), **buffers}


def _parts_of(module: torch.nn.Module, factory: str) -> tuple[ParameterSlice, ...]:
    parts = lay_out((name, item.shape, item.requires_grad) for name, item in _travelling(module).items())
    if not any(part.trained and part.end > part.begin for part in parts):
        raise ConfigError(
            f"module {factory!r} has {len(parts)} parameters and buffers and nothing to train",
            hint="Give it parameters that require gradients",
        )
    return parts


def _refuse_strange(module: torch.nn.Module, factory: str) -> None:
    """Only plain 32 and 64 bit floats in main memory can be averaged, masked and encrypted as vectors."""
    numbers = _travelling(module)
    for name, tensor in numbers.items():
        if torch.nn.parameter.is_lazy(tensor):
            found = "has no shape yet"
        elif tensor.layout != torch.strided:
            found = "is sparse"
        elif tensor.dtype not in {torch.float32, torch.float64}:
            found = f"holds {str(tensor.dtype).removeprefix('torch.')}"
        elif tensor.device.type != "cpu":
            found = f"is on the device {tensor.device.type}"
        else:
            continue
        raise ConfigError(
            f"{name!r} of module {factory!r} {found}, 1 of its {len(numbers)} parameters and buffers",
            hint="Use dense float32 or float64 parameters of known shape on the CPU",
        )


def _is_whole(tensor: torch.Tensor) -> bool:
    return not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def _whole_numbers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the buffers of whole numbers that must not change, because they do not travel."""
    found = {}
    for place, inner in module.named_modules():
        for name, buffer in inner.named_buffers(recurse=False):
            unused = name == "num_batches_tracked" and getattr(inner, "momentum", None) is not None
            if _is_whole(buffer) and not unused:
                found[f"{place}.{name}".removeprefix(".")] = buffer.clone()
    return found


def _refuse_changed(before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor], factory: str) -> None:
    changed = [name for name, buffer in before.items() if name not in after or not torch.equal(buffer, after[name])]
    if changed:
        raise ConfigError(
            f"module {factory!r} changes {len(changed)} buffers of whole numbers while it trains, "
            f"and they do not travel: {', '.join(changed)}",
            hint="Give BatchNorm a momentum, and keep counts in float buffers",
        )
