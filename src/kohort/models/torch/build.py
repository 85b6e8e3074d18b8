"""Make torch modules by name. torch itself, which is an extra, is imported when the first one is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kohort.errors import ConfigError
from kohort.models.options import DType, Loss
from kohort.models.torch.factories import factory_in, find_factory
from kohort.models.trainable import Trainable

if TYPE_CHECKING:
    from kohort.models.torch.network import TorchNetwork

__all__ = ["require_torch", "torch_from_mapping", "torch_model"]


def require_torch(kind: str) -> None:
    """Refuse a `model.kind` whose spelling is wrong, or whose factory or torch itself is not installed here.

    Args:
        kind: "torch:package.module:factory".

    Raises:
        ConfigError: the name is no importable one, or something it needs is missing.
    """
    name = factory_in(kind)
    _torch_network()
    find_factory(name)


def torch_model(kind: str, *, inputs: int, outputs: int, loss: Loss, dtype: DType) -> Trainable:
    """The module that a factory makes for so many inputs and outputs.

    Args:
        kind: "torch:package.module:factory", of a module that is installed here.
        inputs: How many numbers a row has.
        outputs: How many scores the module gives per row.
        loss: What it is trained with.
        dtype: The type of its parameters.

    Returns:
        The module, to be trained as dense networks are.

    Raises:
        ConfigError: The factory or torch is not installed, or makes a module that cannot be trained as one flat vector.
    """
    return _torch_network()(factory=factory_in(kind), inputs=inputs, outputs=outputs, loss=loss, dtype=dtype)


def torch_from_mapping(mapping: Mapping[str, Any]) -> Trainable:
    """The module of a stored mapping; its factory must be installed here and make the same module as then.

    Args:
        mapping: What `to_mapping` of the module gave.

    Returns:
        The module.

    Raises:
        ConfigError: The factory or torch is not installed, or makes another module now.
    """
    return _torch_network().from_mapping(mapping)


def _torch_network() -> type[TorchNetwork]:
    try:
        from kohort.models.torch.network import TorchNetwork
    except ImportError as error:
        raise ConfigError(
            "a torch module was asked for and torch cannot be imported",
            hint="Install it with: pip install 'kohort[torch]'",
        ) from error
    return TorchNetwork
