"""How a plan names a module of one's own: no file, no code from the plan, and a clear word when one is missing."""

import sys

import numpy as np
import pytest

from kohort.errors import ConfigError
from kohort.models.dense.network import Network
from kohort.models.trainable import find_factory, is_torch, network_from_mapping, require_torch
from kohort.runs.config import load_plan
from kohort.runs.run import run


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("torch:models/mine.py:factory", "no code may come with a plan"),
        ("torch:mine.py:factory", "no code may come with a plan"),
        ("torch:..\\mine:factory", "no code may come with a plan"),
        ("torch:package.module", "no importable name"),
        ("torch:", "no importable name"),
        ("torch:a b:factory", "no importable name"),
        ("torch:package:inner:factory", "no importable name"),
        ("torch:package:(lambda: 0)", "no importable name"),
    ],
)
def test_only_importable_names_are_accepted(kind, words):
    with pytest.raises(ConfigError, match=words) as caught:
        require_torch(kind)
    assert "torch:package.module:factory" in caught.value.hint


def test_only_the_prefix_makes_a_model_a_module():
    assert is_torch("torch:a:b")
    assert not is_torch("mlp")


def test_without_torch_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "kohort.models.torch.module", raising=False)
    monkeypatch.delattr("kohort.models.torch.module", raising=False)
    with pytest.raises(ConfigError, match="torch") as caught:
        require_torch("torch:json:loads")
    assert "kohort[torch]" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_package:factory", "cannot import 'factory' from 'no_such_package'"),
        ("json:no_such_factory", "cannot import 'no_such_factory' from 'json'"),
        ("json:loads", "does not take inputs and outputs"),
        ("shutil:rmtree", "does not take inputs and outputs"),
        ("os:system", "does not take inputs and outputs"),
        ("os:sep", "cannot import"),
    ],
)
def test_nothing_is_called_that_was_not_written_as_a_factory(name, words):
    with pytest.raises(ConfigError, match=words) as caught:
        find_factory(name)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"kind": "torch:no_such_package:factory"}, "no_such_package|torch"),
        ({"kind": "mpl"}, "unknown model 'mpl'"),
    ],
)
def test_a_plan_with_such_a_model_is_refused_before_anything_is_written(model, words, tmp_path):
    plan = load_plan({"data": {"table": "adult:train", "target": "income"}, "model": model})
    with pytest.raises(ConfigError, match=words):
        run(plan, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_dense_network_comes_back_from_its_mapping():
    network = Network(inputs=3, hidden=(4, 2), outputs=2, activation="tanh", dtype="float64")
    assert network_from_mapping(network.to_mapping()) == network
    flat = network.start(np.random.default_rng(0))
    named = network.tensors(flat)
    assert list(named) == [f"layer{index}.{part}" for index in range(3) for part in ("matrix", "bias")]
    assert np.array_equal(np.concatenate([part.ravel() for part in named.values()]), flat)
