"""Models as files: weights in safetensors, everything else in JSON, bound together by a hash.

`model.json` holds the format version, the network, the schema, the encoder's domain, the versions it was made with and
the hash of `model.safetensors`. An altered file is refused. Reading executes nothing that is in the files; a torch
module is built by its factory, which the file names and which must be installed where the model is read. Format 2 adds
the published classes that rows are placed under before such a model predicts; who reads only format 1 refuses it. Files
of format 1 stay readable in every later version. `README.md` is for people and is not read.
"""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kohort.errors import ConfigError, IntegrityError, KohortError
from kohort.files import write_atomic
from kohort.methods.syntactic.mapped_encoder import MappedEncoder, encoder_from_mapping
from kohort.models.model import Model
from kohort.models.trainable import network_from_mapping

__all__ = ["FORMAT", "load_model", "save_model"]

FORMAT, MAPPED_FORMAT = 1, 2
WEIGHTS_FILE, CARD_FILE, PAGE_FILE = "model.safetensors", "model.json", "README.md"


def save_model(
    model: Model, folder: str | Path, *, about: dict[str, Any] | None = None, page: str | None = None
) -> None:
    """Write a model into `folder`; `about` is what `model.json` says of the run, `page` the card for people."""
    from safetensors.numpy import save

    place = Path(folder)
    weights = save({"weights": model.weights, **model.network.tensors(model.weights)})
    card = {
        "format": _format_of(model),
        "network": model.network.to_mapping(),
        "encoder": model.encoder.to_mapping(),
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "versions": {"kohort": version("kohort"), "numpy": version("numpy"), "python": platform.python_version()},
        "about": about or {},
    }
    card["sha256"] = _card_hash(card)
    if page is not None:
        write_atomic(place / PAGE_FILE, page.encode())
    write_atomic(place / WEIGHTS_FILE, weights)
    write_atomic(place / CARD_FILE, _card_bytes(card))


def load_model(path: str | Path) -> Model:
    """Read a model from its folder, from a run folder that holds one, or from its `model.json`."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    folder = _find(Path(path))
    try:
        text = (folder / CARD_FILE).read_bytes()
        card = json.loads(text)
        if not isinstance(card, dict):
            raise ValueError
        weights = (folder / WEIGHTS_FILE).read_bytes()
    except (OSError, ValueError, RecursionError) as error:
        raise IntegrityError(f"the model in {folder} is incomplete or damaged", hint="Export it again") from error
    if (
        _card_bytes(card) != text
        or card.get("sha256") != _card_hash(card)
        or card.get("weights_sha256") != hashlib.sha256(weights).hexdigest()
    ):
        raise IntegrityError(f"the model in {folder} was altered after it was written", hint="Export it again")
    if card.get("format") not in (FORMAT, MAPPED_FORMAT):
        raise ConfigError(
            f"the model in {folder} has format {card.get('format')}, this kohort reads {FORMAT} and {MAPPED_FORMAT}",
            hint="Update kohort",
        )
    try:
        network = network_from_mapping(card["network"])
        model = Model(network, load(weights)["weights"], encoder_from_mapping(card["encoder"]))
        network.tensors(model.weights)
        if _format_of(model) != card["format"]:
            raise IntegrityError("the format does not say whether the model places rows under classes")
    except (KeyError, TypeError, AttributeError, SafetensorError, KohortError) as error:
        if isinstance(error, ConfigError) and card["network"].get("kind") == "torch":
            raise  # the files are whole: the module they name is missing here, or has changed
        raise IntegrityError(f"the model in {folder} does not fit together", hint="Export it again") from error
    return model


def _format_of(model: Model) -> int:
    return MAPPED_FORMAT if isinstance(model.encoder, MappedEncoder) else FORMAT


def _card_bytes(card: dict[str, Any]) -> bytes:
    """The card's text. Keys stay in their order: that of the columns is the order of the network's inputs."""
    return (json.dumps(card, indent=1) + "\n").encode()


def _card_hash(card: dict[str, Any]) -> str:
    text = json.dumps({key: value for key, value in card.items() if key != "sha256"})
    return hashlib.sha256(text.encode()).hexdigest()


def _find(path: Path) -> Path:
    for folder in (path.parent,) if path.is_file() else (path, path / "model"):
        if (folder / CARD_FILE).is_file():
            return folder
    raise ConfigError(f"there is no model at {path}", hint="Give a run folder or the folder of model.json")
