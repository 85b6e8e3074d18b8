"""The shape of the source tree: no circles of imports, a map whose paths exist, and a table that is not out of date."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
MAP = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
LONGEST_FILE = 500
UNLAYERED = {"kohort.methods.additive", "kohort.methods.trees"}
"""Packages without a contract of layers inside."""
NEW = {"models/cox/"}
"""The answer to where something would go that is not there yet."""


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("structure", ROOT / "tools" / "structure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _rows(heading: str) -> list[list[str]]:
    """The cells of the tables below a heading of ARCHITECTURE.md."""
    section = MAP.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    tables = [part.splitlines()[2:] for part in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for table in tables for line in table]


def test_no_module_imports_itself_through_others() -> None:
    structure = _tool()
    known = structure.modules_in(SRC)
    graph = {name: structure.imports_of(path, known) for name, path in known.items()}
    assert structure.circles(graph) == 0
    below = next(other for other in graph["kohort.protocol.site"] if graph[other])
    assert structure.circles({**graph, below: {*graph[below], "kohort.protocol.site"}}) == 1


def test_no_file_is_longer_than_can_be_read() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (SRC / "kohort").rglob("*.py")}
    assert [str(path) for path, length in lengths.items() if length > LONGEST_FILE] == []


def _figures(structure: ModuleType) -> dict[str, int]:
    """What the table of the tree's shape says now, of that which is quick to measure."""
    known = structure.modules_in(SRC)
    graph = {name: structure.imports_of(path, known) for name, path in known.items()}
    return {
        "source files": len(known),
        "folders": len({path.parent for path in known.values()}),
        "functions above McCabe complexity 8": structure.too_complex(SRC),
        "circles of imports, those inside functions and for types included": structure.circles(graph),
    }


def _out_of_date(rows: list[list[str]], figures: dict[str, int]) -> list[str]:
    now = {name: int(re.match(r"[\d,]+", last)[0].replace(",", "")) for name, *_, last in rows if name in figures}  # type: ignore[index]
    return [name for name, found in figures.items() if abs(now[name] - found) > 0.03 * found]


def test_the_table_of_the_trees_shape_is_not_out_of_date() -> None:
    rows, figures = _rows("The shape of the tree"), _figures(_tool())
    assert _out_of_date(rows, figures) == []
    assert _out_of_date(rows, {name: round(1.05 * found) + 1 for name, found in figures.items()}) == list(figures)


def test_long_docstrings_and_parameters_of_any_type_are_counted() -> None:
    structure = _tool()
    code = """
class Shown:
    '''One.'''
    def long(self, a: Any, *b: int, c: dict[str, Any]) -> Any:
        '''One.

        Two.
        Three.'''
    def _hidden(self, d): ...
class _Hidden:
    def inside(self, e: Any): ...
"""
    trees = [ast.parse(code)]
    assert structure.share_of_long_docstrings(trees) == 50.0
    assert structure.share_of_any(trees) == 40.0


def test_tests_mirror_src_with_the_exceptions_that_the_map_names() -> None:
    folders = {
        str(path.parent.relative_to(SRC / "kohort"))
        for path in (SRC / "kohort").rglob("*.py")
        if not str(path.parent).endswith("/embedded")
    }
    (said,) = re.findall(r"Tests mirror `src`, with these exceptions:(.*?)stand one folder up", MAP, re.DOTALL)
    exceptions = {*re.findall(r"`([^`]+)`", said), "testing"}
    assert {folder for folder in folders if not [*(ROOT / "tests" / folder).glob("**/test_*.py")]} == exceptions


def test_every_contract_of_layers_names_all_modules() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = [one for one in project["tool"]["importlinter"]["contracts"] if one["type"] == "layers"]
    assert [one["name"] for one in layers if "containers" in one and not one.get("exhaustive")] == []
    within = {package for one in layers for package in one.get("containers", ())}
    packages = {".".join(path.parent.relative_to(SRC).parts) for path in (SRC / "kohort").rglob("*.py")}
    assert packages - within == UNLAYERED


@pytest.mark.parametrize(("question", "answer"), _rows("Where things are"))
def test_every_question_is_answered_by_a_path_that_exists(question: str, answer: str) -> None:
    path, *names = re.findall(r"`([^`]+)`", answer)
    assert path in NEW or (SRC / "kohort" / path).exists(), question
    for name in names:
        beside = SRC / "kohort" / name, (SRC / "kohort" / path).parent / name
        inside = name.isidentifier() and f" {name}(" in (SRC / "kohort" / path).read_text(encoding="utf-8")
        assert inside or any(place.exists() for place in beside), (question, name)


def test_every_package_is_on_the_map() -> None:
    rows = _rows("The map")
    named = {name.strip("/") for row in rows for name in re.findall(r"`([^`]+)`", row[0])}
    there = {path.stem for path in (SRC / "kohort").iterdir() if not path.name.startswith("_")} - {"py"}
    assert there <= named, there - named
    for first, _, start in rows:
        packages = [*re.findall(r"`([^`]+)/`", first), "."]
        for path in re.findall(r"`([^`]+)`", start):
            assert any((SRC / "kohort" / package / path).exists() for package in packages), path


WORDS = {"company", "keeper", "occasion", "panel", "desk", "crew", "tail", "told", "groundwork", "venue", "premises"}
WORDS |= {"holding", "trouble"}
PLAIN = {"told", "tail", "holding"}
"""Those of them that a sentence may have in their plain sense; a name may not."""


def test_modules_classes_and_functions_have_the_fields_own_words() -> None:
    names = [path.stem for path in (SRC / "kohort").rglob("*.py")]
    for path in (SRC / "kohort").rglob("*.py"):
        names += re.findall(r"^ *(?:class|def|async def) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert _parts(names) & WORDS == set()
    assert {"site", "release", "door"} <= _parts(names)
    assert _parts(["TellsTail", "site_told"]) & WORDS == {"tail", "told"}


def _inner_names(tree: ast.AST) -> list[str]:
    """Names of variables, attributes and parameters."""
    stored = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    attributes = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return [*stored, *attributes, *(node.arg for node in ast.walk(tree) if isinstance(node, ast.arg))]


def test_no_variable_attribute_or_parameter_is_called_told() -> None:
    inner = {
        path: _parts(_inner_names(ast.parse(path.read_text(encoding="utf-8"))))
        for path in (SRC / "kohort").rglob("*.py")
    }
    assert [str(path) for path, parts in inner.items() if "told" in parts] == []
    assert "told" in _parts(_inner_names(ast.parse("def check(told_before): ...")))
    assert "told" in _parts(_inner_names(ast.parse("one.told")))


SHARED = {"Bins", "Progress", "Trees"}
"""Public classes of two modules each: bins and trees of methods and models; the progress of a run and of its phases."""


def _defined_twice(trees: Iterable[ast.AST]) -> set[str]:
    """Names of public classes that several modules define, or one module several times."""
    counted = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {name for name, count in counted.items() if count > 1 and not name.startswith("_")}


def test_no_two_public_classes_have_one_name() -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (SRC / "kohort").rglob("*.py")]
    assert _defined_twice(trees) == SHARED
    assert _defined_twice([ast.parse("class One: ..."), ast.parse("class _Own: ...\nclass _Own: ...")]) == set()
    assert _defined_twice([ast.parse("class One: ..."), ast.parse("class One: ...")]) == {"One"}


def _parts(names: list[str]) -> set[str]:
    """The words that names are made of, in lower case."""
    whole = [name.replace("KeyHolder", "") for name in names]
    return {part.lower() for name in whole for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def _shown_texts(tree: ast.AST, *, command: bool) -> Iterator[str]:
    """Texts that users see: of errors, hints, help and summaries, and of commands what they are for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            yield from _constants(node.exc)
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg in {"help", "hint", "summary", "says", "tells"}:
                    yield from _constants(keyword.value)
        elif command and isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield ast.get_docstring(node) or ""


def _constants(node: ast.AST) -> list[str]:
    return [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def _coinages(text: str) -> list[str]:
    """Words of our own in a text. "The hub is told" and "a site holding rows" are plain English."""
    return re.findall(rf"\b(?:{'|'.join(WORDS - PLAIN)})s?\b", text, re.IGNORECASE)


def test_constants_errors_and_help_have_the_fields_own_words() -> None:
    found, constants = {}, []
    for path in (SRC / "kohort").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = _shown_texts(tree, command="cli" in path.parts)
        found |= {(path.name, text): words for text in texts if (words := _coinages(text))}
        stored = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        constants += [name for name in stored if name.isupper()]
    assert found == {}
    assert _parts(constants) & WORDS == set()
    assert {"format", "file"} <= _parts(constants)


def test_a_word_of_our_own_in_an_error_or_in_help_is_found() -> None:
    code = """
def run(sites: int = option(help="Sites of the company.")) -> None:
    '''Go to the venue.'''
    raise DataError(f"no desk of {sites}", hint="Ask the keeper; the hub is told")
"""
    tree = ast.parse(code)
    assert {word for text in _shown_texts(tree, command=True) for word in _coinages(text)} == {
        *("company", "venue", "desk", "keeper"),
    }
    assert not [text for text in _shown_texts(tree, command=False) if "venue" in text]


def test_no_state_is_a_dictionary_of_strings() -> None:
    assert [str(path) for path in SRC.rglob("*.py") if "memory[" in path.read_text(encoding="utf-8")] == []


def test_tests_that_need_torch_pass_over_where_it_is_not_installed() -> None:
    """`make test` installs no torch, and CI does: nothing else would tell that the README's command fails."""
    needs = re.compile(r"^\s*(?:from|import) (?:torch|opacus)\b", re.MULTILINE)
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("*.py"))}
    using = {path for path, text in texts.items() if needs.search(text)}
    assert using
    assert [str(path) for path in sorted(using) if not re.search(r"importorskip\(|find_spec\(", texts[path])] == []
