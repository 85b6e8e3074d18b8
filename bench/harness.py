"""What every benchmark shares: rows of results, one pinned process a benchmark, one result file each, one page of all.

A benchmark is a file beside this one with `NAME`, `SUMMARY` and `measure() -> list[Row]`. Nothing lists them: whatever
file has a `measure` is a benchmark. A peer that is not installed gives a row that says so, never a number.
"""

from __future__ import annotations

import ast
import datetime
import importlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

__all__ = ["QUICK", "Row", "best_of", "discover", "main", "run_here", "write_page"]

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
QUICK = bool(os.environ.get("KOHORT_BENCH_QUICK"))
"""Whether benchmarks that take minutes shall measure less: `python -m bench --quick NAME`."""
PAGE = HERE / "RESULTS.md"

_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "POLARS_MAX_THREADS",
)
"""Numerical libraries use one thread a process, ours and the peers' alike. Peers may still start several processes."""

_VERSIONED = ("kohort", "numpy", "numba", "polars", "cryptography", "torch", "flwr", "ray", "opacus")

NOT_INSTALLED = "not installed"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison. `ratio` is how many times faster we are, or how many times the peer's figure ours is."""

    setting: str
    ours: float
    peer: str
    peer_value: float | None
    unit: str
    ratio: float | None
    target: float | None = None
    goal: Literal["at least", "at most"] = "at least"
    note: str = ""
    difference: bool = False
    """Whether `ratio` and `target` are differences to the peer's figure, as of accuracies."""

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without a target or without a peer to compare with."""
        if self.target is None or self.ratio is None:
            return None
        return self.ratio >= self.target if self.goal == "at least" else self.ratio <= self.target

    @classmethod
    def faster(
        cls, setting: str, *, ours: float, peer: str, theirs: float | None, target: float | None = None, note: str = ""
    ) -> Row:
        """Seconds against seconds: the ratio is theirs over ours. `theirs=None`: the peer is not installed."""
        return cls(
            setting=setting,
            ours=ours,
            peer=peer,
            peer_value=theirs,
            unit="s",
            ratio=None if theirs is None else theirs / ours,
            target=target,
            note=note if theirs is not None else NOT_INSTALLED,
        )

    @classmethod
    def within(
        cls, setting: str, *, ours: float, peer: str, theirs: float, unit: str, target: float = 1.0, note: str = ""
    ) -> Row:
        """A cost that must stay below `target` times `theirs`: a bare kernel, or a limit."""
        return cls(
            setting=setting,
            ours=ours,
            peer=peer,
            peer_value=theirs,
            unit=unit,
            ratio=ours / theirs,
            target=target,
            goal="at most",
            note=note,
        )


def best_of(repetitions: int, function: Callable[[], float]) -> float:
    """The smallest of several measurements: what the work takes when nothing else is in the way."""
    return min(function() for _ in range(repetitions))


def discover() -> dict[str, str]:
    """Benchmark names and their modules, found by reading the files: a file with a `measure` function is one."""
    found = {}
    for path in sorted(HERE.glob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        if not any(isinstance(node, ast.FunctionDef) and node.name == "measure" for node in body):
            continue
        names = [
            ast.literal_eval(node.value)
            for node in body
            if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == ["NAME"]
        ]
        found[names[0] if names else path.stem] = f"bench.{path.stem}"
    return found


def main(wanted: Sequence[str]) -> int:
    """Run the wanted benchmarks (all when none is named), each in its own process, and rewrite the page."""
    quick, wanted = "--quick" in wanted, [name for name in wanted if name != "--quick"]
    known = discover()
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"unknown benchmark {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    failed = []
    environment = {**os.environ, **dict.fromkeys(_THREADS, "1")}
    # Compiled bytecode and kernels are kept: start-up is measured as an installed program has it.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if quick:
        environment["KOHORT_BENCH_QUICK"] = "1"
    for name in wanted or known:
        print(f"{name}: running", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "bench", "--here", name]
        if subprocess.run(command, cwd=HERE.parent, env=environment, check=False).returncode:
            failed.append(name)
        else:
            print("\n".join(_table(_read(RESULTS / f"{name}.json"))), flush=True)
    write_page()
    if failed:
        print(f"failed, earlier results kept: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run_here(name: str) -> None:
    """Run one benchmark in this process and write its result file.

    A module whose `PARTIAL` is true measures a part of itself: its rows replace those of the same setting, peer and
    unit, and the others stay.
    """
    module = importlib.import_module(discover()[name])
    stored = RESULTS / f"{name}.json"
    earlier = _read(stored)["rows"] if getattr(module, "PARTIAL", False) and stored.exists() else []
    kept = {(row["setting"], row["peer"], row["unit"]): row for row in earlier}
    for row in _as_rows(module.measure()):
        kept[row.setting, row.peer, row.unit] = {**asdict(row), "met": row.met}
        _write(name, module, list(kept.values()))  # what was measured stays if the rest is not


def _write(name: str, module: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    result = {
        "name": name,
        "summary": getattr(module, "SUMMARY", None) or _first_paragraph(module.__doc__ or name),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": _machine(),
        "versions": _versions(),
        "rows": list(rows),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _as_rows(measured: Any) -> Iterable[Row]:
    """Rows as benchmarks give them; a mapping with rows of ours_ms and peer_ms is read as plain comparisons."""
    if not isinstance(measured, Mapping):
        return iter(measured)
    return [
        Row.faster(row["setting"], ours=row["ours_ms"] / 1000, peer=row["peer"], theirs=row["peer_ms"] / 1000)
        for row in measured["rows"]
    ]


def _first_paragraph(text: str) -> str:
    return " ".join(text.strip().split("\n\n")[0].split())


def write_page() -> None:
    """Rewrite RESULTS.md from the result files."""
    results = [_read(path) for path in sorted(RESULTS.glob("*.json"))]
    rows = [row for result in results for row in result["rows"] if row["met"] is not None]
    lines = [
        "# Benchmark results",
        "",
        "Written by `make bench` from `bench/results/*.json`; do not edit. How it is measured: `bench/README.md`.",
        "",
        f"Targets met: {sum(row['met'] for row in rows)} of {len(rows)}.",
    ]
    for result in results:
        lines += ["", f"## {result['name']}", "", result["summary"], "", *_table(result), "", _provenance(result)]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def _table(result: dict[str, Any]) -> list[str]:
    lines = ["| setting | kohort | peer | peer's figure | ratio | target | met |", "|---|---:|---|---:|---:|---|---|"]
    for row in result["rows"]:
        peer_value = NOT_INSTALLED if row["peer_value"] is None else _figure(row["peer_value"], row["unit"])
        ratio, target = _compared(row)
        met = {True: "yes", False: "**no**", None: ""}[row["met"]]
        ours = _figure(row["ours"], row["unit"])
        lines.append(f"| {row['setting']} | {ours} | {row['peer']} | {peer_value} | {ratio} | {target} | {met} |")
    notes: Iterable[str] = dict.fromkeys(
        row["note"] for row in result["rows"] if row["note"] not in {"", NOT_INSTALLED}
    )
    return [*lines, *(line for note in notes for line in ("", note))]


def _compared(row: Mapping[str, Any]) -> tuple[str, str]:
    """The ratio, or the difference, and its target."""
    if row.get("difference"):
        ratio = "" if row["ratio"] is None else f"{row['ratio']:+.4f}"
        return ratio, "" if row["target"] is None else f"{row['goal']} {row['target']:+g}"
    ratio = "" if row["ratio"] is None else f"{_three_digits(row['ratio'])}x"
    return ratio, "" if row["target"] is None else f"{row['goal']} {row['target']:g}x"


def _figure(value: float, unit: str) -> str:
    if unit in {"accuracy", "R2"}:
        return f"{value:.4f}"
    if unit == "s" and value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{_three_digits(value)} {unit}"


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _provenance(result: dict[str, Any]) -> str:
    machine, versions = result["machine"], result["versions"]
    libraries = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"*{result['date']}, {machine['processor']}, {machine['cpus']} CPUs, {machine['memory_gb']} GB, "
        f"{machine['system']}; {libraries}*"
    )


def _machine() -> dict[str, Any]:
    """What kind of machine this is; nothing that names the very one."""
    processor = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.partition(":")[2] for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        processor = f"{models[0].strip()} ({processor})" if models else processor
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "processor": processor,
        "cpus": os.cpu_count(),
        "memory_gb": round(memory / 1e9),
        "system": platform.system(),
    }


def _versions() -> dict[str, str]:
    """Python, and the libraries that took part."""
    used = {name: metadata.version(name) for name in _VERSIONED if name in sys.modules or name == "kohort"}
    return {"python": platform.python_version(), **used}
