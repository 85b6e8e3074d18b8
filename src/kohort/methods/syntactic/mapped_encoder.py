"""Encoders that see rows as a model's training rows were: under the classes that sites published.

A model that learned from generalised rows is fed generalised rows: each new row gets the class that costs it least
(`mapping.assign`), and its cells are encoded as the mean of the values they could stand for. A label of
items, such as {C, D}, gives each of its items an equal share of 1; shares of one item add up, to 1 at most. The columns
that no class speaks of are encoded as they are.

Guarantees: released rows, which a site trains on, and rows to predict are encoded by the same code, so the same cells
give the same numbers; the mapping form reads back to an encoder that gives the same bytes, and mappings for another
schema than the encoder's are an IntegrityError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError, IntegrityError, nearest
from kohort.methods.syntactic.item_columns import apart, items_tree, joined, labels_apart
from kohort.methods.syntactic.mapping.assign import MappedRows, generalised, map_rows
from kohort.methods.syntactic.mapping.build import union
from kohort.methods.syntactic.mapping.mapping import ItemGroups, JointMapping, SiteMapping
from kohort.methods.syntactic.mapping.tables import column_weights
from kohort.tables.blocks import Taxonomy, encode_generalised
from kohort.tables.cells import Label, parse_cell
from kohort.tables.encoder import Encoder
from kohort.tables.schema import Schema

__all__ = ["MAPPINGS", "WEIGHTS", "MappedEncoder", "encode_in_classes", "encode_released"]

MAPPINGS = "mappings"
"""The key of a stored encoder that holds the classes."""
WEIGHTS = "mapping weights"
"""The key of a stored encoder that holds what each column counts; absent where all count alike."""


@dataclass(frozen=True)
class MappedEncoder(Encoder):
    """An encoder that first places every row under a class of `mappings`, one per site and data version.

    `weights` say what a loss in each column counts when classes are compared; None: all columns count alike.
    """

    mappings: tuple[SiteMapping, ...] = ()
    weights: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        own = self.schema.fingerprint()
        for mapping in self.mappings:
            if mapping.schema != own:
                hint = "A mapping belongs to the plan it was made for"
                raise IntegrityError(f"the mapping of site {mapping.site!r} is for another schema", hint=hint)
        # Disagreeing mappings and weights are found here and not at the first row.
        column_weights(self.classes_known, self.weights)

    @classmethod
    def over(
        cls, plain: Encoder, mappings: Sequence[SiteMapping], *, weights: Mapping[str, float] | None = None
    ) -> MappedEncoder:
        """An encoder that places rows under classes and then encodes them as another one does.

        Args:
            plain: The encoder of rows as they are.
            mappings: The classes, one per site and data version.
            weights: What a loss in each column counts; None: all count alike.

        Raises:
            IntegrityError: A mapping is for another schema.
            ConfigError: The weights do not fit the columns.
        """
        return cls(plain.schema, plain.domain, plain.encoding, plain.dtype, mappings=tuple(mappings), weights=weights)

    @cached_property
    def classes_known(self) -> JointMapping:
        """The classes of all sites."""
        return union(self.mappings)

    @property
    def sites(self) -> tuple[str, ...]:
        """Whose classes these are."""
        return tuple(dict.fromkeys(mapping.site for mapping in self.mappings))

    def only(self, site: str) -> MappedEncoder:
        """The encoder that knows the classes of one site alone."""
        own = tuple(mapping for mapping in self.mappings if mapping.site == site)
        if not own:
            raise ConfigError(f"there is no mapping of a site {site!r}", hint=nearest(site, self.sites))
        return replace(self, mappings=own)

    def place(self, frame: pl.DataFrame) -> MappedRows:
        """The class of every row."""
        joint = self.classes_known
        needed = [column.name for column in joint.columns] + list(self.schema.items if joint.items else ())
        absent = [name for name in needed if name not in frame.columns]
        if absent:
            hint = "The model was trained with them: add them to the table"
            raise DataError(f"the table lacks columns: {', '.join(absent)}", hint=hint)
        return map_rows(joined(frame, self.schema), joint, weights=self.weights, tree=items_tree(self.schema))

    def transform(
        self,
        frame: pl.DataFrame,
        *,
        generalised: bool = False,
        hierarchies: Mapping[str, Taxonomy] | None = None,
    ) -> NDArray[np.floating]:
        """The inputs as numbers, each row under its class. Rows that are `generalised` already have theirs."""
        if generalised:
            return super().transform(frame, generalised=True, hierarchies=hierarchies)
        placed = self.place(frame)
        out = np.empty((frame.height, self.width), dtype=self.dtype)
        first = 0
        # Site by site: what a label of items stands for may differ from site to site.
        for number, mapping in enumerate(self.mappings):
            rows = np.flatnonzero(placed.site_of == number)
            if len(rows):
                out[rows] = encode_in_classes(self, frame[rows], mapping, placed.class_of[rows] - first)
            first += mapping.count
        return out

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values that `from_mapping` reads back."""
        own = {} if self.weights is None else {WEIGHTS: dict(self.weights)}
        return {**super().to_mapping(), MAPPINGS: [mapping.to_bytes().decode() for mapping in self.mappings], **own}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> MappedEncoder:
        """The inverse of `to_mapping`."""
        plain = Encoder.from_mapping(mapping)
        texts = mapping.get(MAPPINGS)
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise ConfigError("this is not a stored encoder", hint="Use what Encoder.to_mapping gave")
        own = plain.schema.fingerprint()
        weights = mapping.get(WEIGHTS)
        if weights is not None and not isinstance(weights, dict):
            raise ConfigError("this is not a stored encoder", hint="Use what Encoder.to_mapping gave")
        return cls.over(plain, [SiteMapping.from_bytes(text.encode(), schema=own) for text in texts], weights=weights)


def encode_in_classes(
    encoder: Encoder, frame: pl.DataFrame, mapping: SiteMapping, class_of: NDArray[np.integer[Any]]
) -> NDArray[np.floating]:
    """The inputs of rows as they are, as numbers under given classes of one site.

    Args:
        encoder: The encoder that all sites share.
        frame: Rows with values as they are.
        mapping: The classes of one site.
        class_of: The class of each row, numbered as in `mapping`.

    Returns:
        The inputs, [rows, features]: a cell is the mean of the values that its class covers.
    """
    count = len(class_of)
    nothing = np.zeros(count, np.int64)
    given = MappedRows(
        class_of=np.asarray(class_of, np.int64),
        site_of=nothing,
        loss=np.zeros(count),
        legitimate=nothing + 1,
        violated=nothing,
    )
    rows = joined(frame, encoder.schema)
    return encode_released(encoder, generalised(rows, mapping, given, tree=items_tree(encoder.schema)), mapping)


def encode_released(encoder: Encoder, released: pl.DataFrame, mapping: SiteMapping) -> NDArray[np.floating]:
    """The inputs of rows a site released: cells in the columns its mapping describes, plain values in the others.

    Args:
        encoder: The encoder that all sites share.
        released: The released rows, with cells as text.
        mapping: The mapping of that site, which says what the cells stand for.

    Returns:
        The inputs, [rows, features].
    """
    labels, released = labels_of(mapping, encoder.schema), apart(released, encoder.schema)
    out = np.empty((released.height, encoder.width), dtype=encoder.dtype)
    start = 0
    for block in encoder.blocks:
        stop = start + len(block.features)
        if block.name in labels:
            encode_generalised(block, released[block.name], out[:, start:stop], labels[block.name])
        else:
            block.encode(released[block.name], out[:, start:stop])
        start = stop
    return out


def labels_of(mapping: SiteMapping, schema: Schema) -> Mapping[str, Taxonomy]:
    """What the labels of every column that a mapping speaks of stand for."""
    labels = {column.name: _Labels(column.labels) for column in mapping.columns}
    if mapping.items is None:
        return labels
    known = _item_labels(mapping.groups)
    if mapping.items in schema.items:
        return labels | {mapping.items: _Labels(known)}
    return labels | {name: _Labels(own) for name, own in labels_apart(known, schema).items()}


@dataclass(frozen=True)
class _Labels:
    """What the labels of a column stand for."""

    members: Mapping[str, tuple[str, ...]]

    def leaves(self, label: str) -> tuple[str, ...]:
        return self.members[label]


def _item_labels(groups: ItemGroups) -> dict[str, tuple[str, ...]]:
    """Labels of an item hierarchy; sets of items and single items say what they stand for."""
    cells = ((parse_cell(label), members) for label, members in zip(groups.labels, groups.members, strict=True))
    return {cell.text: members for cell, members in cells if isinstance(cell, Label)}
