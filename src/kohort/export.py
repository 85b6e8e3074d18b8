"""Models as files: weights in safetensors, everything else in JSON, bound together by a hash.

`model.json` holds the format version, the network, the schema, the encoder's domain, the versions it was made with and
the hash of `model.safetensors`. Reading executes nothing; an altered file is refused.
"""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kohort.data.encode import Encoder
from kohort.errors import ConfigError, IntegrityError, KohortError
from kohort.files import write_atomic
from kohort.learn.model import Model
from kohort.learn.network import Network

__all__ = ["FORMAT", "load_model", "save_model"]

FORMAT = 1
WEIGHTS_FILE, CARD_FILE = "model.safetensors", "model.json"


def save_model(model: Model, folder: Path, *, about: dict[str, Any] | None = None) -> None:
    """Write a model into `folder`; `about` is what the model card says of the run."""
    from safetensors.numpy import save

    tensors = {"weights": model.weights}
    for index, (matrix, bias) in enumerate(model.network.layers(model.weights)):
        tensors[f"layer{index}.matrix"], tensors[f"layer{index}.bias"] = matrix.copy(), bias.copy()
    weights = save(tensors)
    card = {
        "format": FORMAT,
        "network": asdict(model.network),
        "encoder": model.encoder.to_mapping(),
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "versions": {"kohort": version("kohort"), "numpy": version("numpy"), "python": platform.python_version()},
        "about": about or {},
    }
    card["sha256"] = _card_hash(card)
    write_atomic(folder / WEIGHTS_FILE, weights)
    write_atomic(folder / CARD_FILE, _card_bytes(card))


def load_model(path: Path) -> Model:
    """Read a model from its folder, from a run folder that holds one, or from its `model.json`."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    folder = _find(path)
    try:
        text = (folder / CARD_FILE).read_bytes()
        card = json.loads(text)
        if not isinstance(card, dict):
            raise ValueError
        weights = (folder / WEIGHTS_FILE).read_bytes()
    except (OSError, ValueError, RecursionError) as error:
        raise IntegrityError(f"the model in {folder} is incomplete or damaged", hint="Export it again") from error
    if card.get("format") != FORMAT:
        raise ConfigError(
            f"the model in {folder} has format {card.get('format')}, this kohort reads {FORMAT}", hint="Update kohort"
        )
    if (
        _card_bytes(card) != text
        or card.get("sha256") != _card_hash(card)
        or card.get("weights_sha256") != hashlib.sha256(weights).hexdigest()
    ):
        raise IntegrityError(f"the model in {folder} was altered after it was written", hint="Export it again")
    try:
        network = Network(**card["network"])
        model = Model(network, load(weights)["weights"], Encoder.from_mapping(card["encoder"]))
        network.layers(model.weights)
    except (KeyError, TypeError, SafetensorError, KohortError) as error:
        raise IntegrityError(f"the model in {folder} does not fit together", hint="Export it again") from error
    return model


def _card_bytes(card: dict[str, Any]) -> bytes:
    return (json.dumps(card, indent=1, sort_keys=True) + "\n").encode()


def _card_hash(card: dict[str, Any]) -> str:
    text = json.dumps({key: value for key, value in card.items() if key != "sha256"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _find(path: Path) -> Path:
    for folder in (path, path / "model", path.parent):
        if (folder / CARD_FILE).is_file():
            return folder
    raise ConfigError(f"there is no model at {path}", hint="Give a run folder or the folder of model.json")
