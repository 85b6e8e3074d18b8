"""The model kind `syntactic`: a network that reads rows under the classes that sites published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from kohort.errors import ConfigError, IntegrityError
from kohort.methods.syntactic.mapped_encoder import MAPPINGS, WEIGHTS, MappedEncoder
from kohort.models.base import Remarks, SavedModel
from kohort.models.network_model import NetworkModel
from kohort.models.registry import ModelKind, find_kind

__all__ = ["KIND", "MappedModel"]


@dataclass(frozen=True, eq=False, repr=False)
class MappedModel(NetworkModel):
    """A network whose encoder places every row under a published class first."""

    encoder: MappedEncoder

    @property
    def kind(self) -> str:
        """The name of the method that makes such models."""
        return "syntactic"

    def describe(self) -> dict[str, Any]:
        """What every network says, and how many classes rows are placed under."""
        return {**super().describe(), "published_classes": self.encoder.classes_known.count}

    def remarks(self, frame: pl.DataFrame) -> Remarks:
        """How many rows no published class is legitimate for."""
        if not frame.height:
            return Remarks()
        flagged = self.encoder.place(frame).flagged_count
        return Remarks(
            notes=(f"no class is legitimate for {flagged:,} of {frame.height:,} test rows; they got the nearest one",),
            facts={"test_rows": frame.height, "test_rows_without_class": flagged},
        )

    def read_as(self, frame: pl.DataFrame) -> list[pl.Series]:
        """The class of each row: whose it is and which, whether it is legitimate, and what the row loses there.

        Args:
            frame: The rows.

        Returns:
            `class_site`, `class` (counted from 0 among the classes of that site), `class_legitimate`, `class_cost`.
        """
        placed, joint = self.encoder.place(frame), self.encoder.classes_known
        first = np.searchsorted(joint.site_of, np.arange(len(joint.sites)))
        return [
            pl.Series("class_site", joint.sites, dtype=pl.String).gather(placed.site_of),
            pl.Series("class", placed.class_of - first[placed.site_of]),
            pl.Series("class_legitimate", ~placed.flagged),
            pl.Series("class_cost", placed.loss),
        ]


def _load(saved: SavedModel) -> MappedModel:
    network, encoder = saved.facts["network"], saved.facts["encoder"]
    inner = find_kind("torch" if "factory" in network else "dense")
    if inner is None:
        raise IntegrityError("the network is of no known kind")
    plain = {name: value for name, value in encoder.items() if name not in (MAPPINGS, WEIGHTS)}
    found = inner.kind.load(SavedModel(facts={"network": network, "encoder": plain}, arrays=saved.arrays))
    if not isinstance(found, NetworkModel):
        raise IntegrityError("the model under the classes is no network")
    try:
        return MappedModel(found.network, found.weights, MappedEncoder.from_mapping(encoder))
    except ConfigError as error:  # the classes come with the model, so nothing can be missing here
        raise IntegrityError("the classes and the encoder do not fit together") from error


KIND = ModelKind(name="syntactic", load=_load)
