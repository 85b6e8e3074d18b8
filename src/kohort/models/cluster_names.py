"""What the hub has of a run that ended among peers: no model, only the names of the clusters whose sites have one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from kohort.errors import ConfigError
from kohort.models.base import Model, SavedModel
from kohort.models.options import FloatArray
from kohort.tables.encoder import Encoder

__all__ = ["NoCommonModel", "find_cluster"]

_MOST_NAMED = 20


@dataclass(frozen=True, eq=False, repr=False)
class NoCommonModel(Model):
    """Stands where a run's model would be. It holds no weights and predicts nothing; it names the clusters."""

    encoder: Encoder
    clusters: Mapping[str, tuple[str, ...]]
    """The sites of each cluster that have its model."""

    @property
    def kind(self) -> str:
        """clusters."""
        return "clusters"

    def codes(self, x: FloatArray) -> NoReturn:
        """Nothing: there is no model here."""
        del x
        self.refuse()

    def refuse(self) -> NoReturn:
        """Say that there is no model, and which clusters there are.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            f"the run ended among peers, so there is no common model; clusters: {_listed(self.clusters)}",
            hint="Add --cluster NAME",
        )

    def probabilities(self, x: FloatArray) -> NoReturn:
        """Nothing, as `codes`."""
        del x
        self.refuse()

    def save(self) -> SavedModel:
        """The encoder and the clusters; no arrays."""
        clusters = {name: list(sites) for name, sites in self.clusters.items()}
        return SavedModel(facts={"encoder": self.encoder.to_mapping(), "clusters": clusters}, arrays={})

    def describe(self) -> dict[str, Any]:
        """What every model says, and the clusters."""
        return {**super().describe(), "clusters": {name: list(sites) for name, sites in self.clusters.items()}}


def find_cluster(clusters: Mapping[str, Any], name: str) -> str:
    """A cluster's name, if there is one of that name.

    Args:
        clusters: The clusters by name.
        name: The name.

    Returns:
        The same name.

    Raises:
        ConfigError: There is none; the error names those that there are.
    """
    if not clusters:
        raise ConfigError(
            "the run kept no models of clusters here",
            hint="Clusters are formed by hybrid plans with peers; at real sites the models are in the sites' folders",
        )
    if name not in clusters:
        raise ConfigError(f"there is no cluster {name!r}; clusters: {_listed(clusters)}", hint="Choose one of them")
    return name


def _listed(clusters: Mapping[str, Any]) -> str:
    """The names of the clusters, or the first of many."""
    more = len(clusters) - _MOST_NAMED
    return ", ".join(list(clusters)[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
