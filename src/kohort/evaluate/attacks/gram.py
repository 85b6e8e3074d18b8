"""The Gram attack: rebuilding a site's rows from what it sends to a one-layer network in closed form.

U S of a site's rows, or their Gram matrix G = Z'Z with Z = [1, x], tells the space the rows span and every inner
product within it. Rows of a table are not any vectors of that space: an indicator block holds a single 1, a number lies
on a grid. With few rows, hardly any vector but the rows themselves is like that.

How: a row z of Z has leverage z'G^-z <= 1 (1/c for a row that occurs c times and depends on no other). The search
fixes one block after the other to a category the site has, keeps the vectors of the space that agree so far (an affine
subspace), and drops a branch as soon as none is left, none has leverage <= 1, or two categories never occur together.
Numbers come out by themselves or are tried value by value. Of the vectors found, those whose outer products add up to G
with whole numbers are the rows; a row is certain when every way of adding up to G has it as often.

Totals: a category that occurs once shows its person, for its line of G is that person's record (`singled_out`).

Threat: whoever reads `paper` mode's messages, at no cost. Secure sums show a total of many rows, on which the same
search finds too many candidates and gives up: it says so (`complete`) and claims nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kohort.errors import DataError

__all__ = [
    "Grid",
    "OneHot",
    "Recovered",
    "Recovery",
    "factor_of_gram",
    "recover_rows",
    "recovery_rate",
    "singled_out",
    "unscaled",
]

Floats: TypeAlias = NDArray[np.float64]

_NEAR = 1e-5
_MOST_NODES = 20_000
_MOST_CANDIDATES = 2_000


@dataclass(frozen=True)
class OneHot:
    """Columns `start` to `stop` of [1, x] are the indicators of one category: a single 1, else 0."""

    start: int
    stop: int


@dataclass(frozen=True)
class Grid:
    """Column `column` of [1, x] is a number `low` + i `step`, i = 0 ... `count` - 1. A step of 0: any number."""

    column: int
    low: float
    step: float
    count: int


Block: TypeAlias = OneHot | Grid


@dataclass(frozen=True, eq=False)
class Recovered:
    """Rows [count, width] of [1, x] as rebuilt, repeated as they occur; `certain` marks those without doubt."""

    rows: Floats
    certain: NDArray[np.bool_]
    complete: bool
    """Whether the search ended by itself rather than by giving up."""

    @property
    def count(self) -> int:
        """How many rows were rebuilt."""
        return len(self.rows)


@dataclass(frozen=True)
class Recovery:
    """How much of some sites was rebuilt: shares of sites rebuilt whole, and of rows rebuilt for certain."""

    sites: float
    rows: float


def factor_of_gram(gram: NDArray[Any]) -> Floats:
    """A factor F of a Gram matrix, so that F F' is that matrix.

    Args:
        gram: A symmetric matrix [width, width].

    Returns:
        The factor [width, rank]. A matrix that is no Gram matrix (no eigenvalue above 0, or one clearly below it) gives
        rank 0.
    """
    values, vectors = np.linalg.eigh(np.asarray(gram, dtype=np.float64))
    largest = float(values[-1])
    if not largest > 0 or float(values[0]) < -_NEAR * largest:
        return np.zeros((len(values), 0))
    kept = values > 1e-10 * largest
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))


def unscaled(factor: NDArray[Any], centre: NDArray[Any], spread: NDArray[Any]) -> Floats:
    """The factor of [1, x], from a factor of [1, (x - centre) / spread]: a scaler that all sites know hides nothing.

    Args:
        factor: The factor of the scaled rows, [1 + columns, rank].
        centre: What the scaler subtracts of each column, [columns].
        spread: What it divides each column by, [columns].

    Returns:
        The factor on the scale of x, [1 + columns, rank].
    """
    numbers = np.asarray(factor, dtype=np.float64)
    return np.vstack([numbers[:1], numbers[1:] * spread[:, None] + np.outer(centre, numbers[0])])


def recover_rows(
    factor: NDArray[Any], blocks: Sequence[Block], *, rows: int | None = None, most_nodes: int = _MOST_NODES
) -> Recovered:
    """Rebuild a site's rows Z = [1, x] from a factor F with F F' = Z'Z, knowing how columns are encoded.

    Args:
        factor: F, [width, any].
        blocks: Which columns of [1, x] are indicators of a category, and which are numbers on a grid.
        rows: The site's number of rows; None reads it from the first entry of F F'.
        most_nodes: How many nodes the search visits before it gives up.

    Returns:
        The rows that were found. There are none where no rows have this F F', and where the search gave up; `complete`
        is False in the second case alone.
    """
    numbers = np.asarray(factor, dtype=np.float64)
    nothing = Recovered(np.zeros((0, len(numbers))), np.zeros(0, dtype=bool), True)
    if not numbers.size or not np.isfinite(numbers).all():
        return nothing
    left, values, _ = np.linalg.svd(numbers, full_matrices=False)
    kept = values > 1e-7 * values[0]
    basis = left[:, kept] * values[kept]
    gram = basis @ basis.T
    expected = round(float(gram[0, 0])) if rows is None else rows
    if expected < 1 or abs(gram[0, 0] - expected) > _NEAR * expected:
        return nothing
    search = _Search(basis, gram, blocks, most_nodes)
    candidates = search.run()
    if search.independent:
        # As many dimensions as rows: no row depends on others or occurs twice, so all have leverage 1.
        inside = candidates @ (left[:, kept] / values[kept])
        candidates = candidates[np.abs(np.einsum("ij,ij->i", inside, inside) - 1.0) < 10 * _NEAR]
    if not search.complete or not len(candidates):
        return Recovered(nothing.rows, nothing.certain, search.complete)
    return _composed(candidates, gram, nothing)


def recovery_rate(truth: Sequence[NDArray[Any]], factors: Sequence[NDArray[Any]], blocks: Sequence[Block]) -> Recovery:
    """Attack every site's factor and compare with its true rows [1, x], as multisets.

    Args:
        truth: The rows of each site.
        factors: What each site sent.
        blocks: How columns are encoded.

    Returns:
        How many rows and sites were recovered.

    Raises:
        DataError: Sites and factors differ in number, or there is none.
    """
    if len(truth) != len(factors) or not truth:
        raise DataError("every site needs its true rows and what it sent", hint="Give one of each per site")
    whole, certain, total = 0, 0, 0
    for rows, factor in zip(truth, factors, strict=True):
        found = recover_rows(factor, blocks)
        left = _counted(np.asarray(rows, dtype=np.float64))
        right = 0
        for row, sure in zip(found.rows, found.certain, strict=True):
            key = _key(row)
            if sure and left.get(key, 0):
                left[key] -= 1
                right += 1
        total += len(rows)
        certain += right
        whole += int(right == len(rows) == found.count)
    return Recovery(whole / len(truth), certain / total)


def singled_out(gram: NDArray[Any], blocks: Sequence[Block]) -> Recovered:
    """Records read off a total: where a category occurs once, its row of the Gram matrix is the record.

    Args:
        gram: Z'Z of rows Z = [1, x], [width, width].
        blocks: Which columns of [1, x] are indicators of a category, and which are numbers on a grid.

    Returns:
        Each such record once, if it is a possible row under `blocks`; all are certain.
    """
    numbers = np.asarray(gram, dtype=np.float64)
    columns = [column for block in blocks if isinstance(block, OneHot) for column in range(block.start, block.stop)]
    alone = [column for column in columns if abs(numbers[column, column] - 1.0) < 1e-3]
    found = {_key(numbers[column]): numbers[column] for column in alone if _is_row(numbers[column], blocks, 1e-3)}
    rows = np.array(list(found.values())).reshape(len(found), len(numbers))
    return Recovered(rows, np.ones(len(found), dtype=bool), True)


@dataclass(frozen=True, eq=False)
class _Space:
    """Vectors basis @ (point + directions @ s) for any s; `point` is the one of least leverage."""

    point: Floats
    directions: Floats

    @property
    def reach(self) -> float:
        """How far from `point` leverage gets to 1."""
        return float(np.sqrt(max(1.0 - float(self.point @ self.point), 0.0)))

    def cut(self, lines: Floats, wanted: Floats) -> _Space | None:
        """The part on which lines @ c = wanted; None when there is none, or none of leverage up to 1."""
        short = wanted - lines @ self.point
        if self.directions.shape[1] == 0:
            return self if np.abs(short).max(initial=0.0) < _NEAR else None
        inside = lines @ self.directions
        left, values, right = np.linalg.svd(inside, full_matrices=True)
        rank = int((values > 1e-7).sum())
        step = right[:rank].T @ ((left[:, :rank].T @ short) / values[:rank])
        if np.abs(inside @ step - short).max(initial=0.0) > _NEAR:
            return None
        moved = self.point + self.directions @ step
        if moved @ moved > 1.0 + _NEAR:
            return None
        # `directions` are orthonormal and orthogonal to `point`; the least point stays so after the cut.
        return _Space(moved, self.directions @ right[rank:].T)


class _Search:
    """Depth first over the blocks; the ones with most categories first, since they narrow the space most."""

    def __init__(self, basis: Floats, gram: Floats, blocks: Sequence[Block], most_nodes: int) -> None:
        self.basis, self.gram, self.blocks = basis, gram, blocks
        self.independent = basis.shape[1] == round(float(gram[0, 0]))
        self.nodes_left = most_nodes
        self.complete = True
        self.found: dict[bytes, Floats] = {}
        present = np.diag(gram) > 0.5
        self.options = sorted(
            (
                (block, [column for column in range(block.start, block.stop) if present[column]])
                for block in blocks
                if isinstance(block, OneHot)
            ),
            key=lambda pair: -len(pair[1]),
        )
        self.grids = sorted(
            (block for block in blocks if isinstance(block, Grid) and block.step > 0), key=lambda grid: grid.count
        )

    def run(self) -> Floats:
        """All vectors of the space that could be rows, [candidates, width]."""
        rank = self.basis.shape[1]
        start = _Space(np.zeros(rank), np.eye(rank)).cut(self.basis[:1], np.ones(1))
        if start is not None:
            self._categories(start, 0, [])
        return np.array(list(self.found.values())).reshape(len(self.found), len(self.basis))

    def _visit(self) -> bool:
        self.nodes_left -= 1
        self.complete = self.complete and self.nodes_left > 0 and len(self.found) < _MOST_CANDIDATES
        return self.complete

    def _categories(self, space: _Space, depth: int, chosen: list[int]) -> None:
        if not self._visit():
            return
        if space.directions.shape[1] == 0:
            self._keep(space)
            return
        if depth == len(self.options):
            self._numbers(space, 0)
            return
        block, present = self.options[depth]
        lines = self.basis[block.start : block.stop]
        for column in present:
            if chosen and self.gram[column, chosen].min() < 0.5:
                continue
            wanted = np.zeros(block.stop - block.start)
            wanted[column - block.start] = 1.0
            narrower = space.cut(lines, wanted)
            if narrower is not None:
                self._categories(narrower, depth + 1, [*chosen, column])

    def _numbers(self, space: _Space, index: int) -> None:
        if not self._visit():
            return
        free = space.directions.shape[1]
        if free == 0:
            self._keep(space)
            return
        if free == 1:
            self._at_full_leverage(space)
        if index == len(self.grids):
            # Nothing tells the vectors that are left apart, unless there is a line of them and rows have leverage 1.
            self.complete = self.complete and free == 1 and self.independent
            return
        grid = self.grids[index]
        line = self.basis[grid.column : grid.column + 1]
        middle = float(line[0] @ space.point)
        room = float(space.reach * np.linalg.norm(line @ space.directions))
        first = max(0, int(np.ceil((middle - room - grid.low) / grid.step - _NEAR)))
        last = min(grid.count - 1, int(np.floor((middle + room - grid.low) / grid.step + _NEAR)))
        if last - first >= self.nodes_left:
            self.complete = False
            return
        for place in range(first, last + 1):
            narrower = space.cut(line, np.array([grid.low + place * grid.step]))
            if narrower is not None:
                self._numbers(narrower, index + 1)

    def _at_full_leverage(self, space: _Space) -> None:
        """On a line, a row that depends on no other is one of the two vectors of leverage 1."""
        reach = space.reach
        for side in (reach, -reach):
            self._keep(_Space(space.point + side * space.directions[:, 0], space.directions[:, :0]))

    def _keep(self, space: _Space) -> None:
        row = self.basis @ space.point
        if _is_row(row, self.blocks, _NEAR):
            self.found[_key(row)] = row


def _is_row(row: Floats, blocks: Sequence[Block], near: float) -> bool:
    """Whether a vector could be a row: bias 1, one indicator a block, numbers on their grids."""
    if abs(row[0] - 1.0) > near:
        return False
    for block in blocks:
        if isinstance(block, OneHot):
            part = row[block.start : block.stop]
            if np.abs(part - np.rint(part)).max() > near or part.min() < -near or abs(part.sum() - 1.0) > near:
                return False
        elif block.step > 0:
            place = (row[block.column] - block.low) / block.step
            if abs(place - np.rint(place)) > max(near / block.step, near) or not -0.5 < place < block.count - 0.5:
                return False
    return True


def _composed(candidates: Floats, gram: Floats, nothing: Recovered) -> Recovered:
    """How often each candidate occurs: whole numbers whose outer products add up to G."""
    from scipy.optimize import nnls

    upper = np.triu_indices(len(gram))
    products = np.stack([np.outer(row, row)[upper] for row in candidates], axis=1)
    # Only the products' inner products matter, and those are squares of the rows' inner products.
    times, _ = nnls(products, gram[upper], maxiter=50 * len(candidates))
    whole = np.rint(times)
    if np.abs(products @ whole - gram[upper]).max() > 1e-3:
        return nothing
    _, values, right = np.linalg.svd(products, full_matrices=len(candidates) > products.shape[0])
    free = right[int((values > 1e-8 * values[0]).sum()) :]
    determined = np.abs(free).max(axis=0, initial=0.0) < 1e-8
    counts = whole.astype(np.int64)
    return Recovered(np.repeat(candidates, counts, axis=0), np.repeat(determined, counts), True)


def _key(row: Floats) -> bytes:
    return bytes(np.rint(row * 1e4).astype(np.int64).tobytes())


def _counted(rows: Floats) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for row in rows:
        found[_key(row)] = found.get(_key(row), 0) + 1
    return found
