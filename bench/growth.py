"""How costs grow with rows, columns, sites and rounds: whole commands and a run of every method, in processor seconds.

Every command runs in a process of its own, with one thread, at several sizes. Its cost is fitted as a + b n^p: the
start of the process is `a`, and `p` is the exponent. 1 is in proportion. The measured curves are drawn to
docs/images, a picture for each of the four. KOHORT_BENCH_GROWS=sites,rounds measures these alone.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bench.harness import HERE, QUICK, Row
from bench.scale import command_cost

__all__ = ["NAME", "SUMMARY", "fitted", "measure"]

NAME = "growth"
LARGEST = 1.2
SUMMARY = (
    "How costs grow: the exponent p of a + b n^p, fitted to the processor seconds of whole commands at four sizes, "
    "each a process of its own with one thread; in brackets the seconds at the smallest and at the largest size. 1 is "
    "in proportion; 0 where the size costs less than a tenth of the command. Drawn in docs/scale.md."
)
PICTURES = HERE.parent / "docs" / "images"
ONLY = frozenset(os.environ.get("KOHORT_BENCH_GROWS", "").split(",")) - {""}
"""Where some of rows, columns, sites and rounds are named, these alone are measured."""
PARTIAL = bool(ONLY)
QUASI = ("age", "sex", "region", "ward")
WARDS = tuple(f"w{place}" for place in range(20))
COMBINATIONS = 72 * 2 * 4 * len(WARDS)
"""Of quasi-identifiers: with k rows in proportion to all rows, about half of them are k alike at every size."""
FEW_ROWS = 5_000
ROWS = (10_000, 40_000, 160_000, 640_000)
LARGE_ROWS = (100_000, 400_000, 1_600_000, 6_400_000)
COLUMNS, COLUMNS_ROWS = (8, 24, 72, 144), FEW_ROWS
SITES, SITES_ROWS = (4, 9, 20, 45), 40_000
ROUNDS, ROUNDS_ROWS = (7, 21, 63, 189), FEW_ROWS
POWERS = np.linspace(0.0, 3.0, 301)
FLAT = 0.1
SHORT = 4.0

METHODS = {
    "additive": '[method.secure]\nsum = "masks"',
    "trees": '[method.secure]\nsum = "masks"',
    "central": "",
    "fedavg": '[method.secure]\nsum = "masks"',
    "partial": '[method.gate]\nrule = "k-anonymity"\nk = {k}\n[method.secure]\nsum = "masks"',
    "silo": "[method.anonymise]\nk = 10",
    "syntactic": "[method.anonymise]\nk = 10\nm = 2",
    "oneshot": '[method.secure]\nsum = "bfv"',
    "hybrid": '[method.secure]\nsum = "masks"\n[[method.phases]]\nkind = "peers"\nrows = "low"\nrounds = 5\n'
    '[[method.phases]]\nkind = "server"\nrows = "high"\ndp = {epsilon = 1.0, delta = 1e-7}',
}
"""The methods, and what their plans say beside the rest."""
PAIRS = "each site shares a mask with every other one; with fewer pairs a lying hub could open a site's vector"
"""Why runs over secure sums by masks may grow faster than their sites."""
COMPARED = (
    "the local search compares a row with a class column after column, until the class is worse than the best one so "
    "far; the more columns, the later that is, and the larger its tables are beside the processor's cache"
)
"""Why making a table anonymous grows faster than its columns."""
TRAINED = ("central", "fedavg", "partial", "silo", "syntactic")
"""Methods whose rounds are those of [train]."""
WITHOUT_SITES = ("central",)
PLAN = """
[data]
table = "{table}"
target = "outcome"
quasi = {quasi}
sensitive = ["outcome"]
features = "rest"
test = 0.1
{data}
[sites]
count = {sites}
split = "iid"
{layout}
{train}
[policy]
raw = true
min_rows = 1
min_cell = 1
epsilon = 10.0
[method]
name = "{method}"
{rounds}
{options}
"""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A command at several sizes of one thing: the words of the command by size, and why it may grow faster."""

    grows: str
    command: str
    sizes: Sequence[int]
    words: Callable[[int], list[str]]
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A curve and its processor seconds by size."""

    curve: Curve
    seconds: Sequence[float]

    @property
    def exponent(self) -> float:
        """The fitted exponent."""
        return fitted(self.curve.sizes, self.seconds)

    def row(self) -> Row:
        """The exponent beside its limit, which curves with a reason do not have."""
        sizes, seconds = self.curve.sizes, self.seconds
        return Row(
            setting=f"{sizes[0]:,} to {sizes[-1]:,} {self.curve.grows}: {self.curve.command} "
            f"({seconds[0]:.1f} to {seconds[-1]:.1f} s)",
            ours=self.exponent,
            peer="in proportion",
            peer_value=1.0,
            unit="",
            ratio=self.exponent,
            target=None if self.curve.reason else LARGEST,
            goal="at most",
            note=f"{self.curve.command} over {self.curve.grows}: {self.curve.reason}" if self.curve.reason else "",
        )


def fitted(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The exponent p of a + b n^p, with a and b at least 0, that leaves the smallest relative errors.

    Args:
        sizes: At least three sizes.
        costs: What each costs.

    Returns:
        The exponent; 0 where the size is less than a tenth of the largest cost.
    """
    from scipy.optimize import nnls

    n, cost = np.asarray(sizes, float) / sizes[-1], np.asarray(costs, float)
    best = (np.inf, 0.0, 0.0)
    for power in POWERS:
        terms = np.column_stack([np.ones_like(n), n**power]) / cost[:, None]
        (_, slope), error = nnls(terms, np.ones_like(cost))
        best = min(best, (float(error), float(power), float(slope)))
    _, power, slope = best
    return power if slope > FLAT * cost[-1] else 0.0


def measure() -> Iterator[Row]:
    done = []
    with tempfile.TemporaryDirectory() as folder:
        for curve in curves(Path(folder)):
            if ONLY and curve.grows not in ONLY:
                continue
            sizes = curve.sizes[:3] if QUICK else curve.sizes
            seconds = [_seconds(curve.words(size)) for size in sizes]
            one = Measured(curve=Curve(**{**vars(curve), "sizes": sizes}), seconds=seconds)
            done.append(one)
            if not QUICK:
                draw([other for other in done if other.curve.grows == curve.grows], PICTURES)
            yield one.row()


def _seconds(words: list[str]) -> float:
    """Processor seconds of a command; of a short one, which noise weighs on, the least of three runs."""
    seconds = command_cost(*words).seconds
    return seconds if seconds > SHORT else min(seconds, *(command_cost(*words).seconds for _ in range(2)))


def people(rows: int, *, columns: int = 8, items: bool = False, seed: int = 1) -> pl.DataFrame:
    """A made-up table: four quasi-identifiers, and numbers of which some tell about the outcome.

    Args:
        rows: Its rows.
        columns: Columns of numbers.
        items: Whether a column lists two codes for each row.
        seed: Of the draws.

    Returns:
        The table.
    """
    random = np.random.default_rng(seed)

    def drawn(values: Sequence[str]) -> pl.Series:
        return pl.Series(values).gather(random.integers(0, len(values), rows))

    numbers = {f"n{place}": random.normal(size=rows).round(2) for place in range(columns)}
    score = sum(values for place, values in enumerate(numbers.values()) if place < 4) + random.normal(size=rows)
    listed = {"codes": random.integers(400, 420, (rows, 2)).astype(str).tolist()} if items else {}
    return pl.DataFrame({
        "age": random.integers(18, 90, rows),
        "sex": drawn(["f", "m"]),
        "region": drawn(["north", "south", "east", "west"]),
        "ward": drawn(WARDS),
        **numbers,
        **listed,
        "outcome": np.where(score > 0, "yes", "no"),
    })  # fmt: skip


class Files:
    """Tables, plans and finished runs in a folder, made when they are asked for.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def table(self, rows: int, *, columns: int = 8, items: bool = False, name: str = "people") -> str:
        """The path of a made-up table; with a column of items where asked."""
        path = self.folder / f"{name}-{rows}-{columns}-{items}.parquet"
        if not path.exists():
            people(rows, columns=columns, items=items, seed=1 + (name != "people")).write_parquet(path)
        return str(path)

    def quasi(self, rows: int) -> str:
        """The path of a table of quasi-identifiers and the outcome alone."""
        path = self.folder / f"quasi-{rows}.parquet"
        if not path.exists():
            people(rows, columns=4).select(*QUASI, "outcome").write_parquet(path)
        return str(path)

    def plan(self, method: str, *, rows: int, columns: int = 8, sites: int = 5, rounds: int | None = None) -> str:
        """The path of a plan."""
        items = method == "syntactic"
        data = 'items = ["codes"]' if items else ""
        layout = train = own = ""
        if method == "hybrid":
            bounds = ", ".join(["age = [18, 90]", *(f"n{place} = [-4, 4]" for place in range(columns))])
            wards = ", ".join(f'"{ward}"' for ward in WARDS)
            data = (
                f'bounds = {{{bounds}}}\ncategories = {{sex = ["f", "m"], region = ["north", "south", "east", "west"], '
                f'ward = [{wards}], outcome = ["yes", "no"]}}\nencoding = "onehot"'
            )
            layout = "clusters = 2\nlow_risk = 0.4"
        if method in TRAINED:
            train = f"[train]\nrounds = {rounds or 20}"
        elif rounds is not None:
            own = f"steps = {rounds // 2}\ndepth = 2" if method == "trees" else f"rounds = {rounds}"
        text = PLAN.format(
            table=self.table(rows, columns=columns, items=items), quasi=str(list(QUASI)).replace("'", '"'), data=data,
            sites=1 if method in WITHOUT_SITES else sites, layout=layout, train=train, method=method, rounds=own,
            options=METHODS[method].replace("{k}", str(max(2, rows // COMBINATIONS))),
        )  # fmt: skip
        path = self.folder / f"{method}-{rows}-{columns}-{sites}-{rounds}.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    def to(self, name: str) -> list[str]:
        """The words that say where a command writes."""
        return ["--out", str(self.folder / name), "--force"]

    def run(self, method: str, **options: Any) -> list[str]:
        """The words of a run."""
        return ["run", self.plan(method, **options), "--out", str(self.folder / "out"), "--force", "--json"]

    def finished(self, method: str, **options: Any) -> str:
        """The folder of a finished run."""
        place = self.folder / "-".join([method, *(f"{key}{value}" for key, value in options.items())])
        if not place.exists():
            command_cost("run", self.plan(method, **options), "--out", str(place), "--json")
        return str(place)


def curves(folder: Path) -> Iterator[Curve]:
    """Every command and method over what it may grow with."""
    files = Files(folder)
    yield from _over_rows(files)
    yield from _over_columns(files)
    yield from _over_rounds(files)
    yield from _over_sites(files)


def _over_rows(files: Files) -> Iterator[Curve]:
    def over(command: str, words: Callable[[int], list[str]], sizes: Sequence[int] = LARGE_ROWS) -> Curve:
        return Curve(grows="rows", command=command, sizes=sizes, words=words)

    def trained(method: str) -> Callable[[int], list[str]]:
        return lambda n: files.run(method, rows=n)

    quasi, outcome = ["--quasi", ",".join(QUASI)], ["--sensitive", "outcome"]
    unique = ["--quasi", "n0,n1,n2", *outcome]
    rule = ["--rule", "k-anonymity", "--k", "100", "--out-shared"]
    yield over("check", lambda n: ["check", files.quasi(n), *quasi, *outcome])
    yield over("check, nearly all unique", lambda n: ["check", files.table(n), *unique])
    yield over("gate", lambda n: ["gate", files.quasi(n), *quasi, *rule, *files.to("shared.parquet")[1:]])
    yield over(
        "anonymize",
        lambda n: [
            "anonymize",
            files.quasi(n),
            *quasi,
            *outcome,
            "--k",
            str(n // COMBINATIONS),
            *files.to("k.parquet"),
        ],
    )
    yield over("init", lambda n: ["init", files.table(n), "--target", "outcome", *files.to("made.toml")])
    yield over("harmonise", lambda n: ["harmonise", files.table(n), files.table(n, name="others")])
    model = files.finished("additive", rows=FEW_ROWS)
    yield over("predict", lambda n: ["predict", model, files.table(n), *files.to("predicted.parquet")])
    yield over("evaluate", lambda n: ["evaluate", model, files.table(n)])
    yield over("audit", lambda n: ["audit", files.finished("additive", rows=n), "--shadows", "4"], ROWS)
    for method in METHODS:
        yield over(f"run ({method})", trained(method), ROWS)


def _over_columns(files: Files) -> Iterator[Curve]:
    def over(command: str, words: Callable[[int], list[str]], reason: str = "") -> Curve:
        return Curve(grows="columns", command=command, sizes=COLUMNS, words=words, reason=reason)

    def trained(method: str) -> Callable[[int], list[str]]:
        return lambda n: files.run(method, rows=COLUMNS_ROWS, columns=n)

    def table(n: int) -> str:
        return files.table(COLUMNS_ROWS, columns=n)

    def roles(n: int) -> list[str]:
        return ["--quasi", ",".join([*QUASI, *(f"n{place}" for place in range(n))]), "--sensitive", "outcome"]

    def model(n: int) -> str:
        return files.finished("additive", rows=COLUMNS_ROWS, columns=n)

    yield over("check", lambda n: ["check", table(n), *roles(n)])
    released = ["--k", "10", *files.to("k.parquet")]
    yield over("anonymize", lambda n: ["anonymize", table(n), *roles(n), *released], COMPARED)
    yield over("init", lambda n: ["init", table(n), "--target", "outcome", *files.to("made.toml")])
    yield over("predict", lambda n: ["predict", model(n), table(n), *files.to("predicted.parquet")])
    yield over("explain", lambda n: ["explain", model(n), *files.to("page.html")])
    for method in METHODS:
        yield over(f"run ({method})", trained(method))


def _over_sites(files: Files) -> Iterator[Curve]:
    def over(command: str, words: Callable[[int], list[str]], reason: str = "") -> Curve:
        return Curve(grows="sites", command=command, sizes=SITES, words=words, reason=reason)

    def trained(method: str) -> Callable[[int], list[str]]:
        return lambda n: files.run(method, rows=SITES_ROWS, sites=n)

    def done(n: int) -> str:
        return files.finished("additive", rows=SITES_ROWS, sites=n)

    for method, options in METHODS.items():
        if method not in WITHOUT_SITES:
            yield over(f"run ({method})", trained(method), PAIRS if "masks" in options else "")
    yield over("ledger verify", lambda n: ["ledger", "verify", done(n)])
    yield over("report", lambda n: ["report", done(n), *files.to("page.html")])


def _over_rounds(files: Files) -> Iterator[Curve]:
    def over(command: str, words: Callable[[int], list[str]]) -> Curve:
        return Curve(grows="rounds", command=command, sizes=ROUNDS, words=words)

    def trained(method: str) -> Callable[[int], list[str]]:
        return lambda n: files.run(method, rows=ROUNDS_ROWS, rounds=n)

    def done(n: int) -> str:
        return files.finished("fedavg", rows=ROUNDS_ROWS, rounds=n)

    for method in (*TRAINED, "additive", "trees"):
        yield over(f"run ({method})", trained(method))
    yield over("ledger verify", lambda n: ["ledger", "verify", done(n)])
    yield over("report", lambda n: ["report", done(n), *files.to("page.html")])
    yield over("lineage", lambda n: ["lineage", "site-01", done(n)])


def draw(measured: Sequence[Measured], folder: Path) -> None:
    """Draw curves that grow with one thing, to scale-rows.png, scale-columns.png, scale-sites.png or scale-rounds.png.

    Args:
        measured: The curves.
        folder: Where the picture goes.
    """
    import altair as alt
    import vl_convert

    what = measured[0].curve.grows
    points = [
        {"size": size, "seconds": seconds, "command": f"{one.curve.command}: {one.exponent:.2f}"}
        for one in measured
        for size, seconds in zip(one.curve.sizes, one.seconds, strict=True)
    ]
    chart = (
        alt.Chart(alt.InlineData(values=points), title=what, width=380, height=300)
        .mark_line(point=True)
        .encode(
            x=alt.X("size:Q", scale=alt.Scale(type="log"), title=what, axis=alt.Axis(format="~s")),
            y=alt.Y("seconds:Q", scale=alt.Scale(type="log"), title="processor seconds"),
            color=alt.Color("command:N", title="command: exponent", scale=alt.Scale(scheme="tableau20")),
        )
    )
    (folder / f"scale-{what}.png").write_bytes(vl_convert.vegalite_to_png(chart.to_dict(), scale=1.5))
