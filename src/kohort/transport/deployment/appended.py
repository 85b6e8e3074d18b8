"""Rows that are appended to a site's table while a run is under way (`sites.arrive = "appended/10 rounds"`).

The contract says before which rounds the table is read again. What it held then is kept with the run, as a number of
rows and a keyed digest: a restarted site takes the same rows at the same step, however long the table is by now.

Guarantee: rows that the run knows were not changed, removed or moved, or nothing more is taken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import polars as pl

from kohort.errors import DataError, RefusedError
from kohort.transport.site_store import RunStore

__all__ = ["AppendedRows"]


class AppendedRows:
    """A site's table as it grows over the steps of one run.

    Args:
        read: Reads the whole table, in its own order.
        usable: The rows that the plan can use, in their order; it looks at each row alone.
        store: The run's files.
        key: A secret of the site, for the digests.

    Raises:
        RefusedError: Rows that the run began with were changed since.
    """

    def __init__(
        self,
        read: Callable[[], pl.DataFrame],
        *,
        usable: Callable[[pl.DataFrame], pl.DataFrame],
        store: RunStore,
        key: bytes,
    ) -> None:
        self._read, self._usable, self._store, self._key = read, usable, store, key
        self.whole = self._at(0)
        """The table as it was read last."""
        self.rows = usable(self.whole)
        """The rows of it that the plan can use."""

    def since(self, round_number: int) -> pl.DataFrame:
        """Read the table again.

        Args:
            round_number: The round before which that is done.

        Returns:
            The usable rows that were appended since the table was read last.

        Raises:
            DataError: A column is of another type than before.
            RefusedError: Rows that the run knows were changed, removed or moved.
        """
        known, frame = self.whole, self._at(round_number)
        changed = [name for name, dtype in known.schema.items() if frame.schema.get(name) != dtype]
        if changed:
            raise DataError(
                f"columns are of another type since rows were appended: {', '.join(changed)}",
                hint="Write new rows as the others, or begin a new run",
            )
        if not frame.head(known.height).equals(known):
            raise _changed()
        earlier, rows = self.rows.height, self._usable(frame)
        if rows.schema != self.rows.schema:
            raise DataError("the target has other kinds of values since rows were appended", hint="Begin a new run")
        self.whole, self.rows = frame, rows
        return rows.slice(earlier)

    def _at(self, round_number: int) -> pl.DataFrame:
        """The table as it was at this step, if the step was answered before; otherwise as it is now."""
        frame = self._read()
        now = f"{frame.height} {self._digest(frame)}"
        rows, _, digest = self._store.pin(f"rows-{round_number:06d}", now).partition(" ")
        found = frame.head(int(rows))
        if found.height < int(rows) or self._digest(found) != digest:
            raise _changed()
        return found

    def _digest(self, frame: pl.DataFrame) -> str:
        return hashlib.blake2b(frame.write_json().encode(), key=self._key, digest_size=16).hexdigest()


def _changed() -> RefusedError:
    return RefusedError(
        "rows of the table that the run knows were changed, removed or moved: only rows appended to its end are taken",
        hint="Put them back, or begin a new run; a query of a database needs ORDER BY",
    )
