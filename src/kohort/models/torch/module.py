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

Training is in `torch.training`, private training in `torch.private`.

It is slower than the dense kernel: a Python loop and an automatic derivative for every mini-batch of every site, where
the kernel trains all sites in one compiled call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from kohort.errors import ConfigError, KohortError, SiteError
from kohort.models.dense.shape import DenseShape
from kohort.models.options import DType, FloatArray, Loss
from kohort.models.torch.factories import find_factory
from kohort.models.torch.parts import ParameterSlice, lay_out, require_same, require_vector

__all__ = ["TorchModule", "pinned", "refuse_changed", "tensor", "whole_numbers"]

_BUILD_SEED = 0
"""Modules for training and scoring are built with this seed, so that what does not travel is alike everywhere."""


@dataclass(frozen=True, kw_only=True)
class TorchModule:
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
        DenseShape(inputs=self.inputs, outputs=self.outputs, loss=self.loss, dtype=self.dtype)  # the same rules
        with pinned():
            module = self._build()
            object.__setattr__(self, "parts", _parts_of(module, self.factory))
            self._try_out(module)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
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
        with pinned():
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
        with pinned(), torch.no_grad():
            module = self.attached(tensor(np.array(weights, dtype=self.dtype)))
            module.eval()
            with self.hiding_cells(x.shape[0]):
                scores: FloatArray = self.row_scores(module, np.array(x, dtype=self.dtype)).numpy()
        return scores

    @contextmanager
    def hiding_cells(self, rows: int) -> Iterator[None]:
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

    def row_scores(self, module: torch.nn.Module, x: FloatArray) -> torch.Tensor:
        """What the module answers, refused when it is not [rows, outputs] in the number type of the rows."""
        scores = module(tensor(x))
        wanted = (x.shape[0], self.outputs)
        if not isinstance(scores, torch.Tensor) or tuple(scores.shape) != wanted or scores.dtype != self.number:
            given = (
                f"{scores.dtype} {tuple(scores.shape)}" if isinstance(scores, torch.Tensor) else type(scores).__name__
            )
            raise ConfigError(
                f"module {self.factory!r} answers {x.shape[0]} rows with {given} instead of {self.number} {wanted}",
                hint="Return raw scores [rows, outputs] in the number type of the rows",
            )
        return scores

    def row_losses(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of every row."""
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
        return module.to(self.number)

    def _try_out(self, module: torch.nn.Module) -> None:
        """Train and score made-up rows once: what fails here would fail at every site, and may be told in full."""
        counts = whole_numbers(module)
        try:
            for mode, count in ((True, 2), (False, 1)):
                module.train(mode)
                scores = self.row_scores(module, np.zeros((count, self.inputs), dtype=self.dtype))
                if mode:
                    owners = [item for item in module.parameters() if item.requires_grad]
                    losses = self.row_losses(scores, torch.zeros(count, dtype=self.number))
                    torch.autograd.grad(losses.sum(), owners, allow_unused=True)
        except KohortError:
            raise
        except Exception as error:
            raise ConfigError(
                f"module {self.factory!r} cannot be trained: {type(error).__name__}: {error}",
                hint=f"It was given 2 rows of {self.inputs} zeros",
            ) from error
        refuse_changed(counts, whole_numbers(module), self.factory)

    def attached(self, flat: torch.Tensor) -> torch.nn.Module:
        """A new module that lives in `flat`: what is written there is the module's."""
        module = self._build()
        require_same([(part.name, part.shape) for part in self.parts], _parts_of(module, self.factory), self.factory)
        owners = _travelling(module)
        for part in self.parts:
            owners[part.name].data = flat[part.place].view(part.shape)
        return module

    @property
    def number(self) -> torch.dtype:
        """`dtype` as torch calls it."""
        return torch.float32 if self.dtype == "float32" else torch.float64

    @property
    def frozen(self) -> tuple[slice, ...]:
        """Where the numbers are that no optimiser moves."""
        return tuple(part.place for part in self.parts if not part.trained)


@contextmanager
def pinned() -> Iterator[None]:
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


def tensor(array: NDArray[Any]) -> torch.Tensor:
    """A tensor in the memory of an array: what is written to one is in the other.

    Args:
        array: The array, writable.

    Returns:
        The tensor, of the same shape and type.
    """
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


def whole_numbers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the buffers of whole numbers that must not change, because they do not travel.

    Args:
        module: The module. A count of batches that BatchNorm does not use, because it has a momentum, is left out.

    Returns:
        The copies, by the name of the buffer.
    """
    found = {}
    for place, inner in module.named_modules():
        for name, buffer in inner.named_buffers(recurse=False):
            unused = name == "num_batches_tracked" and getattr(inner, "momentum", None) is not None
            if _is_whole(buffer) and not unused:
                found[f"{place}.{name}".removeprefix(".")] = buffer.clone()
    return found


def refuse_changed(before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor], factory: str) -> None:
    """Refuse a module that changed buffers of whole numbers while it trained.

    Args:
        before: What `whole_numbers` gave before training.
        after: What it gave afterwards.
        factory: The module's factory, for the error.

    Raises:
        ConfigError: naming the buffers.
    """
    changed = [name for name, buffer in before.items() if name not in after or not torch.equal(buffer, after[name])]
    if changed:
        raise ConfigError(
            f"module {factory!r} changes {len(changed)} buffers of whole numbers while it trains, "
            f"and they do not travel: {', '.join(changed)}",
            hint="Give BatchNorm a momentum, and keep counts in float buffers",
        )
