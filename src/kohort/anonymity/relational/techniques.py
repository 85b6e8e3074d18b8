"""How a table gets its hierarchies, and how it gets its classes: techniques that register by name.

A hierarchy technique is a function from a table, its quasi-identifiers and (perhaps) a target to one hierarchy per
column; registered, it is a word that `hierarchies=` takes. A class technique makes the classes of a problem;
registered, it is a word that `algorithm=` takes. Whatever registers here is verified like everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import polars as pl

from kohort.anonymity.relational.algorithms.cluster import cluster, cluster_rest
from kohort.anonymity.relational.algorithms.mdav import mdav
from kohort.anonymity.relational.algorithms.mondrian import Split, mondrian, thesis_mondrian
from kohort.anonymity.relational.hierarchy_builders import LATTICE_RHOS, automatic_hierarchy, data_independent
from kohort.anonymity.relational.problem import Partition, Problem
from kohort.errors import ConfigError, nearest
from kohort.tables.hierarchy import Hierarchy

__all__ = [
    "CutOptions",
    "class_technique",
    "class_techniques",
    "find_class_technique",
    "find_hierarchy_technique",
    "hierarchy_technique",
    "hierarchy_techniques",
]

MakeHierarchies = Callable[[pl.DataFrame, Sequence[str], str | None], Mapping[str, Hierarchy]]


@dataclass(frozen=True, kw_only=True)
class CutOptions:
    """Options of the class techniques: Mondrian's cuts, and how many threads to use."""

    split: Split | None = None
    relaxed: bool = False
    dimensions: Sequence[str] | None = None
    jobs: int | None = None


MakeClasses = Callable[[Problem, CutOptions], Partition]
Technique = TypeVar("Technique", bound=Callable[..., object])

_HIERARCHIES: dict[str, MakeHierarchies] = {}
_CLASSES: dict[str, MakeClasses] = {}


def hierarchy_technique(name: str) -> Callable[[MakeHierarchies], MakeHierarchies]:
    """Decorator that registers a way to make hierarchies under a name.

    Args:
        name: The word that `hierarchies=` will take.

    Returns:
        The decorator; it returns the function as it is.

    Raises:
        ConfigError: The name is taken.
    """
    return _registrar(_HIERARCHIES, name, reserved=())


def class_technique(name: str) -> Callable[[MakeClasses], MakeClasses]:
    """Decorator that registers a way to form classes under a name.

    Args:
        name: The word that `algorithm=` will take; "auto" and "lattice" are reserved.

    Returns:
        The decorator; it returns the function as it is.

    Raises:
        ConfigError: The name is taken or reserved.
    """
    return _registrar(_CLASSES, name, reserved=("auto", "lattice"))


def hierarchy_techniques() -> tuple[str, ...]:
    """The registered words for `hierarchies=`."""
    return tuple(_HIERARCHIES)


def class_techniques() -> tuple[str, ...]:
    """The registered words for `algorithm=`, apart from `auto` and `lattice`."""
    return tuple(_CLASSES)


def find_hierarchy_technique(name: str) -> MakeHierarchies:
    """The hierarchy technique of this name.

    Args:
        name: The word given as `hierarchies=`.

    Returns:
        A function of a table, its quasi-identifiers and the target or None.

    Raises:
        ConfigError: There is none.
    """
    if name not in _HIERARCHIES:
        raise ConfigError(f"unknown hierarchies {name!r}", hint=nearest(name, _HIERARCHIES))
    return _HIERARCHIES[name]


def find_class_technique(name: str) -> MakeClasses:
    """The class technique of this name.

    Args:
        name: The word given as `algorithm=`, other than "auto" and "lattice".

    Returns:
        A function of a problem and the options of cuts.

    Raises:
        ConfigError: There is none.
    """
    if name not in _CLASSES:
        raise ConfigError(f"unknown algorithm {name!r}", hint=nearest(name, (*_CLASSES, "auto", "lattice")))
    return _CLASSES[name]


def _registrar(
    register: dict[str, Technique], name: str, *, reserved: Sequence[str]
) -> Callable[[Technique], Technique]:
    if name in register or name in reserved:
        raise ConfigError(f"there is already a technique named {name!r}", hint="Choose another name")

    def add(made: Technique) -> Technique:
        register[name] = made
        return made

    return add


@hierarchy_technique("auto")
def _automatic(frame: pl.DataFrame, names: Sequence[str], target: str | None) -> Mapping[str, Hierarchy]:
    """By target after Saleh (2022) where there is one; else those that look at no row."""
    if target is None:
        return data_independent(frame, names)
    return {name: automatic_hierarchy(frame, name, target, rhos=LATTICE_RHOS) for name in names}


@hierarchy_technique("intervals")
def _intervals(frame: pl.DataFrame, names: Sequence[str], target: str | None) -> Mapping[str, Hierarchy]:
    del target
    return data_independent(frame, names)


@class_technique("cluster")
def _cluster(problem: Problem, options: CutOptions) -> Partition:
    if problem.rule.k == 1 and not problem.rule.needs_sensitive:
        return mondrian(problem)
    return cluster(problem, jobs=options.jobs)


@class_technique("exact-cluster")
def _exact_cluster(problem: Problem, options: CutOptions) -> Partition:
    if problem.rule.k == 1 and not problem.rule.needs_sensitive:
        return mondrian(problem)
    return cluster_rest(problem, jobs=options.jobs)


@class_technique("mondrian")
def _mondrian(problem: Problem, options: CutOptions) -> Partition:
    return mondrian(problem, split=options.split or "median", relaxed=options.relaxed, dimensions=options.dimensions)


@class_technique("mdav")
def _mdav(problem: Problem, options: CutOptions) -> Partition:
    del options
    return mdav(problem)


@class_technique("thesis")
def _thesis(problem: Problem, options: CutOptions) -> Partition:
    del options
    return thesis_mondrian(problem)
