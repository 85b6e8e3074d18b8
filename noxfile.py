"""Test matrix: `nox -l` lists the sessions, `nox -s lint` runs one.

    tests      the suite on Python 3.11, 3.12 and 3.13, with the versions of constraints.txt
    minimum    the suite with the lowest version of every dependency, optional ones included, that pyproject.toml allows
    lint       ruff, mypy, import-linter
    docs       every link, every example plan and every code block of the pages that tests execute

A Python version that is not on this machine is skipped and named; `nox --error-on-missing-interpreters` fails instead.
CI runs `.ci/run` on one Python version; the matrix is for releases.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import nox

PYTHONS = ["3.11", "3.12", "3.13"]
LOWEST_PYTHON = PYTHONS[0]
EXTRAS = "dev,flower"
OPTIONAL = ("onnx", "dask", "pandas", "sql")
"""Extras whose packages the tests import. Flower asks for newer versions of what kohort depends on, and torch is large:
both are left out at the lower bounds, and tests that need them are skipped."""

nox.options.sessions = ["lint", "tests", "docs"]
nox.options.error_on_missing_interpreters = False


def lower_bounds() -> list[str]:
    """Every package of the dependencies and of `OPTIONAL` at the lowest version of pyproject.toml, for pip."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in OPTIONAL for line in extras[extra])]
    found = [re.fullmatch(r"([\w.-]+(?:\[\w+\])?)>=([\d.]+)(?:,.*)?", line) for line in lines]
    if not all(found):
        raise ValueError("pyproject.toml: every dependency needs a lower bound, written NAME>=VERSION")
    return [f"{match[1]}=={match[2]}" for match in found if match]


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The whole suite, as `make test` runs it."""
    session.install("--constraint", "constraints.txt", "--editable", f".[{EXTRAS}]")
    session.run("pytest", "-n", "2", "--dist", "worksteal", *session.posargs)


@nox.session(python=LOWEST_PYTHON)
def minimum(session: nox.Session) -> None:
    """The suite with the lowest versions of the package and of its optional parts, and any versions of test tools."""
    session.install("--editable", ".[dev]", *lower_bounds())
    session.run("pytest", "-n", "2", "--dist", "worksteal", *session.posargs)


@nox.session(python=LOWEST_PYTHON)
def lint(session: nox.Session) -> None:
    """What `make lint` runs."""
    session.install("--constraint", "constraints.txt", "--editable", f".[{EXTRAS}]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports", "--no-cache")


@nox.session(python=LOWEST_PYTHON)
def docs(session: nox.Session) -> None:
    """Links, example plans, the README's example and the method of docs/extend.md."""
    session.install("--constraint", "constraints.txt", "--editable", f".[{EXTRAS}]")
    session.run("pytest", "tests/cli/test_readme.py", "tests/contract/test_entry_point.py", *session.posargs)
