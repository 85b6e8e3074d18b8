"""Print the tables of a finished study as Markdown, for the pages in `docs/`.

    python tools/study_page.py out/study/study.json                 all tables
    python tools/study_page.py out/study/study.json Income Covertype   those whose names hold one of these words

Rows named "CELL: COLUMN" become one line per cell with one column each where a table has several columns per cell;
the paper's figure stands in brackets.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["as_markdown", "main"]

Row = Mapping[str, Any]


def as_markdown(table: Mapping[str, Any]) -> str:
    """One table of a study.

    Args:
        table: Its name, source and rows, as `study.json` has them.

    Returns:
        Markdown.
    """
    lines = [f"**{table['name']}** ({table['source']})", ""]
    rows = table["rows"]
    groups = [_wide(part) for part in _parts(rows)] if _is_wide(rows) else [_long(rows)]
    return "\n".join([*lines, *(line for group in groups for line in [*group, ""])])


def _is_wide(rows: Sequence[Row]) -> bool:
    """Whether rows are cells with several columns each."""
    cells = [row["setting"].rpartition(": ")[0] for row in rows]
    return all(cells) and len(set(cells)) * 2 <= len(cells) and not any("interval" in row for row in rows)


def _parts(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Runs of rows whose cells have the same columns."""
    columns: dict[str, list[str]] = {}
    for row in rows:
        cell, _, column = row["setting"].rpartition(": ")
        columns.setdefault(cell, []).append(column)
    kinds = list(dict.fromkeys(tuple(names) for names in columns.values()))
    for kind in kinds:
        yield [row for row in rows if tuple(columns[row["setting"].rpartition(": ")[0]]) == kind]


def _wide(rows: Sequence[Row]) -> list[str]:
    cells = list(dict.fromkeys(row["setting"].rpartition(": ")[0] for row in rows))
    columns = list(dict.fromkeys(row["setting"].rpartition(": ")[2] for row in rows))
    found = {row["setting"]: _figure(row) for row in rows}
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    return lines + [
        f"| {cell} | {' | '.join(found.get(f'{cell}: {column}', '') for column in columns)} |" for cell in cells
    ]


def _long(rows: Sequence[Row]) -> list[str]:
    tested = any(row.get("interval") for row in rows)
    lines = ["| | ours | 95 % interval |", "|---|---|---|"] if tested else ["| | ours |", "|---|---|"]
    for row in rows:
        interval = row.get("interval")
        ends = "" if interval is None else f"{interval[0]:.4f} to {interval[1]:.4f}"
        lines.append(f"| {row['setting']} | {_figure(row, digits=4)} |" + (f" {ends} |" if tested else ""))
    return lines


def _figure(row: Row, *, digits: int = 3) -> str:
    ours, spread, paper = row.get("ours"), row.get("sd"), row.get("paper")
    if not isinstance(ours, float):
        return "" if ours is None else str(ours)
    share = "improvement" in row["setting"]
    said = f"{ours:.1%}" if share else f"{ours:.{digits}f}"
    said += "" if spread is None or share else f" ± {spread:.3f}"
    if isinstance(paper, float):
        said += f" ({paper:.1%})" if share else f" ({paper:.3f})"
    return said


def main(words: Sequence[str]) -> None:
    """Print the tables that the words name.

    Args:
        words: The path of `study.json`, then words in names of tables; all tables without any.
    """
    tables = json.loads(Path(words[0]).read_text(encoding="utf-8"))["tables"]
    for table in tables:
        if not words[1:] or any(word in table["name"] for word in words[1:]):
            sys.stdout.write(as_markdown(table) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
