"""Make sixty common mistakes, and write what kohort says about each into docs/errors.md.

    python tools/errors_page.py

`tests/cli/test_mistakes.py` makes them again and compares every line.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import polars as pl

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
PLAN = """[data]
table = "patients.csv"
target = "died"
features = ["age", "bmi", "ward"]
drop = ["patient_id", "codes"]

[sites]
count = 3

[train]
rounds = 2

[policy]
min_rows = 1
"""


@dataclass(frozen=True)
class Mistake:
    """A command that goes wrong, and what is wrong with it."""

    about: str
    command: str


def prepare(folder: Path) -> None:
    """The files that the commands speak of."""
    random = np.random.default_rng(3)
    rows = 90
    age, bmi = random.integers(20, 90, rows), random.normal(26, 4, rows).round(1)
    frame = pl.DataFrame(
        {
            "patient_id": [f"P{number * 37:05d}" for number in range(rows)],
            "age": age,
            "bmi": bmi,
            "ward": random.choice(["north", "south"], rows),
            "codes": random.choice(["E11;I10", "I10", ""], rows),
            "died": (age + random.normal(0, 9, rows) > 60).astype(int),
        }
    )
    frame.write_csv(folder / "patients.csv")
    frame.head(0).write_csv(folder / "no_rows.csv")
    (folder / "empty.csv").write_bytes(b"")
    (folder / "ragged.csv").write_text("age,sex\n34,f\n51,m,x\n")
    (folder / "twice.csv").write_text("age,age\n34,1\n51,2\n")
    (folder / "quote.csv").write_text('age,note\n34,"open\n51,b\n')
    (folder / "infinite.csv").write_text("age,dose\n34,1\n51,inf\n")
    (folder / "broken.parquet").write_bytes(b"PAR1 no")
    (folder / "table.xlsx").write_bytes(b"PK")
    (folder / "plan.toml").write_text(PLAN)
    (folder / "typo.toml").write_text(PLAN.replace("rounds", "roundz"))
    (folder / "section.toml").write_text(PLAN.replace("[train]", "[trian]"))
    (folder / "no_target.toml").write_text(PLAN.replace('target = "died"\n', ""))
    (folder / "no_data.toml").write_text("[train]\nrounds = 2\n")
    (folder / "broken.toml").write_text("[data\n")
    phases = '[method]\nname = "hybrid"\n[[method.phases]]\nkind = "peers"\nroundz = 2\n'
    (folder / "phase.toml").write_text(PLAN.split("[train]", maxsplit=1)[0] + phases)
    (folder / "schema.toml").write_text('quazi = ["age"]\n')
    (folder / "existing.csv").write_text("mine\n")


RUN, CHECK = "run plan.toml --out out --force", "check patients.csv --quasi age"
ANONYMIZE = "anonymize patients.csv --quasi age,ward --drop rest --out a.csv"
GATE = "gate patients.csv --quasi ward --rule k-anonymity"
MISTAKES = (
    Mistake("no such command", "runn plan.toml"),
    Mistake("no such file", "check absent.csv --quasi age"),
    Mistake("neither a dataset nor a file", "check adlut --quasi age"),
    Mistake("an unknown variant of a dataset", "check adult:trian --quasi age"),
    Mistake("a folder instead of a table", "check . --quasi age"),
    Mistake("an empty file", "check empty.csv --quasi age"),
    Mistake("a header and no rows", "check no_rows.csv --quasi age"),
    Mistake("lines of different length", "check ragged.csv --quasi age"),
    Mistake("two columns of one name", "check twice.csv --quasi age"),
    Mistake("a quote that is never closed", "check quote.csv --quasi age"),
    Mistake("infinite numbers", "check infinite.csv --quasi age"),
    Mistake("a damaged Parquet file", "check broken.parquet --quasi age"),
    Mistake("a kind of file that cannot be read", "check table.xlsx --quasi age"),
    Mistake("a misspelt column", "check patients.csv --quasi aeg"),
    Mistake("no quasi-identifier", "check patients.csv"),
    Mistake("a misspelt option", f"{CHECK} --sensitve died"),
    Mistake("a word that --missing does not know", f"{CHECK} --missing dorp"),
    Mistake("--m without --items", f"{CHECK} --m 2"),
    Mistake("a column of numbers as sets", f"{CHECK} --items age"),
    Mistake("several identifiers and no person", f"{CHECK} --identifiers patient_id,codes"),
    Mistake("an identifier with another role", f"{CHECK} --identifiers age"),
    Mistake("an unknown key in a schema file", f"{CHECK} --schema schema.toml"),
    Mistake("no such schema file", f"{CHECK} --schema absent.toml"),
    Mistake("null values of both forms", f"{CHECK} --null-values -9,age=-8"),
    Mistake("columns of a release without a role", "anonymize patients.csv --quasi age,ward --out a.csv"),
    Mistake("a dropped column with a role", f"{ANONYMIZE} --drop age"),
    Mistake("k = 1", f"{ANONYMIZE} --k 1"),
    Mistake("a negative k", f"{ANONYMIZE} --k -3"),
    Mistake("more rows per class than there are", f"{ANONYMIZE} --k 500"),
    Mistake("t above 1", f"{ANONYMIZE} --t 1.5"),
    Mistake("a negative l", f"{ANONYMIZE} --l -1"),
    Mistake("l without a sensitive column", f"{ANONYMIZE} --l 2"),
    Mistake("more sensitive values than there are", f"{ANONYMIZE} --sensitive died --l 5"),
    Mistake("an unknown algorithm", f"{ANONYMIZE} --algorithm modrian"),
    Mistake("a quasi-identifier that is also the target", f"{ANONYMIZE} --target age"),
    Mistake("an output that exists", "anonymize patients.csv --quasi age --drop rest --out existing.csv"),
    Mistake("an output of an unknown kind", "anonymize patients.csv --quasi age --drop rest --out a.doc"),
    Mistake("an option of item sets without any", f"{ANONYMIZE} --m 2"),
    Mistake("levels that cannot be read", f"{ANONYMIZE} --levels age:2"),
    Mistake("an unknown rule of the gate", "gate patients.csv --quasi ward --rule k-anonimity --k 5"),
    Mistake("a gate without its k", GATE),
    Mistake("shared and kept rows in one file", f"{GATE} --k 5 --out-shared s.csv --out-kept s.csv"),
    Mistake("the identifier among the shared columns", f"{GATE} --k 5 --person patient_id --columns patient_id,age"),
    Mistake("no such plan", "run absent.toml --out out"),
    Mistake("a plan that is not TOML", "run broken.toml --out out"),
    Mistake("a plan without [data]", "run no_data.toml --out out"),
    Mistake("an unknown section", "run section.toml --out out"),
    Mistake("an unknown key", "run typo.toml --out out"),
    Mistake("an unknown key inside a phase", "run phase.toml --out out"),
    Mistake("a plan without a target", "run no_target.toml --out out"),
    Mistake("a key of the plan as an option", f"{RUN} --epsilon 1"),
    Mistake("a word where a section belongs", f"{RUN} --set method.dp=high"),
    Mistake("a value out of range", f"{RUN} --set train.rounds=0"),
    Mistake("an unknown method", f"{RUN} --set method.name=fedavgg"),
    Mistake("an unknown engine", f"{RUN} --engine flowr"),
    Mistake("an override that is none", f"{RUN} --set train.rounds"),
    Mistake("a key that the method does not read", f"{RUN} --set method.name=oneshot --set train.lr=0.1"),
    Mistake("a target that is no column", f"{RUN} --set data.target=diied"),
    Mistake("a task that does not fit its kind", f"{RUN} --set data.task=regression --set data.kinds.died=category"),
    Mistake("a learning rate far too large", f"{RUN} --set train.lr=1e9"),
    Mistake("a method that needs quasi-identifiers", f"{RUN} --set method.name=partial"),
    Mistake("sites with fewer rows than the policy asks for", f"{RUN} --set policy.min_rows=1000"),
    Mistake("two tables for a plan", "init patients.csv patients.csv --out new.toml"),
    Mistake("an unknown goal", "init patients.csv --goal sell --out new.toml"),
    Mistake("no such model", "predict nowhere patients.csv --out p.csv"),
)


def say(mistake: Mistake) -> tuple[int, str]:
    """Make a mistake in the current folder: the exit code, and the last line on stderr."""
    from kohort.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    code: int | str | None = 0
    with (
        patch.object(sys, "argv", ["kohort", *mistake.command.split()]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    lines = err.getvalue().strip().splitlines()
    return int(code or 0), lines[-1] if lines else ""


def page() -> str:
    """The page: every mistake with its command, exit code and line."""
    rows = ["| mistake | command | exit | what is said |", "|---|---|---|---|"]
    start = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        os.chdir(folder)
        try:
            for mistake in MISTAKES:
                code, line = say(mistake)
                cells = (mistake.about, f"`kohort {mistake.command}`", str(code), line)
                rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        finally:
            os.chdir(start)
    head = (
        "# What kohort says when something is wrong\n\n"
        "One line: what is wrong, and what to do next. It never shows a cell of a table. Exit codes: 2 usage or plan,\n"
        "3 data, 4 refused by a policy or the privacy asked for cannot be met, 5 a site failed, 6 integrity,\n"
        "7 resources.\n\n"
        "This page is made by `python tools/errors_page.py`, which makes every one of these mistakes; the tests make\n"
        "them again and compare.\n\n"
    )
    return head + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
