"""Models as files: arrays in safetensors, everything else in JSON, bound together by a hash.

`model.json` holds the format version, the kind of model and the package that provides it, the model's own facts, the
versions it was made with and the hash of `model.safetensors`. An altered file is refused. Reading executes nothing that
is in the files: the kind names a loader that is installed where the model is read. Files of the formats 1 and 2, which
had no kinds, stay readable in every later version. `README.md` is for people and is not read.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kohort.errors import ConfigError, IntegrityError, KohortError, nearest
from kohort.files import write_atomic
from kohort.models.base import Model, SavedModel
from kohort.models.registry import GROUP, FoundKind, find_kind
from kohort.registry import version

__all__ = [
    "FORMAT",
    "about_model",
    "find_model",
    "load_model",
    "read_model",
    "run_folder_of",
    "save_cluster_models",
    "save_model",
    "save_site_models",
    "site_models_at",
]

FORMAT = 3
_FORMAT_WITHOUT_KINDS, _FORMAT_WITH_CLASSES = 1, 2
ARRAYS_FILE, CARD_FILE, PAGE_FILE = "model.safetensors", "model.json", "README.md"
SITES_FOLDER, CLUSTERS_FILE, SITES_FILE = "sites", "clusters.json", "models.json"
"""Of a simulated run: `sites/SITE/model/`, which site has the model of which cluster of peers, and where the models of
sites are that have what the hub has not."""


def save_model(
    model: Model,
    folder: str | Path,
    *,
    about: dict[str, Any] | None = None,
    page: str | None = None,
    private: bool = False,
) -> None:
    """Write a model into `folder`, each file whole or not at all.

    Args:
        model: of any registered kind.
        folder: is made if it does not exist.
        about: what `model.json` says of the run, as plain values.
        page: the card for people, in Markdown.
        private: whether only the owner may read the files.

    Raises:
        ConfigError: nothing registers the kind of the model, so nobody could read it back.
    """
    from safetensors.numpy import save

    place, found = Path(folder), find_kind(model.kind)
    if found is None:
        raise ConfigError(
            f"nothing registers models of kind {model.kind!r}, so the model could not be read back",
            hint=f"Give its package an entry point {model.kind!r} of the group {GROUP!r}",
        )
    saved = model.save()
    arrays = save({name: np.ascontiguousarray(array) for name, array in saved.arrays.items()})
    card = {
        "format": FORMAT,
        "kind": model.kind,
        "provider": {"package": found.package, "version": found.version},
        "model": dict(saved.facts),
        "weights_sha256": hashlib.sha256(arrays).hexdigest(),
        "versions": {"kohort": version("kohort"), "numpy": version("numpy"), "python": platform.python_version()},
        "about": about or {},
    }
    card["sha256"] = _card_hash(card)
    if page is not None:
        write_atomic(place / PAGE_FILE, page.encode(), private=private)
    write_atomic(place / ARRAYS_FILE, arrays, private=private)
    write_atomic(place / CARD_FILE, _card_bytes(card), private=private)


def load_model(path: str | Path, *, cluster: str | None = None, site: str | None = None) -> Model:
    """Read a model of any registered kind. In a run folder, all files must be what the run's ledger says they were.

    Args:
        path: the model's folder, a run folder that holds one, or its `model.json`.
        cluster: read the model that the sites of this cluster ended a phase among peers with.
        site: read the model that this site has, where sites have what the hub has not.

    Returns:
        the model, ready to predict.

    Raises:
        ConfigError: there is no model, a later version wrote it, or what provides its kind is not installed here; there
            is no such cluster.
        IntegrityError: the files were altered or damaged, or do not fit together.

    Example:
        kohort.load_model("out/fedavg").predict(frame)
    """
    folder = find_model(path, cluster=cluster, site=site)
    run = run_folder_of(folder)
    if run is not None:
        from kohort.privacy.ledger.bound import check_run_folder
        from kohort.privacy.ledger.verify_results import BEFORE

        if BEFORE in check_run_folder(run).notes:
            warnings.warn(f"{run}: {BEFORE}", stacklevel=2)
    return read_model(folder)


def about_model(folder: Path) -> dict[str, Any]:
    """What `model.json` says of the run, as plain values.

    Args:
        folder: the folder of `model.json`.

    Returns:
        the values that `save_model` was given; empty where there were none.

    Raises:
        IntegrityError: the files were altered or damaged.
    """
    return dict(_mapping(_read(folder)[0].get("about")))


def run_folder_of(model: Path) -> Path | None:
    """The run folder that a model's folder belongs to.

    Args:
        model: The folder of `model.json`.

    Returns:
        The run folder; None for a model that stands by itself.
    """
    place = model.resolve()
    folder = place.parents[2] if len(place.parents) > 2 and place.parents[1].name == SITES_FOLDER else place.parent
    is_run = place.name == "model" and any((folder / name).exists() for name in ("ledger", "run.json"))
    return folder if is_run else None


def read_model(folder: Path) -> Model:
    """Read a model whose run, if it has one, was checked.

    Args:
        folder: the folder of `model.json`.

    Returns:
        the model, ready to predict. Its files are compared with their hashes, not with the ledger of a run.

    Raises:
        ConfigError: a later version wrote it, or what provides its kind is not installed here.
        IntegrityError: the files were altered or damaged, or do not fit together.
    """
    card, arrays = _read(folder)
    kind = _kind_of(card, folder)
    try:
        return kind.kind.load(_saved(card, arrays))
    except ConfigError:
        raise  # the files are whole: what they name is missing here, or has changed
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, KohortError) as error:
        raise IntegrityError(f"the model in {folder} does not fit together", hint="Export it again") from error


def _read(folder: Path) -> tuple[dict[str, Any], bytes]:
    """The card and the bytes of the arrays, as they were written."""
    try:
        text = (folder / CARD_FILE).read_bytes()
        card = json.loads(text)
        if not isinstance(card, dict):
            raise ValueError
        arrays = (folder / ARRAYS_FILE).read_bytes()
    except (OSError, ValueError, RecursionError) as error:
        raise IntegrityError(f"the model in {folder} is incomplete or damaged", hint="Export it again") from error
    if (
        _card_bytes(card) != text
        or card.get("sha256") != _card_hash(card)
        or card.get("weights_sha256") != hashlib.sha256(arrays).hexdigest()
    ):
        raise IntegrityError(f"the model in {folder} was altered after it was written", hint="Export it again")
    return card, arrays


def _kind_of(card: Mapping[str, Any], folder: Path) -> FoundKind:
    """The kind of a card of any known format."""
    number = card.get("format")
    if number == FORMAT:
        name = str(card.get("kind"))
    elif number == _FORMAT_WITH_CLASSES:
        name = "syntactic"
    elif number == _FORMAT_WITHOUT_KINDS:
        name = "torch" if "factory" in _mapping(card.get("network")) else "dense"
    else:
        writer = _mapping(card.get("versions")).get("kohort", "an unknown version")
        raise ConfigError(
            f"the model in {folder} has format {number}, of kohort {writer}; this kohort reads 1 to {FORMAT}",
            hint="Update kohort",
        )
    found = find_kind(name)
    if found is None:
        provider = _mapping(card.get("provider"))
        package = provider.get("package", "the package that provides it")
        raise ConfigError(
            f"the model in {folder} is of kind {name!r}, which no package installed here provides",
            hint=f"Install {package}; version {provider.get('version', '?')} wrote the model",
        )
    return found


def _saved(card: Mapping[str, Any], arrays: bytes) -> SavedModel:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    facts = card["model"] if card["format"] == FORMAT else {name: card[name] for name in ("network", "encoder")}
    try:
        return SavedModel(facts=facts, arrays=load(arrays))
    except SafetensorError as error:
        raise IntegrityError("the arrays cannot be read") from error


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _card_bytes(card: dict[str, Any]) -> bytes:
    """The card's text. Keys stay in their order: that of the columns is the order of the network's inputs."""
    return (json.dumps(card, indent=1) + "\n").encode()


def _card_hash(card: dict[str, Any]) -> str:
    text = json.dumps({key: value for key, value in card.items() if key != "sha256"})
    return hashlib.sha256(text.encode()).hexdigest()


def save_cluster_models(
    models: Mapping[str, Model], folder: Path, *, clusters: Mapping[str, tuple[str, ...]], about: Mapping[str, Any]
) -> None:
    """Write the models that simulated sites have with their peers, each into the folder of its site.

    Args:
        models: By site.
        folder: The run folder.
        clusters: The sites of each cluster.
        about: What each `model.json` says of the run.
    """
    places: dict[str, dict[str, str]] = {}
    for cluster, sites in clusters.items():
        for site in sites:
            place = _place_of(site, sum(map(len, places.values())))
            places.setdefault(cluster, {})[site] = place
            described = {**about, "site": site, "cluster": cluster}
            save_model(models[site], folder / SITES_FOLDER / place / "model", about=described)
    write_atomic(folder / SITES_FOLDER / CLUSTERS_FILE, (json.dumps(places, indent=1) + "\n").encode())


def save_site_models(models: Mapping[str, Model], folder: Path, *, about: Mapping[str, Any]) -> None:
    """Write the models of simulated sites that have what the hub has not, each into the folder of its site.

    Args:
        models: By site.
        folder: The run folder.
        about: What each `model.json` says of the run.
    """
    places = {site: _place_of(site, number) for number, site in enumerate(models)}
    for site, place in places.items():
        save_model(models[site], folder / SITES_FOLDER / place / "model", about={**about, "site": site})
    write_atomic(folder / SITES_FOLDER / SITES_FILE, (json.dumps(places, indent=1) + "\n").encode())


def _place_of(site: str, number: int) -> str:
    """The name of a site's folder: its own where that can be one."""
    return site if re.fullmatch(r"\w[\w. -]{0,63}", site, re.ASCII) else f"%{number}"


def site_models_at(where: str | Path) -> dict[str, Path]:
    """Where the models are that sites of a simulated run have and its hub has not.

    Args:
        where: the run folder, or what `find_model` takes.

    Returns:
        The folder of each site's `model.json`; none where the hub has the whole model.

    Raises:
        ConfigError: there is no model.
        IntegrityError: the list of them is damaged or was altered.
    """
    run = run_folder_of(find_model(where))
    index = None if run is None else run / SITES_FOLDER / SITES_FILE
    if index is None or not index.is_file():
        return {}
    try:
        places = {str(site): str(place) for site, place in json.loads(index.read_bytes()).items()}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise IntegrityError(f"{index} is damaged", hint="Run the plan again") from error
    if any(Path(place).name != place for place in places.values()):  # it would lead out of the run folder
        raise IntegrityError(f"{index} was altered after it was written", hint="Run the plan again")
    return {site: index.parent / place / "model" for site, place in places.items()}


def find_model(where: str | Path, *, cluster: str | None = None, site: str | None = None) -> Path:
    """The folder of `model.json`.

    Args:
        where: the model's folder, a run folder that holds one, or its `model.json`.
        cluster: of a run folder, the cluster whose model it is; the first of its sites has it.
        site: of a run folder, the site whose model it is, if sites have what the hub has not; else it is not read.

    Returns:
        the folder; that there is a model in it was checked, what the model holds was not.

    Raises:
        ConfigError: there is no model, no such cluster, or that site has none and others have.
    """
    if site is not None and cluster is None:
        known = site_models_at(where)
        if known and site not in known:
            raise ConfigError(f"no model of a site {site!r} is here", hint=nearest(site, known))
        if known:
            return known[site]
    path = Path(where)
    for folder in (path.parent,) if path.is_file() else (path, path / "model"):
        if (folder / CARD_FILE).is_file():
            return folder if cluster is None else _find_cluster_model(folder, cluster)
    raise ConfigError(f"there is no model at {path}", hint="Give a run folder or the folder of model.json")


def _find_cluster_model(model: Path, cluster: str) -> Path:
    """The model of a cluster, of the run that the folder `model` belongs to."""
    from kohort.models.cluster_names import find_cluster

    run = run_folder_of(model)
    index = (model if run is None else run) / SITES_FOLDER / CLUSTERS_FILE
    try:
        places = json.loads(index.read_bytes()) if index.is_file() else {}
        first = str(next(iter(places[find_cluster(places, cluster)].values())))
    except (OSError, ValueError, AttributeError, StopIteration, TypeError, RecursionError) as error:
        raise IntegrityError(f"{index} is damaged", hint="Run the plan again") from error
    if Path(first).name != first:  # it would lead out of the run folder, whose ledger is checked
        raise IntegrityError(f"{index} was altered after it was written", hint="Run the plan again")
    return index.parent / first / "model"
