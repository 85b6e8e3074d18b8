"""CPU a message at a site: one long-lived process (ours) against Flower's default, a process a message.

Both in one run on loopback: the peer is Flower's own SuperNode in its default isolation with an empty ClientApp, ours
a kohort site that trains. Counted is the CPU of the SuperNode and of everything it starts, between the first answer and
the last; imports that are paid once are shown apart.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.harness import Row

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "flower_messages"
MESSAGES = 5
MOST_MESSAGES = {"masks": 4, "bfv": 3}
SUMMARY = (
    f"CPU of a site (its SuperNode and all that answers for it) a message, over {MESSAGES} messages on loopback: ours "
    "stays one process and trains federated averaging on 500 rows; Flower's default starts a process a message, for an "
    "app that does nothing. A round is one exchange with three sites, Flower's polling included."
)
EMPTY_APP = """
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query()
def reply(message: Message, context: Context) -> Message:
    return Message(message.content, reply_to=message)
"""
PROJECT = """
[project]
name = "empty-app"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "bench"

[tool.flwr.app.components]
serverapp = "empty_app:app"
clientapp = "empty_app:app"

[tool.flwr.app.config]
"""


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as root:
        ours = _ours(Path(root) / "ours")
        peer = _flower_default(Path(root) / "peer")
        messages = {scheme: _messages(Path(root) / scheme, scheme) for scheme in MOST_MESSAGES}
    empty, added = _imports()
    return [
        *(
            Row.within(
                f"messages a site of a one-shot run, {scheme}", ours=count, peer="limit", theirs=limit, unit="messages"
            )
            for (scheme, limit), count in zip(MOST_MESSAGES.items(), messages.values(), strict=True)
        ),
        Row.within(
            "CPU a message at a site",
            ours=ours["cpu"],
            peer="Flower, a process a message",
            theirs=peer["cpu"],
            unit="s",
            target=0.3,
        ),
        Row.within("a round with 3 sites", ours=ours["seconds"], peer="limit", theirs=6.0, unit="s"),
        Row.within(
            "memory of a site's process before its first request",
            ours=ours["memory"],
            peer="limit",
            theirs=250.0,
            unit="MB",
            note=f"after training: {ours['trained']:.0f} MB, Numba included",
        ),
        Row.within(
            "imports of a site beyond an empty ClientApp",
            ours=added,
            peer="limit",
            theirs=0.3,
            unit="s CPU",
            note=f"an empty ClientApp: {empty:.2f} s",
        ),
    ]


def _messages(root: Path, scheme: str) -> int:
    """How often a site is written to in a one-shot run over columns whose ranges the plan declares."""
    import numpy as np
    import polars as pl
    from tests.support.loopback import LoopBackBackend

    from kohort.crypto.sums.scheme import KEY_HOLDER
    from kohort.runs.config import load_plan
    from kohort.runs.run import run

    counts: dict[str, int] = {}

    class Counting(LoopBackBackend):
        def carrier(self) -> Any:
            return self

        def carry(self, messages: dict[str, bytes], *, deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
            del deadline
            counts.update({name: counts.get(name, 0) + 1 for name in messages})
            return {name: self.site_servers[name].reply(message) for name, message in messages.items()}, {}

    random = np.random.default_rng(0)
    tables = {
        name: pl.DataFrame({"a": random.random(200), "y": random.choice(["n", "p"], 200)}) for name in ("a", "b", "c")
    }
    plan = load_plan(
        {
            "data": {
                "table": "memory",
                "target": "y",
                "features": ["a"],
                "bounds": {"a": [0, 1]},
                "categories": {"y": ["n", "p"]},
            },
            "sites": {"split": "files"},
            "method": {"name": "oneshot", "secure": {"sum": scheme}},
        }
    )
    run(plan, seed=0, backend=Counting(tables=tables), out=root)
    return max(count for name, count in counts.items() if name != KEY_HOLDER)


def _tree(pid: int) -> list[int]:
    """A process and all it started that are still there."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += _tree(int(child))
    return found


def _cpu(pid: int) -> float:
    """CPU seconds of a process, its children that ended, and those that did not."""
    total = 0.0
    for member in _tree(pid):
        fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def _memory(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def _imports() -> tuple[float, float]:
    """CPU of importing what an empty ClientApp needs, and what a kohort site needs besides before its first task."""

    def cpu(code: str) -> float:
        text = f"import time; b = time.process_time(); {code}; print(time.process_time() - b)"
        return min(float(subprocess.check_output([sys.executable, "-c", text])) for _ in range(7))

    empty = cpu("from flwr.clientapp import ClientApp; from flwr.supernode.runtime import run_clientapp")
    both = cpu(
        "from flwr.clientapp import ClientApp; from flwr.supernode.runtime import run_clientapp; "
        "import kohort.transport.deployment.site; "
        "from kohort.methods.registry import find_method; find_method('fedavg')"
    )
    return empty, both - empty


@contextmanager
def _started(*commands: list[str], env: dict[str, str] | None = None) -> Iterator[list[subprocess.Popen[bytes]]]:
    made = []
    try:
        for command in commands:
            made.append(
                subprocess.Popen(
                    command,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
                )
            )
        yield made
    finally:
        for process in made:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _hub(root: Path, names: tuple[str, ...]) -> Any:
    import numpy as np
    import polars as pl

    from kohort.runs.config import read_plan
    from kohort.transport.deployment.files import Invitation, Registration, free_port
    from kohort.transport.deployment.hub import HubFolder
    from kohort.transport.deployment.site import SiteFolder

    root.mkdir()
    hub = HubFolder.init(root / "hub", address=f"127.0.0.1:{free_port()}", insecure=True)
    plan = root / "plan.toml"
    plan.write_text('[data]\ntable = "t"\ntarget = "y"\nfeatures = ["a", "b"]\n[sites]\nsplit = "files"\n')
    random = np.random.default_rng(0)
    for name in names:
        table = pl.DataFrame({"a": random.random(500), "b": random.random(500), "y": random.choice(["n", "p"], 500)})
        table.write_csv(root / f"{name}.csv")
        site = SiteFolder.init(
            root / name,
            name=name,
            table=root / f"{name}.csv",
            invitation=Invitation.read(root / "hub" / "invitation.json"),
            plan=read_plan(plan),
        )
        site.approvals.approve(read_plan(plan, overrides=[f"train.rounds={MESSAGES}"]).digest())
        hub.add(Registration.read(root / name / "registration.json"))
    return hub, plan


def _await_superlink(hub: Any) -> None:
    from kohort.errors import SiteError
    from kohort.transport.flower.superlink import node_states

    for _ in range(300):
        try:
            node_states(hub.connection)
        except SiteError:
            time.sleep(0.2)
        else:
            return
    raise TimeoutError("the SuperLink did not come up")


def _ours(root: Path) -> dict[str, float]:
    """Rounds of federated averaging over three kohort sites, and the CPU one of them took for each."""
    from kohort.runs.config import read_plan
    from kohort.runs.run import run as carry_out

    names = ("a", "b", "c")
    hub, plan = _hub(root, names)
    kohort = [sys.executable, "-m", "kohort.cli.main"]
    starts = [[*kohort, "site", "start", str(root / name), "--insecure"] for name in names]
    marks: list[tuple[float, float]] = []
    with _started([*kohort, "hub", "start", str(root / "hub")]):
        _await_superlink(hub)
        with _started(*starts) as sites, hub.backend(wait=120) as backend:

            def watch(_: Any) -> None:
                marks.append((time.perf_counter(), _cpu(sites[0].pid)))

            memory = _memory(sites[0].pid)
            read = read_plan(plan, overrides=[f"train.rounds={MESSAGES}"])
            carry_out(read, out=root / "out", secure_random=True, backend=backend, watch=watch)
            trained = _memory(sites[0].pid)
    (began, before), (ended, after) = marks[0], marks[-1]
    rounds = len(marks) - 1
    return {"cpu": (after - before) / rounds, "seconds": (ended - began) / rounds, "memory": memory, "trained": trained}


def _flower_default(root: Path) -> dict[str, float]:
    """The same number of messages to one SuperNode as Flower starts it, with an app that returns what it gets."""
    from flwr.cli.build import build_fab_from_files

    from kohort.transport.deployment.files import free_port, kept_secret
    from kohort.transport.flower import run as flower_runs
    from kohort.transport.flower.environment import quiet

    hub, _ = _hub(root, ())
    files = {"pyproject.toml": PROJECT.encode(), "empty_app.py": EMPTY_APP.encode()}
    fab = build_fab_from_files(files)[0]
    node = [
        str(Path(sys.executable).parent / "flower-supernode"), "--insecure", "--superlink", hub.connection.address,
        "--port", str(free_port()),
    ]  # fmt: skip
    known = flower_runs.bundle
    flower_runs.bundle = lambda: fab  # type: ignore[assignment]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    try:
        with _started([sys.executable, "-m", "kohort.cli.main", "hub", "start", str(root / "hub")]):
            _await_superlink(hub)
            with (
                _started(node, env={**quiet(root / "flower"), "PATH": path}) as (process,),
                flower_runs.flower_run(hub.connection, superexec=kept_secret(root / "hub" / "superexec.key")) as begun,
            ):
                while not (online := begun.online()):
                    time.sleep(0.3)
                number = next(iter(online))
                assert begun.exchange({number: b"warm up"}, deadline=120)
                before = _settled(process.pid)
                for _ in range(MESSAGES):
                    assert begun.exchange({number: b"a message"}, deadline=120)
                return {"cpu": (_settled(process.pid) - before) / MESSAGES}
    finally:
        flower_runs.bundle = known


def _settled(pid: int) -> float:
    """CPU once the process of the last message has ended and counts."""
    time.sleep(4)
    return _cpu(pid)
