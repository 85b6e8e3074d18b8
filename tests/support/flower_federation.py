"""A federation of real processes on loopback, for tests: a hub, its sites, and whatever is to happen to them.

Everything is started in process groups of its own and ended with the context, whatever happened.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from kohort.transport.deployment.files import Registration

if TYPE_CHECKING:
    from kohort.runs.run import Outcome

PATIENCE = 120.0
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

_GIVEN: set[int] = set()


def hub_port() -> int:
    """A port for a hub that starts a little later: no other connection or worker of these tests gets it meanwhile.

    Connections take theirs from 32768 on (Linux) or 49152 (elsewhere), and every worker has a range of its own. No port
    is given twice.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 20_000 + 1_000 * (worker % 10)
    for port in random.SystemRandom().sample(range(first, first + 1_000), 50):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _GIVEN:
                _GIVEN.add(port)
                return port
    raise AssertionError(f"none of 50 ports from {first} on is free")


@dataclass
class Federation:
    """Folders and processes of a hub and its sites."""

    root: Path
    plan: Path
    insecure: bool = False
    seed: int | None = 1
    retries: int = 30
    says: Mapping[str, str] = field(default_factory=dict)
    """What a site says of itself: lines for [site] of its site.toml."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def hub(self) -> Path:
        return self.root / "hub"

    def site(self, name: str) -> Path:
        return self.root / name

    def kohort(self, *words: object, code: int | None = 0, timeout: float = 300.0, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "kohort.cli.main", *map(str, words), "--debug"],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**os.environ, **ENVIRONMENT, **env},
        )
        if code is not None:
            assert done.returncode == code, f"{words} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout if code == 0 else done.stderr

    def found(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Make the hub, the sites, and let everybody know everybody."""
        from kohort.transport.deployment.hub import HubFolder
        from kohort.transport.deployment.site import SiteFolder

        HubFolder.init(self.hub, address=f"127.0.0.1:{hub_port()}", insecure=self.insecure)
        for name, table in tables.items():
            file = self.root / "tables" / f"{name}.csv"
            file.parent.mkdir(exist_ok=True)
            table.write_csv(file)
            self.join(name, file)
        prints = {name: Registration.read(self.site(name) / "registration.json").site.fingerprint for name in tables}
        for name in tables:
            for peer, fingerprint in prints.items():
                if peer != name:
                    SiteFolder(self.site(name)).trust(peer, fingerprint)
        self.approve(self.plan, *tables)

    def join(self, name: str, table: Path) -> None:
        """Make a site and add it to the hub."""
        from kohort.runs.config import read_plan
        from kohort.transport.deployment.files import Invitation
        from kohort.transport.deployment.hub import HubFolder
        from kohort.transport.deployment.site import SiteFolder

        invitation = Invitation.read(self.hub / "invitation.json")
        SiteFolder.init(self.site(name), name=name, table=table, invitation=invitation, plan=read_plan(self.plan))
        settings = (self.site(name) / "site.toml").read_text()
        settings = settings.replace("min_rows = 100", "min_rows = 1").replace("raw = false", "raw = true")
        # The same sites release the same rows by one method after another.
        settings = settings.replace("overlapping_releases = false", "overlapping_releases = true")
        settings = settings.replace("min_k = 5", "min_k = 2").replace('pairs = "rounded"', 'pairs = "open"')
        if self.seed is not None:
            settings = settings.replace("[site]\n", f"[site]\nseed = {self.seed}\n")
        settings = settings.replace("[site]\n", f"[site]\n{self.says.get(name, '')}")
        (self.site(name) / "site.toml").write_text(settings)
        HubFolder(self.hub).add(Registration.read(self.site(name) / "registration.json"))

    def join_key_holder(self, *peers: str) -> None:
        """Make a key-holder that knows these sites, and that they know."""
        from kohort.transport.deployment.files import Invitation
        from kohort.transport.deployment.hub import HubFolder
        from kohort.transport.deployment.site import SiteFolder

        place = self.site("key-holder")
        invitation = Invitation.read(self.hub / "invitation.json")
        holder = SiteFolder.init(place, name="key-holder", table=None, invitation=invitation)
        own = Registration.read(place / "registration.json")
        for peer in peers:
            other = Registration.read(self.site(peer) / "registration.json").site
            holder.trust(peer, other.fingerprint)
            SiteFolder(self.site(peer)).trust("key-holder", own.site.fingerprint)
        if self.seed is not None:
            settings = (place / "site.toml").read_text().replace("[site]\n", f"[site]\nseed = {self.seed}\n")
            (place / "site.toml").write_text(settings)
        HubFolder(self.hub).add(own)
        self.approve(self.plan, "key-holder")

    def approve(self, plan: Path, *names: str, overrides: tuple[str, ...] = ()) -> None:
        """Every named site's operator approves a plan."""
        from kohort.runs.config import read_plan
        from kohort.transport.deployment.site import SiteFolder

        for name in names:
            SiteFolder(self.site(name)).approvals.approve(read_plan(plan, overrides=overrides).digest())

    def spawn(self, name: str, *words: object) -> subprocess.Popen[bytes]:
        """Start a command in a process group of its own, its output in a file."""
        with (self.root / f"{name}.log").open("ab") as log:
            made = subprocess.Popen(
                [sys.executable, "-m", "kohort.cli.main", *map(str, words)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **ENVIRONMENT},
            )
        self.processes[name] = made
        return made

    def start_hub(self) -> None:
        self.spawn("hub.process", "hub", "start", self.hub)
        self.wait_for(self.reachable, "the SuperLink")

    def reachable(self) -> bool:
        from kohort.errors import SiteError
        from kohort.transport.deployment.hub import HubFolder
        from kohort.transport.flower.superlink import node_states

        try:
            node_states(HubFolder(self.hub).connection)
        except SiteError:
            return False
        return True

    def start_sites(self, *names: str) -> None:
        more = ["--insecure"] if self.insecure else []
        for name in names:
            self.spawn(name, "site", "start", self.site(name), "--retries", self.retries, *more)

    def run(self, out: Path, *words: object, plan: Path | None = None, timeout: float = 400.0) -> dict[str, Any]:
        """`kohort run --engine flower`, to its end."""
        text = self.kohort(
            "run", plan or self.plan, "--engine", "flower", "--hub", self.hub, "--out", out, "--json", *words,
            timeout=timeout,
        )  # fmt: skip
        result: dict[str, Any] = json.loads(text)
        return result

    def run_here(self, out: Path, plan: Path, *, seed: int = 1) -> Outcome:
        """The same in this process, which saves the start of another."""
        from kohort.runs.config import read_plan
        from kohort.runs.run import run
        from kohort.transport.deployment.hub import HubFolder

        with HubFolder(self.hub).backend(wait=120) as backend:
            return run(read_plan(plan), seed=seed, out=out, backend=backend)

    def round(self) -> int:
        """The round the hub asked about last; -1 before the first training round."""
        try:
            last = json.loads((self.hub / "state" / "last.json").read_bytes())
        except (OSError, ValueError):
            return -1
        return int(last["round"]) if last["task"] == "train" else -1

    def wait_for(self, what: Any, name: str, seconds: float = PATIENCE) -> None:
        ends = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < ends, f"{name} did not come within {seconds:g} seconds\n{self.logs()}"
            time.sleep(0.2)

    def logs(self) -> str:
        parts = sorted(self.root.glob("*.log")) + sorted(self.root.glob("*/log/*.log"))
        return "\n".join(f"== {path}\n{path.read_text(errors='replace')[-1500:]}" for path in parts)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """End a process and everything it started."""
        process = self.processes.pop(name, None)
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        process.wait(30)

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)


PLAN = """
[data]
table = [{tables}]
target = "outcome"
identifiers = ["person"]
quasi = ["age"]
sensitive = ["outcome"]
features = ["dose", "ward"]
bounds = {{age = [0, 120], dose = [-10, 20]}}
categories = {{ward = ["north", "south", "west"], outcome = ["ill", "well"]}}
test = "{root}/test.csv"

[sites]
split = "files"
deadline = {deadline}
quorum = {quorum}

[model]
hidden = [4]

[train]
rounds = {rounds}
batch = 16
lr = 0.01

[policy]
min_rows = 1
raw = true
min_k = 2
pairs = "open"
overlapping_releases = true
"""


def tables_of(sites: int, rows: int = 80) -> dict[str, pl.DataFrame]:
    """One small table a site; who a row is about is a value that is found wherever it gets to."""
    made = {}
    for number in range(sites):
        random = np.random.default_rng(number)
        age = random.integers(18, 91, rows)
        dose = random.normal(5.0, 2.0, rows).round(3)
        ward = random.choice(["north", "south", "west"], rows)
        ill = (age / 90 + dose / 10 + random.normal(0, 0.2, rows)) > 1.1
        person = [f"canary-{number:02d}-{mark:016x}" for mark in random.integers(0, 2**62, rows)]
        columns = {"person": person, "age": age, "dose": dose, "ward": ward}
        frame = pl.DataFrame({**columns, "outcome": np.where(ill, "ill", "well")})
        made[f"site-{number:02d}"] = frame
    return made


def plan_with(
    root: Path, *, sites: int = 3, rounds: int = 2, deadline: float = 60.0, quorum: float = 0.5, more: str = ""
) -> Path:
    """A plan for `tables_of(sites)`, and its test table. The tables it names are where `Federation.found` puts them."""
    tables_of(sites + 1)[f"site-{sites:02d}"].write_csv(root / "test.csv")
    names = ", ".join(f'"{root}/tables/{name}.csv"' for name in tables_of(sites))
    path = root / "plan.toml"
    path.write_text(PLAN.format(tables=names, root=root, rounds=rounds, deadline=deadline, quorum=quorum) + more)
    return path


def variant(made: Federation, name: str, changes: list[str]) -> Path:
    """The plan with keys changed, as a file; approved by everybody."""
    from kohort.runs.config import apply_overrides

    described = apply_overrides(tomllib.loads(made.plan.read_text()), changes)
    toml = write_plan(made.root / f"{name}.toml", described)
    made.approve(toml, *tables_of(3), "key-holder")
    return toml


@contextmanager
def federation(
    root: Path,
    plan: Path,
    tables: Mapping[str, pl.DataFrame],
    *,
    founded: Callable[[], object] = lambda: None,
    **options: Any,
) -> Iterator[Federation]:
    """A running federation of these tables; `founded` is called when all folders are made and nothing runs yet."""
    made = Federation(root, plan, **options)
    try:
        made.found(tables)
        founded()
        made.start_hub()
        made.start_sites(*tables)
        yield made
    finally:
        made.close()


def model_of(folder: Path) -> bytes:
    """The model of a run."""
    return (folder / "model" / "model.safetensors").read_bytes()


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """The ledger of a run or a site."""
    return [json.loads(line) for line in (folder / "ledger" / "ledger.jsonl").read_bytes().splitlines()]


def method_section(method: str) -> dict[str, Any]:
    """The keys of a method's small example."""
    from kohort.methods.registry import find_method

    keys = find_method(method).example_keys()
    own: dict[str, Any] = keys["method"]
    if "sites" in keys:  # real sites say themselves what is a low risk, and these say nothing
        own["phases"] = [{**phase, "rows": "all"} for phase in own["phases"]]
    return own


def write_plan(path: Path, described: Mapping[str, Any]) -> Path:
    """A plan as a file: what it describes, every default that is read spelt out."""
    from kohort.runs.config import load_plan, only_read, read_plan

    plan = load_plan(only_read(described))
    path.write_text(as_toml(plan.in_effect("flower")))
    assert read_plan(path).digest() == plan.digest()
    return path


def as_toml(described: Mapping[str, Any]) -> str:
    """TOML of a plan's mapping."""
    lines = []
    for section, values in described.items():
        lines.append(f"[{section}]")
        lines += [f"{json.dumps(key)} = {inline(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def inline(value: Any) -> str:
    """TOML of one value."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(inline(item) for item in value) + "]"
    return json.dumps(value)
