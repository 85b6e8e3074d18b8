"""`kohort doctor`: check the installation, the data folders, and a small federation from end to end.

Nothing is downloaded, and nothing but compiled kernels is kept. Whatever stops kohort from working is a problem and
decides the exit code; whatever only costs time or a feature is a note.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kohort.cli.common import JsonOption, emit, stdout

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["register"]

_REQUIREMENT = re.compile(
    r"^(?P<name>[\w.-]+)(?:\[[^]]*\])?(?P<bounds>[^;]*)(?:;.*extra\s*==\s*['\"](?P<extra>\w+)['\"])?"
)
_BOUND = re.compile(r"(>=|<)\s*([\d.]+)")
USER_EXTRAS = ("flower", "torch", "sql")
SITES, ROWS, LEARNED = 3, 300, 0.9

_PLAN: dict[str, Any] = {
    "data": {"table": "self-test", "target": "outcome", "features": ["first", "second"]},
    "sites": {"count": SITES},
    "model": {"hidden": [4]},
    "train": {"rounds": 5, "local_epochs": 5, "lr": 0.05, "batch": 16},
    "policy": {"min_rows": 1},
}


@dataclass
class Findings:
    """The result of all checks. `code` is the exit code of the first problem, 0 without one."""

    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    code: int = 0

    def problem(self, text: str, code: int) -> None:
        """Record a problem; the first one decides the exit code."""
        self.problems.append(text)
        self.code = self.code or code


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("doctor")(doctor)


def doctor(
    compile: Annotated[
        bool, typer.Option("--compile", help="First compile the kernels of all methods, on all cores.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check this installation: versions, extras, threads, data, caches, and a small federation from end to end.

    Exits with 0 when no problem is found, otherwise with the code of the first problem.

    Example: kohort doctor --compile
    """
    found = Findings()
    if _versions(found):
        if compile:
            _compile(found)
        _threads(found)
        _data(found)
        _kernel_cache(found)
        _self_test(found)
    if json:
        emit({"ok": not found.code, **found.facts, "problems": found.problems, "notes": found.notes})
    else:
        _show(found)
    if found.code:
        raise typer.Exit(found.code)


def _versions(found: Findings) -> bool:
    """Whether all required packages are installed; without them no other check can run."""
    libraries: dict[str, str | None] = {}
    extras: dict[str, dict[str, str | None]] = {name: {} for name in USER_EXTRAS}
    for name, bounds, extra in _requirements():
        installed = _version_of(name)
        if extra is None:
            libraries[name] = installed
        elif extra in extras:
            extras[extra][name] = installed
        else:
            continue
        wrong = installed is not None and not _within(installed, bounds)
        if wrong or (installed is None and extra is None):
            have = f"{installed} is installed" if installed else "it is not installed"
            found.problem(f"{name}{bounds} is needed, and {have}: pip install '{name}{bounds}'", 2)
    for extra, packages in extras.items():
        if packages and None in packages.values():
            found.notes.append(f"extra {extra!r} is not installed: pip install 'kohort[{extra}]'")
    found.facts |= {
        "kohort": _version_of("kohort"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "libraries": libraries,
        "extras": extras,
    }
    return None not in libraries.values()


def _requirements() -> Iterator[tuple[str, str, str | None]]:
    """Name, version bounds and extra of every requirement of the installed package."""
    from importlib.metadata import requires  # not above: it would make every command start later

    for line in requires("kohort") or []:
        match = _REQUIREMENT.match(line)
        if match:
            yield match["name"], match["bounds"].strip(), match["extra"]


def _version_of(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _within(installed: str, bounds: str) -> bool:
    have = _numbers(installed)
    for sign, limit in _BOUND.findall(bounds):
        wanted = _numbers(limit)
        padded = have + (0,) * (len(wanted) - len(have))
        if (sign == ">=" and padded < wanted) or (sign == "<" and padded >= wanted):
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in leading.group().split(".")) if leading else ()


def _threads(found: Findings) -> None:
    import numba
    import numpy as np
    import polars as pl
    from threadpoolctl import threadpool_info

    np.ones((2, 2)) @ np.ones((2, 2))  # loads the BLAS library, which threadpoolctl lists only then
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found.facts["threads"] = {
        "processors": available,
        "numba": numba.get_num_threads(),
        "polars": pl.thread_pool_size(),
        "blas": max((pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"), default=None),
    }


def _data(found: Findings) -> None:
    from kohort.tables.datasets.catalogue import FOLDER_VARIABLE, cache_folder, list_datasets

    folder = os.environ.get(FOLDER_VARIABLE)
    if folder and not Path(folder).is_dir():
        found.problem(f"{FOLDER_VARIABLE} does not name a folder: correct or unset it", 2)
    cache = cache_folder()
    writable = _writable(cache)
    if not writable:
        found.notes.append(f"{cache} cannot be written: downloaded tables are not kept. Set XDG_CACHE_HOME")
    found.facts |= {
        "data": {item.name: item.found for item in list_datasets()},
        "cache": {"folder": str(cache), "writable": writable},
    }


def _writable(folder: Path) -> bool:
    """Whether a file can be created in `folder`, or in the nearest folder above it that exists."""
    place = next((path for path in (folder, *folder.parents) if path.exists()), None)
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=place):
            return True
    except OSError:
        return False


def _kernel_cache(found: Findings) -> None:
    from kohort.models.dense.kernel import train_sites

    path = getattr(getattr(train_sites, "stats", None), "cache_path", None)
    line = (
        train_sites.__code__.co_firstlineno
    )  # part of the file name, so that the cache of an older kernel does not count
    compiled = path is not None and any(Path(path).glob(f"kernel.train_sites-{line}.*.nbi"))
    state = "off" if path is None else "warm" if compiled else "cold"
    if state == "off":
        found.notes.append("compiled kernels cannot be cached: every process compiles them again. Set NUMBA_CACHE_DIR")
    elif state == "cold":
        found.notes.append("kernels are not compiled yet, so first runs take seconds more: kohort doctor --compile")
    found.facts["kernel_cache"] = {"state": state, "folder": path}


def _compile(found: Findings) -> None:
    from kohort.runs.compile import compile_kernels

    began = perf_counter()
    failed = compile_kernels(releases=True)
    if failed:
        found.notes.append(f"kernels that are compiled when they are first needed: {', '.join(failed)}")
    found.facts["compiled"] = {"seconds": perf_counter() - began, "failed": list(failed)}


def _self_test(found: Findings) -> None:
    """Train three sites on synthetic rows, store the run, load its model, and verify the ledger."""
    from kohort.errors import KohortError

    began = perf_counter()
    result: dict[str, Any] = {"passed": False}
    try:
        result |= _tiny_federation()
        result["passed"] = True
    except KohortError as error:
        found.problem(f"self-test: {error}", error.exit_code)
    except Exception as error:  # any failure of the self-test is a finding
        found.problem(f"self-test: {type(error).__name__}: {error}", 1)
    found.facts["self_test"] = {**result, "seconds": perf_counter() - began}


def _tiny_federation() -> dict[str, Any]:
    import tempfile

    import numpy as np
    import polars as pl

    from kohort.errors import IntegrityError, KohortError
    from kohort.models.files import load_model
    from kohort.privacy.ledger.verify import verify_ledger
    from kohort.runs.config import load_plan
    from kohort.runs.run import run

    random = np.random.default_rng(0)
    first, second = random.uniform(size=(2, ROWS))
    table = pl.DataFrame({"first": first, "second": second, "outcome": np.where(first + second > 1, "over", "under")})
    with tempfile.TemporaryDirectory(prefix="kohort-doctor-") as folder:
        out = Path(folder) / "run"
        outcome = run(load_plan(_PLAN), out=out, seed=0, tables={"": table})
        ledger = verify_ledger(out)
        if ledger.head != outcome.ledger_head:
            raise IntegrityError("the ledger does not end in the head the run named")
        if not load_model(out).predict(table).equals(outcome.model.predict(table)):
            raise IntegrityError("the model read back from disk predicts differently")
    if outcome.accuracy < LEARNED:
        raise KohortError(
            f"training on three sites did not converge (accuracy {outcome.accuracy:.2f})", hint="Report it"
        )
    return {"sites": len(outcome.sites), "accuracy": outcome.accuracy, "ledger_lines": ledger.lines}


def _show(found: Findings) -> None:
    from rich.table import Table

    facts = found.facts
    table = Table("what", "found")
    table.add_row("kohort", f"{facts['kohort']}, Python {facts['python']}, {facts['system']}")
    table.add_row("libraries", ", ".join(f"{name} {number or '-'}" for name, number in facts["libraries"].items()))
    for extra, packages in facts["extras"].items():
        table.add_row(f"extra {extra}", ", ".join(f"{name} {number or '-'}" for name, number in packages.items()))
    if "self_test" in facts:
        _show_environment(table, facts)
    console = stdout()
    console.print(table)
    for note in found.notes:
        console.print(f"note: {note}", markup=False)
    for problem in found.problems:
        console.print(f"problem: {problem}", markup=False)
    console.print("No problem found." if not found.code else "Problems found; see above.", markup=False)


def _show_environment(table: Table, facts: Mapping[str, Any]) -> None:
    from rich.markup import escape

    table.add_row("threads", ", ".join(f"{name} {count}" for name, count in facts["threads"].items()))
    places: dict[str, list[str]] = {}
    for name, place in facts["data"].items():
        places.setdefault(place, []).append(name)
    for place, names in places.items():
        table.add_row(f"data: {place}", ", ".join(names))
    cache = facts["cache"]
    table.add_row("cache", escape(f"{cache['folder']}, {'writable' if cache['writable'] else 'not writable'}"))
    table.add_row("compiled kernels", facts["kernel_cache"]["state"])
    test = facts["self_test"]
    if test["passed"]:
        said = f"{test['sites']} sites, accuracy {test['accuracy']:.2f}, {test['ledger_lines']} ledger lines verified"
        table.add_row("self-test", f"{said}, {test['seconds']:.1f} s")
