"""Anonymising: speed against anonypy and one Polars group-by, loss against its bounds, time and memory at scale."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
import polars as pl

from bench.harness import Row, best_of
from bench.scale import command_cost
from kohort.anonymity.relational.algorithms.mondrian import mondrian
from kohort.anonymity.relational.anonymise import anonymise
from kohort.anonymity.relational.problem import CodedTable, Problem, code_table
from kohort.anonymity.relational.rule import Rule, SensitiveColumns
from kohort.tables.datasets.catalogue import FOLDER_VARIABLE, load_dataset
from kohort.tables.hierarchy import read_hierarchies

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "anonymise"
SUMMARY = (
    "Adult, 30,162 complete rows, 8 quasi-identifiers. Mondrian against anonypy's partitioning (k = 10) and, on a "
    "million rows drawn from it, against one Polars group-by over the same coded columns. NCP against its bounds. "
    "`kohort anonymize` on a million rows and on fifty columns, Parquet to Parquet, in a process of its own; Mondrian "
    "on ten million. What the first call on a machine costs, with nothing compiled yet, over the second."
)
QUASI = ["age", "workclass", "education", "marital_status", "occupation", "race", "sex", "native_country"]
MILLION = 1_000_000
SET_BOUNDS = {3: 0.016, 10: 0.048, 50: 0.135}
LABEL_BOUNDS = {3: 0.037, 10: 0.082, 50: 0.162}
# Rules about income at k = 10: bound of the labels of the lattice, bound of sets and intervals.
RULE_BOUNDS: dict[str, tuple[dict[str, object], float | None, float]] = {
    "l = 2": ({"l": 2}, 0.160, 0.062),
    "entropy l = 1.5": ({"l": 1.5, "l_kind": "entropy"}, None, 0.41),
    "t = 0.2": ({"t": 0.2}, 0.28, 0.227),
    "t = 0.3": ({"t": 0.3}, 0.22, 0.115),
}
SUPPRESSION_BOUNDS = {0.05: 0.060, 0.0: 0.080}
ADULT = "adult:train"
FIRST_CALL = 15.0
FIRST_CALLS = {
    "k = 10": ("--k", "10"),
    "k = 10, l = 2": ("--k", "10", "--l", "2"),
    "k = 10, t = 0.2": ("--k", "10", "--t", "0.2"),
}

_TEN_MILLION = """
import resource, sys
from bench.anonymise import coded_rows, strict
found = strict(coded_rows(10_000_000))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(peak * (1 if sys.platform == "darwin" else 1024))
"""


def measure() -> list[Row]:
    table = load_dataset(ADULT).frame.drop_nulls()
    return [_anonypy(table), _group_by(), *_losses(table), *_command(), *_first_calls(), _ten_million()]


def strict(table: CodedTable, k: int = 10) -> int:
    """Strict Mondrian from coded columns; the number of classes."""
    return mondrian(Problem(table, SensitiveColumns.of(pl.DataFrame({"rows": []}), []), Rule(k=k))).count


def coded_rows(rows: int) -> CodedTable:
    """Rows drawn from Adult, ages blurred by up to three years so that they are not mere copies."""
    return code_table(drawn_rows(rows), QUASI)


def drawn_rows(rows: int) -> pl.DataFrame:
    random = np.random.default_rng(7)
    table = load_dataset("adult").frame.drop_nulls()
    drawn = table[random.integers(0, table.height, rows)]
    age = (drawn["age"].to_numpy().astype(np.int64) + random.integers(-3, 4, rows)).clip(17, 90)
    return drawn.with_columns(pl.Series("age", age))


def _anonypy(table: pl.DataFrame) -> Row:
    coded = code_table(table, QUASI)
    ours = best_of(5, lambda: _seconds(lambda: strict(coded)))
    setting = "Mondrian, 30,162 rows, k = 10"
    try:
        from anonypy.mondrian import Mondrian
    except ImportError as error:
        if error.name != "anonypy":  # it does not tell that it needs pandas
            raise
        return Row.faster(setting, ours=ours, peer="anonypy", theirs=None, target=500.0)
    frame = table.to_pandas()
    for name in QUASI[1:]:
        frame[name] = frame[name].astype("category")
    theirs = _seconds(lambda: Mondrian(frame, QUASI).partition(k=10))
    return Row.faster(setting, ours=ours, peer="anonypy", theirs=theirs, target=500.0, note="Partitioning alone.")


def _group_by() -> Row:
    coded = coded_rows(MILLION)
    frame = pl.DataFrame({column.name: codes for column, codes in zip(coded.columns, coded.codes, strict=True)})
    theirs = best_of(3, lambda: _seconds(lambda: frame.group_by(QUASI).len()))
    ours = best_of(3, lambda: _seconds(lambda: strict(coded)))
    return Row.within(
        "strict Mondrian, 1,000,000 rows, k = 10",
        ours=ours,
        peer="Polars group-by",
        theirs=theirs,
        unit="s",
        target=3.0,
    )


def _losses(table: pl.DataFrame) -> list[Row]:
    rows = [_loss(table, k, bound, "sets and intervals", {}) for k, bound in SET_BOUNDS.items()]
    folder = Path(os.environ.get(FOLDER_VARIABLE, "")) / "hierarchies" / "adult"
    if folder.is_dir():
        given = {"hierarchies": read_hierarchies(folder)}
        rows += [_loss(table, k, bound, "labels of the ARX hierarchies", given) for k, bound in LABEL_BOUNDS.items()]
        rows += [_released_loss(table, limit, bound, given) for limit, bound in SUPPRESSION_BOUNDS.items()]
        rows += _rule_losses(table, given)
    return rows


def _released_loss(table: pl.DataFrame, limit: float, bound: float, given: dict[str, object]) -> Row:
    found = anonymise(table, quasi=QUASI, k=10, suppression_limit=limit, **given).report  # type: ignore[arg-type]
    setting = f"NCP of released rows, labels of the ARX hierarchies, k = 10, {limit:.0%} suppression"
    return Row.within(setting, ours=100 * found.ncp_released, peer="bound", theirs=100 * bound, unit="%")


def _rule_losses(table: pl.DataFrame, given: dict[str, object]) -> list[Row]:
    """Rules about income; entropy l by labels has no bound and is reported beside ARX."""
    rows = []
    for name, (rule, labels, sets) in RULE_BOUNDS.items():
        asked = {"sensitive": ["income"], **rule}
        peer = ("bound", labels) if labels is not None else ("ARX", 0.490)
        for how, options, (whose, bound) in (
            ("labels of the ARX hierarchies", given, peer),
            ("sets and intervals", {}, ("bound", sets)),
        ):
            found = anonymise(table, quasi=QUASI, k=10, **asked, **options).report  # type: ignore[arg-type]
            setting = f"NCP, {how}, k = 10, {name}"
            rows.append(Row.within(setting, ours=100 * found.ncp, peer=whose, theirs=100 * bound, unit="%"))
    return rows


def _loss(table: pl.DataFrame, k: int, bound: float, how: str, options: dict[str, object]) -> Row:
    found = anonymise(table, quasi=QUASI, k=k, **options).report  # type: ignore[arg-type]
    return Row.within(f"NCP, {how}, k = {k}", ours=100 * found.ncp, peer="bound", theirs=100 * bound, unit="%")


def _command() -> list[Row]:
    """Whole commands, Parquet to Parquet, each in a process of its own: processor seconds and peak memory."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        table, out = Path(folder) / "table.parquet", Path(folder) / "out.parquet"
        for what, make, roles, limit in (
            ("1,000,000 rows x 8", lambda: drawn_rows(MILLION).select(*QUASI, "income"), ("income",), 4.0),
            ("200,000 rows x 50", wide_rows, (), 6.0),
        ):
            frame = make()
            frame.write_parquet(table)
            quasi = ",".join(name for name in frame.columns if name not in roles)
            sensitive = ("--sensitive", *roles) if roles else ()
            options = ("--quasi", quasi, *sensitive, "--k", "10", "--out", str(out), "--force", "--json")
            cost = command_cost("anonymize", str(table), *options)
            setting = f"kohort anonymize, {what}, k = 10, processor seconds"
            rows.append(Row.within(setting, ours=cost.seconds, peer="limit", theirs=limit, unit="s"))
            setting = f"kohort anonymize, {what}, k = 10"
            rows.append(Row.within(setting, ours=cost.memory, peer="limit", theirs=2.0, unit="GB"))
    return rows


def wide_rows() -> pl.DataFrame:
    """Fifty columns of random numbers."""
    random = np.random.default_rng(0)
    return pl.DataFrame({f"n{place}": random.integers(0, 60, 200_000) for place in range(50)})


def _first_calls() -> list[Row]:
    """What compiling adds to a call, by rule: each with a cache of its own, empty the first time."""
    rows = []
    for name, rule in FIRST_CALLS.items():
        with tempfile.TemporaryDirectory() as cache:
            first, again = (_anonymize(ADULT, *rule, "--drop", "rest", NUMBA_CACHE_DIR=cache)[0] for _ in range(2))
        setting = f"first call less the second, Adult, {name}"
        rows.append(Row.within(setting, ours=first - again, peer="limit", theirs=FIRST_CALL, unit="s"))
    return rows


def _anonymize(table: str, *rule: str, **variables: str) -> tuple[float, int]:
    """Seconds and peak bytes of the command in a process of its own, its release verified."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--quasi", ",".join(QUASI), "--sensitive", "income", "--missing", "drop", *rule]
        command = [sys.executable, "-c", _MEASURED, table, *options, "--out", str(Path(folder) / "out.parquet")]
        # Blocks share the cores; how many threads the loops use is ours to choose, as for a user.
        environment = {name: value for name, value in os.environ.items() if not name.endswith("_THREADS")} | variables
        root = Path(__file__).resolve().parent.parent
        began = perf_counter()
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
        seconds = perf_counter() - began
    report, peak = done.stdout.splitlines()[-2:]
    if not json.loads(report)["verified"]:
        raise RuntimeError("the release was not verified")
    return seconds, int(peak)


_MEASURED = """
import resource, sys
from kohort.cli.main import main
sys.argv = ["kohort", "anonymize", *sys.argv[1:], "--json"]
try:
    main()
except SystemExit as ended:
    if ended.code:
        raise
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(peak * (1 if sys.platform == "darwin" else 1024))
"""


def _ten_million() -> Row:
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", _TEN_MILLION], cwd=root, capture_output=True, text=True, check=True)
    return Row.within(
        "strict Mondrian, 10,000,000 rows, k = 10, with the table they are drawn from",
        ours=int(done.stdout.split()[-1]) / 1e9,
        peer="limit",
        theirs=4.0,
        unit="GB",
    )


def _seconds(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began
