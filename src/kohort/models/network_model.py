"""Models that are a network and one vector of weights: dense networks, torch modules, and what methods make of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import IntegrityError
from kohort.models.base import Model, SavedModel
from kohort.models.options import FloatArray
from kohort.models.rows import target_range
from kohort.models.scoring import predict, probabilities, scores
from kohort.models.trainable import Trainable
from kohort.tables.encoder import Encoder

__all__ = ["NetworkModel", "assembled"]


@dataclass(frozen=True, eq=False, repr=False)
class NetworkModel(Model):
    """A network, its weights, and the encoder that turns tables into its inputs. Its kind is the network's."""

    network: Trainable
    weights: FloatArray
    encoder: Encoder

    @property
    def kind(self) -> str:
        """dense or torch, unless a method reads rows in a way of its own."""
        return self.network.kind

    @property
    def diverged(self) -> bool:
        """Whether a weight is not finite."""
        return not bool(np.isfinite(self.weights).all())

    def codes(self, x: FloatArray) -> NDArray[Any]:
        """Class codes of encoded rows, or numbers on the target's own scale."""
        found = predict(self.network, self.weights, x)
        if self.task == "classification":
            return found
        low, width = target_range(self.encoder)
        return found.astype(np.float64) * width + low

    def probabilities(self, x: FloatArray) -> FloatArray:
        """Class probabilities [rows, classes]; an error for losses that give none, such as hinge."""
        return probabilities(self.network, self.weights, x)

    def ranking(self, x: FloatArray) -> FloatArray:
        """Probabilities, or the raw scores of networks that have none."""
        if self.network.loss in {"softmax", "logistic"}:
            return self.probabilities(x)
        raw = self.scores(x)
        return np.hstack([-raw, raw]) if raw.shape[1] == 1 else raw

    def scores(self, x: FloatArray) -> FloatArray:
        """The raw outputs of the network [rows, outputs]."""
        return scores(self.network, self.weights, x)

    def save(self) -> SavedModel:
        """Network and encoder as plain values; the weights whole, and by layer for others to read."""
        return SavedModel(
            facts={"network": self.network.to_mapping(), "encoder": self.encoder.to_mapping()},
            arrays={"weights": self.weights, **self.network.tensors(self.weights)},
        )

    def describe(self) -> dict[str, Any]:
        """What every model says, the network's own facts and its number of parameters."""
        own = {key: value for key, value in self.network.to_mapping().items() if key not in {"kind", "parts"}}
        return {**super().describe(), "network": own, "parameters": self.network.parameter_count}


def assembled(network: Trainable, saved: SavedModel) -> NetworkModel:
    """The model of a network with the weights and the encoder that were stored.

    Args:
        network: the network.
        saved: a model as data, with the array `weights` and the fact `encoder`.

    Returns:
        the model.

    Raises:
        IntegrityError: the encoder was stored with more than a plain one reads, so predictions would be others.
        KohortError: the parts do not fit together.
    """
    weights, stored = saved.arrays["weights"], saved.facts["encoder"]
    network.tensors(weights)  # refuses weights of another length
    encoder = Encoder.from_mapping(stored)
    if encoder.to_mapping().keys() != stored.keys():
        raise IntegrityError("the stored encoder reads rows in another way than models of this kind do")
    return NetworkModel(network, weights, encoder)
