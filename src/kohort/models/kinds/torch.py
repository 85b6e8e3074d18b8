"""Torch modules as files: the factory that the file names must be installed where the model is read."""

from __future__ import annotations

from kohort.models.base import SavedModel
from kohort.models.network_model import NetworkModel, assembled
from kohort.models.registry import ModelKind
from kohort.models.torch.build import torch_from_mapping

__all__ = ["KIND"]


def _load(saved: SavedModel) -> NetworkModel:
    return assembled(torch_from_mapping(saved.facts["network"]), saved)


KIND = ModelKind(name="torch", load=_load)
