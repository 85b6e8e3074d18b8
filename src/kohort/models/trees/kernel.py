"""The loops of boosted forests: gradients, histograms, the best splits, routing and prediction.

Guarantees: gradients are rounded to a grid row by row, and histograms are sums of whole numbers, so how rows are spread
over sites changes no bit. Splits are found from such sums by additions, multiplications and divisions in one order,
without fused operations, so hub and sites find the same.

Trees are heaps: the root is node 0, the children of node i are 2i + 1 and 2i + 2.
"""

# Written for Numba: functions get their types from the call.
# mypy: allow-untyped-defs, allow-untyped-calls, disallow-untyped-decorators=false

from __future__ import annotations

from typing import Any

import numpy as np

from kohort.models.dense.compiled import exp
from kohort.models.trees.options import LARGEST_GRADIENT, SCALE
from kohort.saved_code import compile_and_save

__all__ = [
    "add_scores",
    "best_splits",
    "complete",
    "draw",
    "hashes",
    "histograms",
    "join_cells",
    "losses",
    "path_contributions",
    "route",
    "slopes",
]

compiled: Any = compile_and_save()

_SCALE = float(SCALE)
_LARGEST = float(LARGEST_GRADIENT)
_ABSENT = np.uint8(255)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)


@compiled
def hashes(words, key, out):
    """A hash of every row of `words`, by the finaliser of splitmix64 over its words."""
    for i in range(words.shape[0]):
        value = key
        for j in range(words.shape[1]):
            value = (value ^ np.uint64(words[i, j])) + _GOLDEN
            value = (value ^ (value >> _S30)) * _MIX_1
            value = (value ^ (value >> _S27)) * _MIX_2
            value = value ^ (value >> _S31)
        out[i] = value


@compiled
def draw(ends, kinds, keys, salts, out):
    """For each salt and key, a place among the shares of the key's kind; `ends` are cumulative shares."""
    total = np.uint64(ends[0, ends.shape[1] - 1])
    for tree in range(len(salts)):
        for i in range(len(keys)):
            value = (keys[i] ^ salts[tree]) + _GOLDEN
            value = (value ^ (value >> _S30)) * _MIX_1
            value = (value ^ (value >> _S27)) * _MIX_2
            point = np.int64((value ^ (value >> _S31)) % total)
            place = 0
            while ends[kinds[i], place] <= point:
                place += 1
            out[tree, i] = place


@compiled
def _rounded(value, weight):
    if not value > -_LARGEST:
        value = -_LARGEST
    value = min(value, _LARGEST)
    return np.int64(np.rint(value * weight * _SCALE))


@compiled
def _chances(scores, row, out):
    """Softmax of one row's scores."""
    top = scores[0, row]
    for k in range(1, scores.shape[0]):
        top = max(top, scores[k, row])
    total = 0.0
    for k in range(scores.shape[0]):
        out[k] = exp(scores[k, row] - top)
        total += out[k]
    for k in range(scores.shape[0]):
        out[k] /= total


@compiled
def slopes(classes, scores, y, weight, gradient, curvature):
    """Gradient and curvature of the loss of every row, in units of the grid: squared, logistic or softmax loss."""
    chances = np.empty(scores.shape[0])
    for i in range(scores.shape[1]):
        if classes == 0:
            gradient[0, i] = _rounded(scores[0, i] - y[i], weight[i])
            curvature[0, i] = _rounded(1.0, weight[i])
        elif classes == 2:
            chance = 1.0 / (1.0 + exp(-scores[0, i]))
            gradient[0, i] = _rounded(chance - y[i], weight[i])
            curvature[0, i] = _rounded(chance * (1.0 - chance), weight[i])
        else:
            _chances(scores, i, chances)
            for k in range(scores.shape[0]):
                gradient[k, i] = _rounded(chances[k] - (1.0 if y[i] == k else 0.0), weight[i])
                curvature[k, i] = _rounded(chances[k] * (1.0 - chances[k]), weight[i])


@compiled
def losses(classes, scores, y, weight, held_out):
    """The loss of held-out rows and their weight, summed in units of the grid, and how many they are."""
    chances = np.empty(scores.shape[0])
    loss, total, rows = np.int64(0), np.int64(0), np.int64(0)
    for i in range(scores.shape[1]):
        if not held_out[i]:
            continue
        if classes == 0:
            value = (scores[0, i] - y[i]) * (scores[0, i] - y[i])
        else:
            if classes == 2:
                chance = 1.0 / (1.0 + exp(-scores[0, i]))
                right = chance if y[i] > 0.5 else 1.0 - chance
            else:
                _chances(scores, i, chances)
                right = chances[np.int64(y[i])]
            value = -np.log(right) if right > 1e-12 else _LARGEST
        loss += _rounded(value, weight[i])
        total += _rounded(1.0, weight[i])
        rows += 1
    return loss, total, rows


@compiled
def histograms(codes, nodes, offset, columns, starts, bin_of, output, gradient, curvature, out):
    """Add every row's gradient, curvature and 1 to the cells of its node, for the columns of each tree.

    `codes` [1 or trees, rows, columns] are the same for all trees, or each tree's own.
    `offset[tree, node]` is where a node's cells begin in `out` [cells, 3], -1 for nodes that are not counted.
    """
    for tree in range(nodes.shape[0]):
        g, h = gradient[output[tree]], curvature[output[tree]]
        own = codes[tree % codes.shape[0]]
        for i in range(nodes.shape[1]):
            node = nodes[tree, i]
            if node < 0:
                continue
            begin = offset[tree, node]
            if begin < 0:
                continue
            for j in range(columns.shape[1]):
                cell = begin + starts[tree, j] + bin_of[tree, j, own[i, columns[tree, j]]]
                out[cell, 0] += g[i]
                out[cell, 1] += h[i]
                out[cell, 2] += 1


@compiled
def complete(total, before, counted, sibling, parent, width, out):
    """The cells of all open nodes: those of counted ones, and what their parents have more for their siblings.

    Entry k of the four index arrays belongs to the k-th counted node: where its cells begin in `total`, where those of
    its sibling and its own begin in `out` (-1 where it has no sibling), and where those of its parent in `before`.
    """
    for k in range(len(width)):
        for cell in range(width[k]):
            for part in range(3):
                own = total[counted[k, 0] + cell, part]
                out[counted[k, 1] + cell, part] = own
                if sibling[k] >= 0:
                    out[sibling[k] + cell, part] = before[parent[k] + cell, part] - own


@compiled
def _enough(count, least):
    return count == 0 or count >= least


@compiled
def _join_column(first, second, parent, before, size, order, absent, least, marks):
    """Where groups of one column begin, for two siblings alike: `marks[place]` is 1 at the first place of a group.

    Groups are unions of the parent's. Every group has no row or at least `least` in both siblings. Returns whether the
    missing numbers, whose counts are the last two of `absent`, are alone; if not, all is one group.
    """
    ends, held = np.empty(size, np.int64), np.zeros((size, 2), np.int64)
    groups, a, b = 0, 0, 0
    for place in range(size):
        marks[place] = 0
        a += first[order[place]]
        b += second[order[place]]
        whole = place + 1 == size or before[parent + order[place + 1]] != before[parent + order[place]]
        last = place + 1 == size
        if whole and (last or (a + b > 0 and _enough(a, least) and _enough(b, least))):
            ends[groups], held[groups, 0], held[groups, 1] = place, a, b
            groups, a, b = groups + 1, 0, 0
    while groups > 1 and not (_enough(held[groups - 1, 0], least) and _enough(held[groups - 1, 1], least)):
        held[groups - 2] += held[groups - 1]
        ends[groups - 2] = ends[groups - 1]
        groups -= 1
    if not (_enough(absent[0], least) and _enough(absent[1], least)) or absent[2]:
        marks[0] = 1
        return False
    for group in range(groups):
        marks[0 if group == 0 else ends[group - 1] + 1] = 1
    return True


@compiled
def join_cells(counts, begins, trees, pairs, parents, before, columns, starts, sizes, missing, order, least, layout):
    """Groups of cells that each have no row or at least `least`: `layout[cell]` gets the number of a cell's group.

    Nodes k and k + 1 are siblings where `pairs`; `parents[k]` is where their parent's cells begin in `before`, its
    layout.
    """
    found, absent, marks = 0, np.zeros(3, np.int64), np.zeros(256, np.int64)
    for k in range(0, len(begins), 2 if pairs else 1):
        tree, other = trees[k], k + 1 if pairs else k
        for j in range(columns.shape[1]):
            start, size, places = starts[tree, j], sizes[tree, j], order[tree, j]
            mine, theirs, parent = begins[k] + start, begins[other] + start, parents[k] + start
            gaps = missing[columns[tree, j]]
            absent[:] = 0
            if gaps:
                absent[0], absent[1] = counts[mine + size], counts[theirs + size]
                absent[2] = before[parent + size] == before[parent + places[0]]
            alone = _join_column(counts[mine:], counts[theirs:], parent, before, size, places, absent, least, marks)
            for half in range(2 if pairs else 1):
                at = theirs if half else mine
                for place in range(size):
                    found += marks[place]
                    layout[at + places[place]] = found - 1
                if gaps:
                    found += alone
                    layout[at + size] = found - 1


@compiled
def _worth(g, h, l2):
    return g * g / (h + l2)


@compiled
def _best_cut(cells, first, size, order, absent, node, l2, min_leaf, best, facts, sums):
    """The best cut of one column whose gain is above `best`; `absent` are the sums of missing numbers."""
    worth = _worth(node[0] / _SCALE, node[1] / _SCALE, l2)
    some = absent[2] > 0
    for side in range(2 if some else 1):  # missing numbers go right at first, then left
        g, h, n = absent[0] * side, absent[1] * side, absent[2] * side
        for place in range(size if some else size - 1):
            cell = first + order[place]
            g += cells[cell, 0]
            h += cells[cell, 1]
            n += cells[cell, 2]
            if n < min_leaf or node[2] - n < min_leaf:
                continue
            right = _worth((node[0] - g) / _SCALE, (node[1] - h) / _SCALE, l2)
            gain = _worth(g / _SCALE, h / _SCALE, l2) + right - worth
            if gain > best:
                best = gain
                facts[1] = place
                facts[2] = side if some else np.int64(n + n > node[2])  # where none is missing: with the larger part
                sums[0], sums[1], sums[2] = g, h, n
    return best


@compiled
def best_splits(cells, begins, trees, columns, starts, sizes, missing, order, l2, min_leaf, facts, gains, sums):
    """The best split of every open node.

    `facts[k]` gets the column's number in its tree (-1: no split), the place of the cut and whether missing numbers go
    left, `gains[k]` what it gains, and `sums[k]` the gradient, curvature and rows of the left part.
    """
    node, absent = np.zeros(3, np.int64), np.zeros(3, np.int64)
    for k in range(len(begins)):
        tree = trees[k]
        facts[k, 0] = -1
        gains[k] = 0.0
        for j in range(columns.shape[1]):
            column = columns[tree, j]
            first, size = begins[k] + starts[tree, j], sizes[tree, j]
            for part in range(3):
                absent[part] = cells[first + size, part] if missing[column] else 0
                node[part] = absent[part]
                for code in range(size):
                    node[part] += cells[first + code, part]
            places = order[tree, j]
            gain = _best_cut(cells, first, size, places, absent, node, l2, min_leaf, gains[k], facts[k], sums[k])
            if gain > gains[k]:
                gains[k] = gain
                facts[k, 0] = j


@compiled
def route(codes, rank, nodes, split, cut, left, output, level_begin):
    """Move rows from the split nodes of a level to their children; rows of leaves get -1."""
    for tree in range(nodes.shape[0]):
        places, own = rank[output[tree]], codes[tree % codes.shape[0]]
        for i in range(nodes.shape[1]):
            node = nodes[tree, i]
            if node < level_begin:
                continue
            column = split[tree, node]
            if column < 0:
                nodes[tree, i] = -1
                continue
            code = own[i, column]
            goes_left = left[tree, node] if code == _ABSENT else places[column, code] <= cut[tree, node]
            nodes[tree, i] = 2 * node + (1 if goes_left else 2)


@compiled
def add_scores(codes, rank, split, cut, left, value, output, factor, out):
    """Add `factor` times every tree's value of every row to the scores of its output."""
    for tree in range(split.shape[0]):
        places, own = rank[output[tree]], codes[tree % codes.shape[0]]
        for i in range(codes.shape[1]):
            node = 0
            while node < split.shape[1] and split[tree, node] >= 0:
                column = split[tree, node]
                code = own[i, column]
                goes_left = left[tree, node] if code == _ABSENT else places[column, code] <= cut[tree, node]
                node = 2 * node + (1 if goes_left else 2)
            out[output[tree], i] += factor * value[tree, node]


@compiled
def path_contributions(codes, rank, split, cut, left, value, output, factor, out):
    """Add what each step down a tree changes of its value to the column of the split, for every row."""
    for i in range(codes.shape[0]):
        for tree in range(split.shape[0]):
            node = 0
            places = rank[output[tree]]
            while node < split.shape[1] and split[tree, node] >= 0:
                column = split[tree, node]
                code = codes[i, column]
                goes_left = left[tree, node] if code == _ABSENT else places[column, code] <= cut[tree, node]
                below = 2 * node + (1 if goes_left else 2)
                out[i, output[tree], column] += factor * (value[tree, below] - value[tree, node])
                node = below
