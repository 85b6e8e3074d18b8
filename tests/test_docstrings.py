"""Public functions and classes say what they take, give and raise."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "kohort"
COMMANDS = ("cli",)
"""Their options are described to users, by help texts."""
COMPILED = ("compiled", "inner", "inlined", "fused", "in_order")
"""Decorators of compiled loops, whose arguments are arrays that their callers describe."""
FILES = sorted(path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in COMMANDS)


def exported(tree: ast.Module) -> set[str]:
    """The names in `__all__`."""
    return {
        str(ast.literal_eval(item))
        for node in tree.body
        if isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == ["__all__"]
        and isinstance(node.value, ast.List | ast.Tuple)
        for item in node.value.elts
    }  # fmt: skip


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Exported functions, but for compiled loops."""
    wanted = exported(tree)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in wanted:
            decorators = {ast.unparse(entry).split("(")[0].split(".")[-1] for entry in node.decorator_list}
            if not decorators & {*COMPILED, "compile_and_save", "njit", "guvectorize", "overload", "fixture"}:
                yield node


def parameters(node: ast.FunctionDef) -> list[str]:
    """The names of its parameters."""
    given = node.args
    listed = [*given.posonlyargs, *given.args, *([given.vararg] if given.vararg else []), *given.kwonlyargs]
    names = [entry.arg for entry in [*listed, *([given.kwarg] if given.kwarg else [])]]
    return [name for name in names if not name.startswith("_")]


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """What stands in a function, but not in functions within it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            yield child
            yield from own_nodes(child)


def raises(node: ast.FunctionDef) -> bool:
    """Whether it raises an error of its own."""
    return any(isinstance(child, ast.Raise) and child.exc is not None for child in own_nodes(node))


def gives(node: ast.FunctionDef) -> bool:
    """Whether it returns something that its name and type do not say."""
    return node.returns is not None and ast.unparse(node.returns) not in ("None", "NoReturn", "Never")


def missing(node: ast.FunctionDef) -> list[str]:
    """What its docstring lacks."""
    text = ast.get_docstring(node) or ""
    if not text:
        return ["a docstring"]
    lacks = []
    names = parameters(node)
    if names:
        section = text.partition("Args:")[2].partition("Returns:")[0]
        lacks += [f"Args: {name}" for name in names if f"{name}:" not in section]
        if gives(node) and "Returns:" not in text and "Yields:" not in text:
            lacks.append("Returns:")
    if raises(node) and "Raises:" not in text:
        lacks.append("Raises:")
    return lacks


def found(path: Path) -> list[str]:
    """What the exported functions of a file lack."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}: {', '.join(lacks)}"
            for node in functions(tree) if (lacks := missing(node))]  # fmt: skip


@pytest.mark.parametrize("package", sorted({path.relative_to(SOURCE).parts[0] for path in FILES}))
def test_exported_functions_say_what_they_take_give_and_raise(package: str) -> None:
    lacking = [line for path in FILES if path.relative_to(SOURCE).parts[0] == package for line in found(path)]
    assert not lacking, "\n".join(lacking)
