"""Errors in the words of Python: a keyword argument where the command line has an option and a plan a key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from kohort.errors import KohortError

__all__ = ["in_python_words", "speaks_python"]

_WORDS: tuple[tuple[str, str], ...] = (
    (r"--(\w+), or data\.\1 in a plan", r"\1="),
    (r"--force\b", "force=True"),
    (r"--set [\w.]+=VALUE", "the keyword"),
    (r"--missing (\w+)", r'missing="\1"'),
    (r"--(\w+)", r"\1="),
    (r'\[method\.secure\] and sum = "masks"', 'secure="masks"'),
    (r"\bpolicy\.(\w+) = true", r"policy=kohort.Policy(\1=True)"),
    (r'\bpolicy\.(\w+) = ("\w+"|[\d.]+)', r"policy=kohort.Policy(\1=\2)"),
    (r"\bpolicy\.(\w+)", r"policy=kohort.Policy(\1=...)"),
    (r'\bmethod\.clusters = ("[\w:]+")', r"run(..., clusters=\1)"),
    (r"\bsites\.count\b", "sites"),
    (r"\bmodel\.(\w+)", r'model={"\1": ...}'),
    (r"\bmethod\.(\w+)\.(\w+)", r'\1={"\2": ...}'),
    (r"\b(?:data|sites|train|method)\.(\w+) = ", r"\1="),
    (r"\b(?:data|sites|train|method)\.(\w+)", r"\1"),
)


def in_python_words(text: str) -> str:
    """A message or hint with keyword arguments instead of options and plan keys.

    Args:
        text: What the error says.

    Returns:
        The same for somebody who calls functions. A command that is named stays as it is typed.
    """
    if "kohort " in text and " --" in text:
        return text
    for pattern, instead in _WORDS:
        text = re.sub(pattern, instead, text)
    return text


@contextmanager
def speaks_python() -> Iterator[None]:
    """Let errors of the block speak of keyword arguments.

    Raises:
        KohortError: The same error in other words.
    """
    try:
        yield
    except KohortError as error:
        error.message, error.hint = in_python_words(error.message), in_python_words(error.hint)
        raise
