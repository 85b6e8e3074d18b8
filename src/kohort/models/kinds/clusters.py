"""The names of clusters, in place of a model, as files."""

from __future__ import annotations

from kohort.models.base import SavedModel
from kohort.models.cluster_names import NoCommonModel
from kohort.models.registry import ModelKind
from kohort.tables.encoder import Encoder

__all__ = ["KIND"]


def _load(saved: SavedModel) -> NoCommonModel:
    clusters = {str(name): tuple(map(str, sites)) for name, sites in saved.facts["clusters"].items()}
    return NoCommonModel(Encoder.from_mapping(saved.facts["encoder"]), clusters)


KIND = ModelKind(name="clusters", load=_load)
