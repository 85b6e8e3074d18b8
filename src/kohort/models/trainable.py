"""What a run asks of whatever it trains, and how a plan or a file names something that is not a dense network.

`Network` trains with the compiled kernel; a torch module trains behind the same face. Plans, aggregators, checkpoints,
the door and the ledger see a flat vector in either case. Importing this imports neither torch nor anyone's module.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NotRequired, Protocol, TypedDict, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError
from kohort.models.dense.network import DType, FloatArray, Loss, Network

if TYPE_CHECKING:
    from kohort.models.dense.training import Fitted, OptimiserState, Training
    from kohort.models.rows import StackedRows

__all__ = [
    "FitOptions",
    "Trainable",
    "find_factory",
    "is_torch",
    "network_from_mapping",
    "require_torch",
    "torch_model",
]

_PREFIX = "torch:"
_IMPORTABLE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_SPELLING = 'Write it as "torch:package.module:factory"'


class FitOptions(TypedDict):
    """The keywords of `kohort.models.dense.training.fit_many`, which says what each of them means."""

    training: Training
    keys: NDArray[np.uint64]
    round: int
    state: NotRequired[OptimiserState | None]
    anchor: NotRequired[FloatArray | None]
    shift: NotRequired[FloatArray | None]
    measure_loss: NotRequired[bool]
    keep_state: NotRequired[bool]
    threads: NotRequired[int]


class Trainable(Protocol):
    """A model without its weights, which are one flat vector of `parameter_count` numbers of `dtype`."""

    @property
    def inputs(self) -> int:
        """Columns of the rows it reads."""
        ...

    @property
    def outputs(self) -> int:
        """Scores it gives a row."""
        ...

    @property
    def loss(self) -> Loss:
        """What it is trained with; see `Network` for what each loss costs."""
        ...

    @property
    def dtype(self) -> DType:
        """Number type of rows, weights and scores."""
        ...

    @property
    def parameter_count(self) -> int:
        """Length of the flat vector."""
        ...

    @property
    def classes(self) -> int:
        """How many classes it tells apart; 0 when it predicts a number."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What whoever runs it should know."""
        ...

    def start(self, generator: np.random.Generator) -> FloatArray:
        """Starting weights: the same for the same state of `generator`."""
        ...

    def forward(self, weights: FloatArray, x: FloatArray) -> FloatArray:
        """Raw scores [rows, outputs] of one chunk of rows."""
        ...

    def fit(self, weights: FloatArray, rows: StackedRows, **options: Unpack[FitOptions]) -> Fitted:
        """Train every site of `rows` from `weights`, each as if it were alone."""
        ...

    def tensors(self, weights: FloatArray) -> dict[str, FloatArray]:
        """The named parts of `weights`, for files that others read."""
        ...

    def to_mapping(self) -> dict[str, Any]:
        """Plain values from which `network_from_mapping` makes it again."""
        ...


def is_torch(kind: str) -> bool:
    """Whether `model.kind` names a torch module rather than one of kohort's own networks."""
    return kind.startswith(_PREFIX)


def require_torch(kind: str) -> None:
    """Refuse a `model.kind` whose spelling is wrong, or whose factory or torch itself is not installed here."""
    name = _factory_in(kind)
    _torch_backend()
    find_factory(name)


def find_factory(name: str) -> Callable[..., Any]:
    """The function or class "package.module:factory" that is installed here and takes `inputs` and `outputs`."""
    place, _, attribute = name.partition(":")
    try:
        factory = getattr(importlib.import_module(place), attribute)
        takes = inspect.signature(factory).parameters
    except Exception as error:
        # Importing runs the module, which may fail in any way; whatever happens is about code, not about rows.
        raise ConfigError(
            f"cannot import {attribute!r} from {place!r} ({type(error).__name__}: {error})",
            hint="Install the module where kohort runs, at the hub and at every site, or set PYTHONPATH to its folder",
        ) from error
    # Asked for by these names, nothing is ever called that was not written to be a factory.
    others = [item for item in takes.values() if item.name not in {"inputs", "outputs"} and item.default is item.empty]
    others = [item for item in others if item.kind not in {item.VAR_POSITIONAL, item.VAR_KEYWORD}]
    if not {"inputs", "outputs"} <= set(takes) or others:
        raise ConfigError(
            f"{name!r} does not take inputs and outputs alone", hint="Define it as factory(inputs: int, outputs: int)"
        )
    return cast(Callable[..., Any], factory)


def torch_model(kind: str, *, inputs: int, outputs: int, loss: Loss, dtype: DType) -> Trainable:
    """The module that `kind`, "torch:package.module:factory", makes for so many inputs and outputs."""
    made: Trainable = _torch_backend().TorchModel(
        factory=_factory_in(kind), inputs=inputs, outputs=outputs, loss=loss, dtype=dtype
    )
    return made


def network_from_mapping(mapping: Mapping[str, Any]) -> Trainable:
    """The inverse of `Trainable.to_mapping`. A torch module is built by its factory, which must be installed here."""
    if mapping.get("kind") == "torch":
        made: Trainable = _torch_backend().TorchModel.from_mapping(mapping)
        return made
    return Network(**mapping)


def _factory_in(kind: str) -> str:
    name = kind.removeprefix(_PREFIX)
    is_path = "/" in name or "\\" in name or ".py:" in name
    if is_path or not _IMPORTABLE.fullmatch(name):
        reason = (
            "a plan cannot point to a file, because no code may come with a plan"
            if is_path
            else "that is no importable name"
        )
        raise ConfigError(f"cannot use model {kind!r}: {reason}", hint=f"{_SPELLING}, of a module installed here")
    return name


def _torch_backend() -> Any:
    try:
        from kohort.models.torch import module as torch
    except ImportError as error:
        raise ConfigError(
            "a torch module was asked for and torch cannot be imported",
            hint="Install it with: pip install 'kohort[torch]'",
        ) from error
    return torch
