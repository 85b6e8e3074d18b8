"""What all tests share: drawn examples are the same on every machine, and small tables are made, never read."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

# Read when the libraries are first imported, and by every process a test starts. Tests run side by side already, and a
# second thread that waits for its turn on a busy core burns more time than the small products and tables of tests take.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ.setdefault(_name, "1")

# Folders of tests are in memory where there is room for them. Ledgers are synced line by line, and the suite would wait
# for the disk many thousand times.
_MEMORY, _ROOM = Path("/dev/shm"), 4 << 30
if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM:
    os.environ.setdefault("TMPDIR", str(_MEMORY))
    tempfile.tempdir = None

import numpy as np  # noqa: E402
import polars as pl  # noqa: E402
import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

# The same examples in every run of the suite, so few are enough to notice a change that breaks something.
settings.register_profile(
    "kohort",
    max_examples=30,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
# What `make thorough` takes: other examples every time, and as many as `tests.support.examples` is told at most.
settings.register_profile(
    "thorough", derandomize=False, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("kohort")
# What is calibrated in tests is remembered for the tests alone.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="kohort-tests-")
# The key that signs simulated runs, and what this user remembers of sites, are of the tests alone, too.
os.environ["KOHORT_STATE"] = tempfile.mkdtemp(prefix="kohort-tests-state-")

ORDER = ("models", "anonymity", "methods", "adversary", "contract", "rounds", "studies", "golden")  # half of all tests
ORDER += ("crypto", "tables", "privacy")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, and let it look at nothing that was made until then.

    Collecting imports thousands of modules, whose objects stay. To look through them again and again takes a quarter of
    that time, and a part of every test's.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of two workers, each starts with one half: what one compiles is cached before the other needs it."""
    here = Path(__file__).parent
    folders = {item.path: item.path.relative_to(here).parts[0] for item in items if item.path.is_relative_to(here)}
    items.sort(key=lambda item: ORDER.index(folder) if (folder := folders.get(item.path)) in ORDER else len(ORDER))


PLAN = """
[data]
table = "{table}"
target = "outcome"
quasi = ["age"]
features = ["dose", "ward"]

[sites]
count = 3

[model]
hidden = [4]

[train]
rounds = 2
batch = 16
lr = 0.01

[policy]
min_rows = 1
"""


def small_table(rows: int = 120, *, seed: int = 7) -> pl.DataFrame:
    """Two numbers, a category and a class that depends on them."""
    random = np.random.default_rng(seed)
    age = random.integers(18, 91, rows)
    dose = random.normal(5.0, 2.0, rows).round(3)
    ward = random.choice(["north", "south", "west"], rows)
    ill = (age / 90 + dose / 10 + random.normal(0, 0.2, rows)) > 1.1
    return pl.DataFrame({"age": age, "dose": dose, "ward": ward, "outcome": np.where(ill, "ill", "well")})


@pytest.fixture
def table_file(tmp_path: Path) -> Path:
    """A small CSV."""
    path = tmp_path / "table.csv"
    small_table().write_csv(path)
    return path


@pytest.fixture
def plan_file(tmp_path: Path, table_file: Path) -> Path:
    """A plan for the small CSV: three sites, two rounds."""
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format(table=table_file))
    return path


Kohort = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def kohort() -> Kohort:
    """Run the command line in a process of its own, as a user does."""

    def call(*arguments: object, env: dict[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kohort.cli.main", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            env={**os.environ, **(env or {})},
            **options,
        )

    return call


_IN_TURN = """
import contextlib, io, json, sys
from kohort.cli.main import main
ended = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["kohort", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            ended.append((end.code, out.getvalue(), err.getvalue()))
print(json.dumps(ended))
"""


@pytest.fixture
def kohort_in_turn() -> Callable[..., list[tuple[int, str, str]]]:
    """Run several commands in one other process, for packages that are installed there alone: code, stdout, stderr."""

    def call(*commands: Sequence[object], env: dict[str, str]) -> list[tuple[int, str, str]]:
        texts = json.dumps([list(map(str, arguments)) for arguments in commands])
        done = subprocess.run(
            [sys.executable, "-c", _IN_TURN, texts],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            env={**os.environ, **env},
        )
        assert done.returncode == 0, done.stderr
        return [(code, out, err) for code, out, err in json.loads(done.stdout)]

    return call


@pytest.fixture
def kohort_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run the command line in this process: exit code, stdout and stderr. For tests that plant a fault."""
    from kohort.cli.main import main

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kohort", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return code, captured.out, captured.err

    return call
