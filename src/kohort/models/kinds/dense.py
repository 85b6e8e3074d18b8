"""Dense networks as files."""

from __future__ import annotations

from kohort.errors import ConfigError, IntegrityError
from kohort.models.base import SavedModel
from kohort.models.dense.network import Network
from kohort.models.network_model import NetworkModel, assembled
from kohort.models.registry import ModelKind

__all__ = ["KIND"]


def _load(saved: SavedModel) -> NetworkModel:
    try:
        return assembled(Network(**saved.facts["network"]), saved)
    except ConfigError as error:  # nothing can be missing here, so the data is wrong
        raise IntegrityError("the network, the weights and the encoder do not fit together") from error


KIND = ModelKind(name="dense", load=_load)
