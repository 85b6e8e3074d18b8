"""Somebody else's app on Flower's own SuperLink and SuperNodes, behind the doors of two sites.

What the sites' policies allow leaves, and nothing else. The app (tests/support/numpy-app) knows nothing of kohort.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.flower_federation import ENVIRONMENT, hub_port, lines_of

pytest.importorskip("flwr")

from kohort.privacy.ledger.verify import verify_ledger
from kohort.transport.deployment.app_site import AppSiteFolder

pytestmark = pytest.mark.e2e

APP = Path(__file__).parent.parent / "support" / "numpy-app"
SITES = ("north", "south")
ROWS = 120
SUPERLINK = ("-c", "from flwr.superlink.cli.flower_superlink import flower_superlink as f; f()")
SUPERNODE = ("-c", "from flwr.supernode.cli.flower_supernode import flower_supernode as f; f()")
FLWR = ("-c", "from flwr.cli.app import app; app()")


@dataclass
class Flower:
    """Flower's own processes and the sites' doors beside them."""

    root: Path
    port: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        found = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        flower = {"FLWR_HOME": str(self.root / "flwr"), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        return {**os.environ, **ENVIRONMENT, **flower, "PATH": found}

    def spawn(self, name: str, words: Sequence[object]) -> None:
        with (self.root / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *map(str, words)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=self.environment,
            )

    def wait_for_superlink(self) -> None:
        ends = time.monotonic() + 60
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert time.monotonic() < ends, self.logs()
            time.sleep(0.2)

    def stop(self, name: str) -> None:
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)

    def run(self, *, evaluate: float) -> dict[str, Any]:
        """`flwr run`, one round to its end: what the ServerApp printed."""
        config = f"num-server-rounds=1 fraction-evaluate={evaluate}"
        words = [*FLWR, "run", APP, "here", "--run-config", config, "--stream"]
        try:
            done = subprocess.run(
                [sys.executable, *map(str, words)],
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
                env=self.environment,
            )
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"{str(late.stdout)[-3000:]}\n{self.logs()}") from late
        found = [line for line in done.stdout.splitlines() if "RESULT " in line]
        assert found, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{self.logs()}"
        result: dict[str, Any] = json.loads(found[-1].partition("RESULT ")[2])
        return result

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in sorted(self.root.glob("*.log")))

    def start_door(self, name: str, runtime: int) -> None:
        self.spawn(
            f"door-{name}",
            ["-m", "kohort.cli.main", "flower", "start", self.root / name, "--runtime", f"127.0.0.1:{runtime}"],
        )


def bundle_of(app: Path, place: Path, environment: dict[str, str]) -> str:
    """What `sha256sum` says of what `flwr build` makes."""
    subprocess.run(
        [sys.executable, *FLWR, "build", "--app", str(app)],
        cwd=place,
        check=True,
        capture_output=True,
        env=environment,
    )
    (built,) = place.glob("*.fab")
    return hashlib.sha256(built.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    """A SuperLink, two SuperNodes, and a door for each."""
    root = tmp_path_factory.mktemp("flower")
    made = Flower(root, hub_port())
    (root / "flwr").mkdir()
    (root / "flwr" / "config.toml").write_text(
        f'[superlink.here]\naddress = "127.0.0.1:{made.port}"\ninsecure = true\n'
    )
    approved = bundle_of(APP, root, made.environment)
    made.spawn(
        "superlink",
        [*SUPERLINK, "--insecure", "--port", made.port, "--disable-runtime-dependency-installation"],
    )
    try:
        made.wait_for_superlink()
        for name in SITES:
            random = np.random.default_rng(len(name))
            inputs = random.normal(size=(ROWS, 2))
            table = np.column_stack([inputs, inputs @ [1.0, -2.0] + 0.5])
            np.savetxt(root / f"{name}.csv", table, delimiter=",", header="a,b,outcome", comments="")
            AppSiteFolder.init(root / name, name=name, rows=ROWS, app=approved)
            runtime = hub_port()
            made.spawn(
                f"node-{name}",
                [
                    *SUPERNODE,
                    "--insecure",
                    "--superlink",
                    f"127.0.0.1:{made.port}",
                    "--isolation",
                    "process",
                    "--port",
                    runtime,
                    "--superexec-auth-secret-file",
                    root / name / "superexec.key",
                    "--node-config",
                    f'table="{root}/{name}.csv"',
                ],
            )
            (root / f"{name}.port").write_text(str(runtime))
        yield made
    finally:
        for name in list(made.processes):
            made.stop(name)


def set_policy(made: Flower, **values: object) -> None:
    """Every site's operator changes its policy and starts its door anew."""
    for name in SITES:
        place = made.root / name / "door.toml"
        lines = place.read_text().splitlines()
        changed = [
            next((f"{key} = {json.dumps(value)}" for key, value in values.items() if line.startswith(f"{key} =")), line)
            for line in lines
        ]
        place.write_text("\n".join(changed) + "\n")
        place.chmod(0o600)
        if f"door-{name}" in made.processes:
            made.stop(f"door-{name}")
        made.start_door(name, int((made.root / f"{name}.port").read_text()))


def trained_here(table: Path) -> np.ndarray:
    """What the app does with a site's rows, in five lines."""
    rows = np.loadtxt(table, delimiter=",", skiprows=1)
    inputs, weights = np.column_stack([rows[:, :2], np.ones(len(rows))]), np.zeros(3)
    for _ in range(5):
        weights = weights - 0.1 * inputs.T @ (inputs @ weights - rows[:, 2]) / len(rows)
    return weights


def test_an_app_runs_as_far_as_the_policies_allow(flower: Flower) -> None:
    set_policy(flower, public=["rows", "train_loss", "eval_loss"], min_rows=100)
    allowed = flower.run(evaluate=1.0)
    expected = np.mean([trained_here(flower.root / f"{name}.csv") for name in SITES], axis=0)
    assert np.allclose(np.concatenate(allowed["weights"]), expected)
    assert set(allowed["train"]["1"]) == {"train_loss"}
    for name in SITES:
        lines = lines_of(flower.root / name)
        said = [(line["what"], line["round"], line["rows"]) for line in lines if line["event"] == "release"]
        assert said == [("flower.train", 1, ROWS), ("flower.evaluate", 1, ROWS)]
        assert (verify_ledger(flower.root / name).releases, verify_ledger(flower.root / name).refusals) == (2, 0)

    # The same app, the same rows: a policy that forbids releases of so few rows stops it.
    set_policy(flower, min_rows=ROWS + 1)
    refused = flower.run(evaluate=0.0)
    assert refused["train"] == {}
    assert refused["weights"] in ([], [[0.0, 0.0], [0.0]])
    for name in SITES:
        (refusal,) = [line for line in lines_of(flower.root / name) if line["event"] == "refusal"]
        assert (refusal["what"], f"{ROWS} rows is below" in refusal["reason"]) == ("flower.train", True)
        assert verify_ledger(flower.root / name).releases == 2, "something left"
