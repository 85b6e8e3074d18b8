"""A second opinion: pycanon, in an environment of its own, agrees that every release meets its rule.

Set KOHORT_PYCANON to a Python interpreter that can import pycanon; without it these tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess

import numpy as np
import polars as pl
import pytest

from kohort.anonymity.relational.anonymise import anonymise

TABLES = int(os.environ.get("KOHORT_PYCANON_TABLES", "60"))
QUASI = ["age", "town", "member"]
WAYS = (
    {"algorithm": "auto"},
    {"algorithm": "mondrian"},
    {"algorithm": "mondrian", "relaxed": True},
    {"algorithm": "thesis"},
    {"algorithm": "lattice"},
    {"algorithm": "auto", "hierarchies": "intervals"},
)
RULES = (
    {"k": 3},
    {"k": 2, "l": 2},
    {"k": 4, "l": 2.01, "l_kind": "entropy"},
    {"k": 3, "t": 0.3},
    {"k": 2, "l": 2, "t": 0.35},
)
JUDGE = """
import json, sys
import pandas as pd
from pycanon import anonymity
quasi = json.loads(sys.argv[1])
for path in sys.argv[2:]:
    table = pd.read_csv(path, dtype={name: str for name in quasi})
    found = {"k": anonymity.k_anonymity(table, quasi)}
    for name in ("illness", "score"):
        found["l", name] = anonymity.l_diversity(table, quasi, [name])
        found["entropy", name] = anonymity.entropy_l_diversity(table, quasi, [name])
        found["t", name] = anonymity.t_closeness(table, quasi, [name])
    print(json.dumps({"/".join([key] if isinstance(key, str) else key): float(value) for key, value in found.items()}))
"""


@pytest.mark.skipif("KOHORT_PYCANON" not in os.environ, reason="KOHORT_PYCANON names no interpreter with pycanon")
def test_pycanon_agrees_that_the_rule_holds(tmp_path):
    asked = []
    for number in range(TABLES):
        random = np.random.default_rng(number)
        rows = int(random.integers(20, 120))
        frame = pl.DataFrame(
            {
                "age": random.integers(18, 60, rows),
                "town": random.choice(list("abcdef"), rows),
                "member": random.choice(["yes", "no"], rows),
                "illness": random.choice(["flu", "cold", "gout"], rows),
                "score": random.integers(0, 5, rows),
            }
        )
        rule, way = RULES[number % len(RULES)], WAYS[number // len(RULES) % len(WAYS)]
        private = ["illness", "score"] if len(rule) > 1 else []
        made = anonymise(frame, quasi=QUASI, sensitive=private, **rule, **way)
        made.frame.write_csv(tmp_path / f"{number}.csv")
        asked.append((rule, private))
    paths = [str(tmp_path / f"{number}.csv") for number in range(TABLES)]
    command = [os.environ["KOHORT_PYCANON"], "-c", JUDGE, json.dumps(QUASI), *paths]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    opinions = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(opinions) == TABLES
    for (rule, private), found in zip(asked, opinions, strict=True):
        assert found["k"] >= rule["k"]
        for name in private:
            assert found[f"l/{name}"] >= rule.get("l", 0)
            if rule.get("l_kind") == "entropy":
                # pycanon cuts the figure to a whole number.
                assert found[f"entropy/{name}"] >= 2
            assert found[f"t/{name}"] <= rule.get("t", 1.0) + 1e-9
