"""An additive model file is data, is read for ever, and nothing that does not fit together is read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kohort.errors import IntegrityError
from kohort.models.additive.model import AdditiveModel, load_additive
from kohort.models.files import load_model
from kohort.tables.frames import read_table

GOLDEN = Path(__file__).parents[2] / "golden" / "model-additive"
"""Written once. `expected.json` is what it predicted then for `rows.csv`, probabilities rounded to six digits."""


def golden() -> AdditiveModel:
    model = load_model(GOLDEN)
    assert isinstance(model, AdditiveModel)
    return model


def test_the_first_format_is_read_for_ever() -> None:
    model, rows = golden(), read_table(GOLDEN / "rows.csv")
    expected = json.loads((GOLDEN / "expected.json").read_bytes())
    assert model.predict(rows).to_list() == expected["predicted"]
    assert np.abs(model.predict_proba(rows) - np.array(expected["probabilities"])).max() < 2e-6


@pytest.mark.parametrize("broken", ["values", "counts", "bins", "link"])
def test_parts_that_do_not_fit_are_refused(broken: str) -> None:
    saved = golden().save()
    arrays, facts = dict(saved.arrays), dict(saved.facts)
    if broken == "link":
        facts["link"] = "probit"
    else:
        arrays[broken] = arrays[broken][:-1]
    with pytest.raises(IntegrityError):
        load_additive(replace(saved, arrays=arrays, facts=facts))
