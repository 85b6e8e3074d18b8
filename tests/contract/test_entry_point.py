"""A method in a package of its own, found by its entry point, gets the command line and the contract like any other."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MODULE = '''
"""One round of averaging, by a package that kohort has never heard of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge

from kohort.protocol.hub import Ask, Expect, Hub, ProtocolGenerator, Replies, Result, RoundEnd
from kohort.protocol.site import Site
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.methods.registry import Method
from kohort.privacy.guarantee import Aggregate, Guarantee


@dataclass(frozen=True, kw_only=True)
class Toy:
    __pydantic_config__ = {"extra": "forbid"}
    shrink: Annotated[float, Ge(0)] = 0.5
    passes: Annotated[int, Ge(1)] = 2


def _nudge(site: Site, request: Request) -> Release:
    weights = request.payload.arrays["weights"]
    move = site.streams.generator("toy", request.round).normal(size=weights.shape).astype(weights.dtype)
    payload = Payload(arrays={"move": move}, metrics={"rows": site.count})
    return Release(payload=payload, guarantee=Aggregate(rows=site.count), rows=site.count)


NUDGE = Task(name="toy.nudge", one=_nudge)


def protocol(config: Toy, hub: Hub) -> ProtocolGenerator:
    weights = hub.network.start(hub.streams.generator("start"))
    shape = (np.dtype(weights.dtype).str, weights.shape)
    for number in range(config.passes):
        replies: Replies = yield Ask(
            task=NUDGE, to=hub.sites, payload=Payload(arrays={"weights": weights}), round=number,
            expect=Expect(arrays={"move": shape}, metrics=("rows",)),
        )
        weights = weights + np.float32(config.shrink) * replies.array("move").mean(axis=0)
        yield RoundEnd(round=number, rounds=config.passes, model=hub.model_of(weights))
    return Result(model=hub.model_of(weights), rounds=config.passes, stopped_by="rounds")


def claims(config: Toy, rows: int) -> Sequence[Guarantee]:
    return (Aggregate(rows=rows),)


METHOD = Method(
    name="toy", summary="Sites nudge the weights.", config=Toy, protocol=protocol, claims=claims, tasks=(NUDGE,),
    cites="", example="shrink = 0.25",
)
'''
HERE = Path(__file__).parent


@pytest.fixture
def toy_package(tmp_path: Path) -> Path:
    """A folder as an installer leaves it: the module and its dist-info with the entry point."""
    place = tmp_path / "site-packages"
    info = place / "kohort_toy-1.0.dist-info"
    info.mkdir(parents=True)
    (place / "kohort_toy.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kohort-toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kohort.methods]\ntoy = kohort_toy:METHOD\n")
    (info / "RECORD").write_text("")
    return place


def _path_with(place: Path) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH", "")]))}


def test_it_appears_and_runs_like_any_other(
    toy_package: Path, plan_file: Path, kohort: Callable[..., Any], tmp_path: Path
) -> None:
    env = _path_with(toy_package)
    listed = kohort("methods", "--json", env=env)
    assert listed.returncode == 0, listed.stderr
    assert "toy" in {item["name"] for item in json.loads(listed.stdout)["methods"]}
    schema = json.loads(kohort("schema", env=env).stdout)
    assert "toy" in {variant["properties"]["name"]["const"] for variant in schema["properties"]["method"]["oneOf"]}
    chosen = ["--set", "method.name=toy", "--set", "method.passes=3"]
    ran = kohort("run", plan_file, "--out", tmp_path / "out", "--json", *chosen, env=env)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["method"] == "toy"
    assert json.loads(ran.stdout)["rounds"] == 3
    wrong = kohort(
        "run", plan_file, "--out", tmp_path / "no", "--set", "method.name=toy", "--set", "method.pases=3", env=env
    )
    assert wrong.returncode == 2
    assert "'passes'" in wrong.stderr


def test_it_passes_the_same_contract(toy_package: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "toy", str(HERE / "test_methods.py")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **_path_with(toy_package)},
        cwd=HERE.parent.parent,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed.group(1)) >= 8


def test_an_entry_point_to_something_else_is_refused(toy_package: Path, kohort: Callable[..., Any]) -> None:
    points = toy_package / "kohort_toy-1.0.dist-info" / "entry_points.txt"
    points.write_text("[kohort.methods]\ntoy = kohort_toy:Toy\n")
    refused = kohort("methods", env=_path_with(toy_package))
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr
    assert "'toy'" in refused.stderr


def test_two_methods_of_one_name_are_refused(toy_package: Path, kohort: Callable[..., Any]) -> None:
    module = toy_package / "kohort_toy.py"
    module.write_text(MODULE.replace('name="toy"', 'name="fedavg"'))
    refused = kohort("methods", env=_path_with(toy_package))
    assert refused.returncode == 2
    assert "'fedavg'" in refused.stderr
