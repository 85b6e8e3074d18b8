"""The models that sites have with their peers: where a simulation finds them, and how they are measured together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from kohort.models.base import Model
from kohort.models.cluster_names import NoCommonModel
from kohort.models.options import FloatArray
from kohort.protocol.engine import Engine, LocalEngine
from kohort.protocol.hub import Result
from kohort.rounds.peers import own_model
from kohort.runs.simulation import Population
from kohort.tables.encoder import Encoder

__all__ = ["judged_model", "models_of_sites"]


def models_of_sites(engine: Engine, result: Result) -> dict[str, Model]:
    """The models that simulated sites have and the hub has not.

    Args:
        engine: The engine of the run.
        result: What the run gave; it says who has a model.

    Returns:
        The models by site; none where sites are other machines, which keep theirs.
    """
    if not isinstance(engine, LocalEngine):
        return {}
    if result.kept_by:
        kept = {name: engine.sites[name].kept_model for name in result.kept_by}
        return {name: model for name, model in kept.items() if model is not None}
    return {name: own_model(engine.sites[name]) for sites in result.clusters.values() for name in sites}


def judged_model(
    result: Result, site_models: Mapping[str, Model], population: Population, usable: NDArray[np.bool_]
) -> tuple[Model | None, NDArray[np.bool_], tuple[str, ...]]:
    """What is measured on test rows: the common model; with classes that sites alone have, the model of a site; where
    there is no common model, each row's own site's model.

    Args:
        result: What the run gave: what the hub has, and which sites have more.
        site_models: By site, what a simulation has beside it.
        population: The test rows, and the site of each.
        usable: Which test rows a model can read.

    Returns:
        What to measure (None: nothing), the test rows to measure it on, and what is to be said about that.
    """
    model = result.model
    if not isinstance(model, NoCommonModel):
        if not result.kept_by or not site_models:
            return model, usable, ()
        # Sites were given the same classes, so one of them speaks for all.
        name, measured = next(iter(site_models.items()))
        return measured, usable, (f"test rows were measured with the model and the classes that site {name!r} has",)
    if not site_models or population.test_sites is None:
        return None, usable, ("there is no common model to measure: measure the clusters' models where they are",)
    sites = np.asarray(population.test_sites)
    judged = usable & np.isin(sites, list(site_models))
    said = "each test row was judged by the model that its own site has with its peers"
    without = int(usable.sum() - judged.sum())
    notes = (said, *((f"{without:,} test rows of sites without such a model were not judged",) if without else ()))
    return _ModelPerRow(model.encoder, site_models, sites[judged].tolist()), judged, notes


@dataclass(frozen=True, eq=False, repr=False)
class _ModelPerRow(Model):
    """Predicts each row of one table by the model of its site."""

    encoder: Encoder
    models: Mapping[str, Model]
    sites: Sequence[str]

    @property
    def kind(self) -> str:
        return "clusters"

    def codes(self, x: FloatArray) -> NDArray[Any]:
        return self._each("codes", x)

    def probabilities(self, x: FloatArray) -> FloatArray:
        return self._each("probabilities", x)

    def ranking(self, x: FloatArray) -> FloatArray:
        return self._each("ranking", x)

    def save(self) -> NoReturn:
        raise NotImplementedError  # it is measured and let go

    def _each(self, what: str, x: FloatArray) -> NDArray[Any]:
        names, codes = np.unique(np.asarray(self.sites), return_inverse=True)
        found: NDArray[Any] | None = None
        for number, name in enumerate(names.tolist()):
            chosen = codes == number
            part = getattr(self.models[name], what)(x[chosen])
            if found is None:
                found = np.empty((len(x), *part.shape[1:]), dtype=part.dtype)
            found[chosen] = part
        return x[:, 0] if found is None else found
